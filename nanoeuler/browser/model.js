// A model in a browser: its weights, and the forward pass that nanoeuler/model has in Python. It is
// written once; its ops are WebGPU's (webgpu_ops.js) or JavaScript's (javascript_ops.js).
// A token passes 2·L Euler steps x ← x + h·f(norm(x)): attention's and the MLP's of each layer.
"use strict";

// The tensors, [name, size], that lie one after another.
function named(numbers, tensors) {
  let start = 0;
  const entry = ([name, size]) => [name, numbers.subarray(start, (start += size))];
  return Object.fromEntries(tensors.map(entry));
}

// Cosines and sines, (context, E/2): the pair of elements i and i + E/2 of a head is rotated by
// position · θ^(−2i/E) · scale[i].
function angles({ context, head_size, rope_theta, rope_scale: [scale, factor] }) {
  const half = head_size / 2;
  const angle = (at) => {
    const [position, i] = [Math.floor(at / half), at % half];
    return position * rope_theta ** (-i / half) * scale[i];
  };
  const all = { length: context * half };
  return [Math.cos, Math.sin].map((wave) =>
    Float32Array.from(all, (_, at) => factor * wave(angle(at))));
}

const CHECKED = [0, 1, 2]; // tokens on which WebGPU must compute what JavaScript does,
const TOLERANCE = 1e-3; // to this share of the largest logit

class Model {
  // `held`: the weights as JavaScript has them, name → Float32Array.
  constructor(config, held) {
    Object.assign(this, { config, held, tables: angles(config) });
    this.ids = []; // read so far
    this.compute(new JavaScriptOps(config, this.tables));
  }

  compute(ops) {
    const hold = ([name, values]) => [name, ops.hold(values, name)];
    this.weights = Object.fromEntries(Object.entries(this.held).map(hold));
    this.ops = ops;
  }

  // Compute with WebGPU from now on, if the browser has it and it computes what JavaScript does.
  // `kernels`: of nanoeuler/browser/kernels.py; null for a form that they do not know.
  async useWebGpu(kernels) {
    try {
      if (!kernels) throw new Error("the kernels read heads of a multiple of 4 numbers");
      const device = await Device.open(kernels);
      const expected = await this.checked();
      this.compute(new WebGpuOps(device, this.config, this.tables));
      const found = await this.checked();
      const most = TOLERANCE * expected.reduce((top, each) => Math.max(top, Math.abs(each)), 1);
      if (!found.every((each, i) => Math.abs(each - expected[i]) < most)) {
        throw new Error(`${this.ops.name} computes something else`);
      }
    } catch (error) {
      const [said] = error.message.split("\n");
      this.useJavaScript(said);
    }
    this.rewind(0);
  }

  // The logits behind some tokens.
  async checked() {
    this.rewind(0);
    for (const id of CHECKED.slice(1, this.config.context)) this.read(id);
    return this.append(CHECKED[0]);
  }

  useJavaScript(reason) {
    this.reason = reason;
    this.compute(new JavaScriptOps(this.config, this.tables));
    for (const id of this.ids.splice(0)) this.read(id);
  }

  // A sentence for people.
  get computedBy() {
    const because = this.reason ? `: ${this.reason}` : "";
    return `Your browser computes it with ${this.ops.name}${because}.`;
  }

  // Do the work, in JavaScript if WebGPU ends meanwhile.
  async attempt(work) {
    const { ops } = this;
    try {
      return await work();
    } catch (error) {
      if (ops instanceof JavaScriptOps) throw error;
      const [said] = error.message.split("\n");
      if (ops === this.ops) this.useJavaScript(`WebGPU ended (${said})`);
      return work();
    }
  }

  // Go back to where it had read that many tokens.
  rewind(length) {
    this.ids.length = length;
  }

  // Read the next token: the logits behind it. `trace` gets the stream at every point, 2·L + 1 of
  // them, and the attention of every head, [layer][head][token].
  async append(id, trace) {
    const { layers, heads, layer_kinds } = this.config;
    const read = this.ids.length;
    return this.attempt(async () => {
      this.ids.length = read;
      const seenBy = trace && { points: [], scores: [] };
      const logits = this.logits(this.read(id, seenBy));
      const asked = trace ? [...seenBy.points, ...seenBy.scores] : [];
      const [found, ...traced] = await this.ops.read([logits, ...asked]);
      if (trace) {
        trace.points = traced.slice(0, 2 * layers + 1);
        trace.attention = traced.slice(2 * layers + 1).map((scores, layer) =>
          Array.from({ length: heads }, (_, head) => {
            const row = scores.subarray(head * (read + 1), (head + 1) * (read + 1));
            return softmax(seen(row, layer_kinds[layer][0]));
          }));
      }
      return found;
    });
  }

