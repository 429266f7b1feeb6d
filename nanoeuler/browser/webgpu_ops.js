// The ops of a forward pass by the kernels of nanoeuler/backend/webgpu, which have the formulas.
"use strict";

class WebGpuOps {
  constructor(device, config, tables) {
    Object.assign(this, { device, config });
    this.name = `WebGPU (${device.name})`;
    this.caches = Array.from({ length: config.layers }, () => this.cache());
    this.tables = tables.map((table) => device.hold(table, "a table of angles"));
    this.ones = device.hold(new Float32Array(config.head_size).fill(1), "a norm");
  }

  // Keys and values of a layer.
  cache() {
    const { context, kv_heads, head_size } = this.config;
    return [0, 1].map(() => this.device.array(context, kv_heads * head_size));
  }

  hold(values, name) {
    return this.device.hold(values, name);
  }

  // Numbers of the host, whole ones or a Float32Array, for as long as a token is read.
  give(values) {
    return this.device.give(Array.isArray(values) ? Int32Array.from(values) : values);
  }

  read(arrays) {
    return this.device.read(arrays);
  }

  // Tokens at these positions follow, which are neighbours.
  begin(positions) {
    this.device.recycle();
    this.length = positions.at(-1) + 1;
    this.positions = this.give(positions);
    this.offset = this.give([positions[0]]);
    this.starts = new Map(); // window → where the tokens begin to see
    this.host = positions;
  }

  startsOf(window) {
    if (!this.starts.has(window)) {
      const first = (position) => (window ? Math.max(0, position + 1 - window) : 0);
      this.starts.set(window, this.give(this.host.map(first)));
    }
    return this.starts.get(window);
  }

  embed(table, ids) {
    const { dim } = this.config;
    const out = this.device.take(ids.length, dim);
    const [rows, numbers] = [table.reshape(dim), { rows: ids.length, columns: dim, first: 0 }];
    const given = { ids: this.give(ids), table: rows, out, ...numbers };
    const count = rows.rows;
    this.device.launchOn("embedding", "embed", out.size, { ...given, vocabulary: count, count });
    return out;
  }

  // x + factor · delta
  add(x, delta, factor) {
    const { device } = this;
    const total = device.take(x.rows, x.columns);
    device.launch("norm", "add", device.flat(x.rows), {
      x, delta, total, step_bias: device.spares[0], step_size: factor, rows: x.rows,
      columns: x.columns,
    });
    return total;
  }

  linear(x, weight, bias) {
    const out = this.multiply(x, weight.reshape(x.columns));
    if (bias) {
      const sizes = { rows: out.rows, columns: out.columns };
      this.device.launchOn("activations", "add_bias", out.size, { x: out, bias, ...sizes });
    }
    return out;
  }

  // scale · left rightᵀ, and `add` besides; in a new array or in `out`.
  multiply(left, right, scale = 1, add = undefined, out = undefined) {
    const { device } = this;
    const { FEW_ROWS, FEW_ROWS_COLUMNS, TILE } = device.sizes;
    const [rows, columns, inner] = [left.rows, right.rows, left.columns];
    out ??= device.take(left.batches * rows, columns)
      .like({ rows, batches: left.batches, batch: rows * columns });
    const given = { left, right, out, add: add ?? device.spares[0], rows, columns, inner, scale };
    given.add_scale = Number(add !== undefined);
    const along = [left, right].map((each) => each.inner === 1);
    if (rows <= FEW_ROWS && left.batches === 1 && along.every(Boolean)) {
      const grid = device.flat(Math.ceil(columns / FEW_ROWS_COLUMNS));
      const quads = [left, right].every(({ at, row }) => at % 4 === 0 && row % 4 === 0);
      const WIDTH = quads && inner % 4 === 0 ? 4 : 1;
      const told = { LEFT_ROWS: `${rows}u`, WIDTH: `${WIDTH}u`, NORMED: false, GATED: false };
      const unused = { up: device.spares[1], weight: device.spares[2] };
      const constants = [declared(told), device.kernels.numbers[WIDTH]].join("\n");
      device.launch("few_rows", "multiply", grid, { ...given, ...unused }, constants);
    } else {
      const grid = [Math.ceil(columns / TILE), Math.ceil(rows / TILE), left.batches];
      const constants = declared({ LEFT_INNER: along[0], RIGHT_INNER: along[1] });
      device.launch("product", "multiply", grid, { ...given, whole_inner: inner }, constants);
    }
    return out;
  }

