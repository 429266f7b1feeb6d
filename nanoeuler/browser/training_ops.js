// The ops of a forward pass on whole rows of tokens, whose way back is remembered: each op that was
// done leaves behind how gradients pass through it, and `backward` takes these in reverse order.
"use strict";

const PAIRS = { columns: 2, words: 2 }; // two numbers, each a pair of float32 whose sum counts
const UNSCALED = { loss_scale: 1 }; // gradients are float32, of which none is too small

class TrainingOps extends WebGpuOps {
  // B rows of T tokens each. Sums of gradients begin anew.
  begin(B, T) {
    this.device.recycle();
    Object.assign(this, { B, T, way: [], gradients: new Map(), written: new Set() });
    this.starts = new Map();
    this.host = Array.from({ length: B * T }, (_, n) => n % T);
    this.positions = this.give(this.host);
    this.offset = this.give(new Array(B).fill(0));
    return this.host;
  }

  backward() {
    for (const back of this.way.reverse()) back();
  }

  // An op's output `out`, and what is done with its gradient.
  via(out, back) {
    this.way.push(() => back(this.gradients.get(out)));
    return out;
  }

  embed(table, ids) {
    return this.via(super.embed(table, ids), (dout) => {
      const { dim } = this.config;
      const { MOST_WORKGROUPS, THREADS } = this.device.sizes;
      const dtable = table.gradient.reshape(dim);
      const across = Math.min(dtable.rows, MOST_WORKGROUPS);
      const grid = [across, Math.ceil(dim / THREADS), Math.ceil(dtable.rows / across)];
      this.device.launch("embedding", "backward", grid, {
        ids: this.give(ids), dout, dtable, rows: ids.length, columns: dim, first: 0,
        count: dtable.rows, accumulate: this.written.has(table),
      });
    });
  }

  // Of a step's two gradients, which are one array, that of `delta` is still to be scaled: the
  // product that made it does so.
  add(x, delta, factor) {
    return this.via(super.add(x, delta, factor), (dout) => {
      this.gradients.set(x, dout);
      this.gradients.set(delta, dout);
      delta.scale = factor;
    });
  }

  linear(x, weight) {
    const out = super.linear(x, weight);
    return this.via(out, (dout) => {
      const { scale } = out; // undefined: 1
      const matrix = weight.reshape(x.columns);
      this.multiply(dout.T, x.T, scale, undefined, weight.gradient.reshape(x.columns));
      this.written.add(weight);
      const before = this.gradients.get(x); // of another product that reads x
      this.gradients.set(x, this.multiply(dout, matrix.T, scale, before));
    });
  }

  norm(x, weight, bias, columns = x.columns) {
    const out = super.norm(x, weight, bias, columns);
    const { device, inverse } = this;
    return this.via(out, (whole) => {
      const dout = whole.reshape(columns);
      const given = { x: x.reshape(columns), inverse, dout, rows: dout.rows, columns };
      if (weight) this.sumProducts(given, weight.gradient);
      const before = this.gradients.get(x); // past the block whose norm this is
      const dx = (before ?? device.take(x.rows, x.columns)).reshape(columns);
      const [unread, unwritten] = device.spares;
      device.launch("norm", "backward", device.flat(dout.rows), {
        ...given, dx, weight: weight ?? this.ones, bias: unread, out: unwritten,
        add_to_dx: before !== undefined,
      });
      this.gradients.set(x, dx.reshape(x.columns));
    });
  }

  // The gradient of a norm's weight: of each column a sum over the rows, in parts.
  sumProducts({ x, inverse, dout, rows, columns }, out) {
    const { device } = this;
    const { COLUMN_PARTS, LEAST_COLUMN_ROWS, THREADS } = device.sizes;
    const slice = Math.max(LEAST_COLUMN_ROWS, Math.ceil(rows / COLUMN_PARTS));
    const [parts, across] = [Math.ceil(rows / slice), Math.ceil(columns / THREADS)];
    const [partial, means] = [device.take(parts, columns), device.spares[0]];
    const given = { x, inverse, dout, means, partial, rows, columns, slice };
    device.launch("columns", "products", [across, parts], given);
    device.launch("columns", "finish", [across, 1], { partial, out, columns, parts, scale: 1 });
  }

  rotate(x) {
    super.rotate(x);
    return this.via(x, (dout) => super.rotate(dout, -1));
  }

  attend(layer, query, key, value, window) {
    const { device, B, T, config: { heads, kv_heads } } = this;
    const rows = (array) => array.like({ batch: T * array.columns });
    const like = (array) => device.take(array.rows, array.columns);
    const [out, lse, starts] = [like(query), device.take(heads, B * T), this.startsOf(window)];
    const read = { query: rows(query), key: rows(key), value: rows(value), starts };
    const launch = (kernel, across, given) => this.launchAttention(kernel, across, given, T, B);
    launch("forward", heads, { ...read, out: rows(out), lse, offset: this.offset });
    return this.via(out, (whole) => {
      const [dout, stats] = [rows(whole), device.take(heads, B * T, 2)];
      const [dquery, dkey, dvalue] = [query, key, value].map(like);
      launch("row_stats", heads, { out: rows(out), dout, lse, stats });
      launch("query_gradient", heads, { ...read, dout, stats, dquery: rows(dquery) });
      const gradients = { dkey: rows(dkey), dvalue: rows(dvalue) };
      launch("key_gradient", kv_heads, { ...read, dout, stats, ...gradients });
      this.gradients.set(query, dquery).set(key, dkey).set(value, dvalue);
    });
  }