  // What the model would say of streams, such as the points of a trace: the logits of each.
  async lens(points) {
    const logits = (point) => this.logits(this.ops.give(point));
    return this.attempt(() => this.ops.read(points.map(logits)));
  }

  // The stream behind the last layer of a token that follows those read so far.
  read(id, trace) {
    const positions = [this.ids.length];
    this.ops.begin(positions);
    this.ids.push(id);
    return this.forward([id], positions, trace);
  }

  // The same of any tokens at these positions, about which the ops know.
  forward(ids, positions, trace) {
    const { config: c, weights: w, ops } = this;
    const [block, other] = c.family === "gpt2" ? ["gpt2", "gelu"] : ["llama", "swiglu"];
    const table = w[block === "gpt2" ? "transformer.wte.weight" : "model.embed_tokens.weight"];
    let x = ops.embed(table, ids);
    if (block === "gpt2") x = ops.add(x, ops.embed(w["transformer.wpe.weight"], positions), 1);
    trace?.points.push(x);
    for (let layer = 0; layer < c.layers; layer++) {
      x = ops.add(x, this[block](x, layer, trace?.scores), c.step_size);
      trace?.points.push(x);
      x = ops.add(x, this[other](x, layer), c.step_size);
      trace?.points.push(x);
    }
    return x;
  }

  // The attention block of a Llama: grouped heads, rotary positions, perhaps a norm of each head.
  llama(x, layer, scores) {
    const { config: c, weights: w, ops } = this;
    const part = `model.layers.${layer}.self_attn`;
    const [window, rotates] = c.layer_kinds[layer];
    const normed = ops.norm(x, w[`model.layers.${layer}.input_layernorm.weight`]);
    const [query, key, value] = ["q", "k", "v"].map((name) => {
      const product = `${part}.${name}_proj`;
      let vector = ops.linear(normed, w[`${product}.weight`], w[`${product}.bias`]);
      if (name === "v") return vector;
      const weight = w[`${part}.${name}_norm.weight`]; // may be none
      if (c.qk_norm !== "none") vector = ops.norm(vector, weight, undefined, c.head_size);
      return rotates ? ops.rotate(vector) : vector;
    });
    const mixed = ops.attend(layer, query, key, value, window, scores);
    return ops.linear(mixed, w[`${part}.o_proj.weight`]);
  }

  // That of a GPT-2: one packed product, and biases.
  gpt2(x, layer, scores) {
    const { weights, ops } = this;
    const w = (name) => weights[`transformer.h.${layer}.${name}`];
    const normed = ops.norm(x, w("ln_1.weight"), w("ln_1.bias"));
    const packed = ops.linear(normed, w("attn.c_attn.weight"), w("attn.c_attn.bias"));
    const [query, key, value] = [0, 1, 2].map((i) => ops.part(packed, i, 3));
    const mixed = ops.attend(layer, query, key, value, 0, scores);
    return ops.linear(mixed, w("attn.c_proj.weight"), w("attn.c_proj.bias"));
  }

  swiglu(x, layer) {
    const { weights, ops } = this;
    const w = (name) => weights[`model.layers.${layer}.${name}.weight`];
    const normed = ops.norm(x, w("post_attention_layernorm"));
    const up = ops.linear(normed, w("mlp.up_proj"));
    const gate = ops.linear(normed, w("mlp.gate_proj"));
    return ops.linear(ops.swiglu(gate, up), w("mlp.down_proj"));
  }

  gelu(x, layer) {
    const { weights, ops } = this;
    const w = (name) => weights[`transformer.h.${layer}.${name}`];
    const normed = ops.norm(x, w("ln_2.weight"), w("ln_2.bias"));
    const up = ops.linear(normed, w("mlp.c_fc.weight"), w("mlp.c_fc.bias"));
    return ops.linear(ops.gelu(up), w("mlp.c_proj.weight"), w("mlp.c_proj.bias"));
  }

  // What the first head would say of a stream x: behind the last layer, these are the logits.
  logits(x) {
    const { config: c, weights: w, ops } = this;
    const llama = c.family !== "gpt2";
    const [weight, bias] = (llama ? ["model.norm.weight"]
      : ["transformer.ln_f.weight", "transformer.ln_f.bias"]).map((name) => w[name]);
    const embedding = w[llama ? "model.embed_tokens.weight" : "transformer.wte.weight"];
    return ops.linear(ops.norm(x, weight, bias), c.tied ? embedding : w["lm_head.weight"]);
  }
}