  // RMSNorm, and with a bias LayerNorm, of each `columns` numbers.
  norm(x, weight, bias, columns = x.columns) {
    const { device } = this;
    const parts = x.reshape(columns);
    const [{ rows }, out] = [parts, device.take(parts.rows, columns)];
    this.inverse = device.take(1, rows);
    device.launch("norm", "forward", device.flat(rows), {
      x: parts, weight: weight ?? this.ones, bias: bias ?? device.spares[0], out, rows, columns,
      inverse: this.inverse, layer: Boolean(bias), epsilon: this.config.norm_epsilon,
    });
    return out.reshape(x.columns);
  }

  // In place: the pairs of each head by the angles of its token.
  rotate(x, direction = 1) {
    const { head_size } = this.config;
    const [heads, half] = [x.columns / head_size, head_size / 2];
    const [cosines, sines] = this.tables;
    const given = { x, positions: this.positions, cosines, sines, rows: x.rows, heads, half };
    this.device.launchOn("rope", "rotate", x.size / 2, { ...given, direction });
    return x;
  }

  // softmax(q kᵀ / √E) v over the tokens so far, or the last `window` of them. `scores` gets those
  // of the last token, (heads, tokens).
  attend(layer, query, key, value, window, scores) {
    const { device, length } = this;
    const { context, heads, kv_heads, head_size } = this.config;
    const width = kv_heads * head_size;
    const numbers = { count: key.rows * width, tokens: key.rows, width, slots: context };
    [key, value].forEach((source, i) => device.launchOn("cache", "write", numbers.count, {
      source, copied: this.caches[layer][i], offset: this.offset, ...numbers,
    }));
    const [keys, values] = this.caches[layer];
    scores?.push(this.scores(query, keys.like({ rows: length })));
    const out = device.take(query.rows, query.columns);
    this.launchAttention("forward", heads, {
      query, key: keys, value: values, out, offset: this.offset, starts: this.startsOf(window),
      lse: device.take(heads, query.rows),
    });
    return out;
  }

  // A workgroup takes ROWS tokens of one of so many heads, of `batches` rows of tokens.
  launchAttention(kernel, across, given, tokens = this.host.length, batches = 1) {
    const { heads, kv_heads, head_size } = this.config;
    const ROWS = Math.min(this.device.sizes.MOST_ROWS, 2 ** Math.ceil(Math.log2(tokens)));
    const rows = kernel === "row_stats" ? 1 : ROWS;
    const numbers = { tokens, heads, group: heads / kv_heads, root: 1 / Math.sqrt(head_size) };
    const grid = [Math.ceil(tokens / rows), across, batches];
    const constants = declared({ ROWS: `${ROWS}u` });
    this.device.launch("attention", kernel, grid, { ...given, ...numbers }, constants);
  }

  // The heads that read one key/value head are the rows of a product.
  scores(query, keys) {
    const { heads, kv_heads, head_size } = this.config;
    const group = heads / kv_heads;
    const [batches, columns, row] = [kv_heads, head_size, head_size];
    const at = query.at + (query.rows - 1) * query.row;
    const left = { at, rows: group, columns, row, batches, batch: group * head_size };
    const right = keys.like({ columns, batches, batch: head_size });
    const found = this.multiply(query.like(left), right, 1 / Math.sqrt(head_size));
    return found.like({ rows: heads, batches: 1, batch: 0 });
  }

  // The i-th of as many equal parts of the columns.
  part(x, i, count) {
    const columns = x.columns / count;
    return x.like({ columns, at: x.at + i * columns });
  }

  swiglu(gate, up) {
    return this.activation("swiglu", gate, { up });
  }

  gelu(x) {
    return this.activation("gelu", x);
  }

  activation(kernel, x, others = {}) {
    const out = this.device.take(x.rows, x.columns);
    const given = { x, out, rows: x.rows, columns: x.columns, ...others };
    this.device.launchOn("activations", kernel, x.size, given);
    return out;
  }
}

// Constants in front of a kernel's code.
function declared(constants) {
  return Object.entries(constants).map(([name, value]) => `const ${name} = ${value};`).join("\n");
}