  swiglu(gate, up) {
    return this.via(super.swiglu(gate, up), (dout) => {
      const { device } = this;
      const { rows, columns } = gate;
      const [dx, dup] = [gate, up].map(() => device.take(rows, columns));
      const given = { x: gate, up, dout, dx, dup, out: device.spares[0], rows, columns };
      device.launchOn("activations", "swiglu_backward", gate.size, given);
      this.gradients.set(gate, dx).set(up, dup);
    });
  }

  // The mean loss of the tokens that follow, a pair of float32; its gradient is where the way back
  // begins.
  loss(logits, targets) {
    const { device } = this;
    const { rows, columns } = logits;
    const losses = this.give(new Float32Array(4)).like(PAIRS);
    const [logprobs, lse] = [0, 1].map(() => device.take(1, rows));
    const weights = this.give(new Float32Array(rows).fill(1 / rows));
    const given = { logits, targets: this.give(targets), rows, columns, lse };
    const grid = device.flat(rows);
    device.launch("losses", "cross_entropy", grid, { ...given, logprobs });
    const summed = { logprobs, weights, losses, count: rows, heads: 1 };
    device.launch("losses", "add_losses", [1], summed);
    device.launch("losses", "cross_entropy_backward", grid, { ...given, weights, ...UNSCALED });
    this.gradients.set(logits, logits);
    return losses;
  }
}

// AdamW: examples/train.py's settings.
const ADAMW = { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 };
const UPDATE = { clip_norm: 1, ...UNSCALED };

class Trainer {
  // `tensors`: [name, size, initial spread (null: ones), does it decay?]. `values`: name → numbers.
  constructor(device, config, tensors, values) {
    Object.assign(this, { device, config, steps: 0 });
    const { RATE_BLOCK } = device.sizes; // tensors start on multiples of it
    const room = (size) => RATE_BLOCK * Math.ceil(size / RATE_BLOCK);
    this.count = tensors.reduce((sum, [, size]) => sum + room(size), 0);
    const [flat, rates] = [new Float32Array(this.count), []];
    [this.parameters, this.gradients, this.first, this.second] =
      Array.from({ length: 4 }, () => device.array(1, this.count));
    this.model = new Model(config, {});
    let at = 0;
    for (const [name, size, , decays] of tensors) {
      flat.set(values[name], at);
      const view = ({ buffer }) => new GpuArray(buffer, 1, size, { at });
      const weight = view(this.parameters).like({ gradient: view(this.gradients) });
      this.model.weights[name] = weight;
      for (let i = 0; i < room(size); i += RATE_BLOCK) rates.push(1, Number(decays));
      at += room(size);
    }
    device.write(this.parameters, flat);
    this.rates = device.array(rates.length / 2, 2);
    device.write(this.rates, Float32Array.from(rates));
    this.report = device.array(1, 2, 2);
    this.ops = this.model.ops = new TrainingOps(device, config, this.model.tables);
  }

  // A model that writes with the weights as they are.
  get writer() {
    const writer = new Model(this.config, {});
    const ops = new WebGpuOps(this.device, this.config, writer.tables);
    return Object.assign(writer, { ops, weights: this.model.weights });
  }

  // The mean loss of rows of T tokens, in nats.
  async loss(ids, targets, T) {
    const [[loss, rest]] = await this.device.read([this.forward(ids, targets, T)]);
    return loss + rest;
  }

  forward(ids, targets, T) {
    const { ops, model } = this;
    const positions = ops.begin(ids.length / T, T);
    return ops.loss(model.logits(model.forward(ids, positions)), targets);
  }

  // Rows of T tokens → loss → gradients → update; the loss before the update, in nats.
  async step(ids, targets, T, rate) {
    const losses = this.forward(ids, targets, T);
    this.ops.backward();
    this.update(losses, rate);
    const [[loss, rest]] = await this.device.read([losses]);
    return loss + rest;
  }

  update(losses, rate) {
    const { device, count, gradients, parameters, first, second, report, rates } = this;
    const { SQUARES_PARTS } = device.sizes;
    const pair = (value) => [Math.fround(value), value - Math.fround(value)];
    const schedule = device.give(Float32Array.from([...pair(rate), this.steps++, 0]));
    const [squares, scalars] = [device.take(1, SQUARES_PARTS, 2), device.take(1, 4, 2)];
    const parts = { parts: SQUARES_PARTS, count, squares };
    device.launch("update", "squared_norm", [SQUARES_PARTS], { ...parts, values: gradients });
    const told = { schedule: schedule.like(PAIRS), losses, report, scalars };
    device.launch("update", "prepare", [1], { ...parts, ...told, ...UPDATE });
    const { beta1, beta2 } = ADAMW;
    const numbers = { ...ADAMW, rest1: 1 - beta1, rest2: 1 - beta2 };
    Object.assign(numbers, { log_beta1: Math.log(beta1), log_beta2: Math.log(beta2) });
    const arrays = { parameters, gradients, first, second, scalars, rates };
    device.launchOn("update", "adamw", count, { ...arrays, ...numbers, count });
  }
}
