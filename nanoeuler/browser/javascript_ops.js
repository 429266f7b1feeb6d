// The ops of a forward pass in JavaScript, of one token at a time: what WebGPU computes where a
// browser has it. An array is a Float32Array.
"use strict";

const sigmoid = (x) => 1 / (1 + Math.exp(-x));
const silu = (x) => x * sigmoid(x);
const gelu = (x) => x * sigmoid(2 * Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3));

function softmax(scores) {
  const top = scores.reduce((most, score) => Math.max(most, score), -Infinity);
  const powers = scores.map((score) => Math.exp(score - top));
  const total = powers.reduce((sum, power) => sum + power, 0);
  return powers.map((power) => power / total);
}

class JavaScriptOps {
  constructor(config, tables) {
    Object.assign(this, { config, tables });
    this.name = "JavaScript";
    this.keys = Array.from({ length: config.layers }, () => []); // [layer][token], and so values
    this.values = Array.from({ length: config.layers }, () => []);
  }

  hold(values) {
    return values;
  }

  give(values) {
    return values;
  }

  async read(arrays) {
    return arrays;
  }

  begin([position]) {
    this.position = position;
  }

  embed(table, [id]) {
    const { dim } = this.config;
    return table.slice(id * dim, (id + 1) * dim);
  }

  add(x, delta, factor) {
    return x.map((value, i) => value + factor * delta[i]);
  }

  // W x, for W of (out, in) row by row; with a bias where the model has one.
  linear(x, weight, bias) {
    const out = new Float32Array(weight.length / x.length);
    for (let row = 0, at = 0; row < out.length; row++) {
      let sum = bias ? bias[row] : 0;
      for (let i = 0; i < x.length; i++, at++) sum += weight[at] * x[i];
      out[row] = sum;
    }
    return out;
  }

  // RMSNorm, and with a bias LayerNorm, of each `columns` numbers.
  norm(x, weight, bias, columns = x.length) {
    const out = new Float32Array(x.length);
    for (let start = 0; start < x.length; start += columns) {
      const part = x.subarray(start, start + columns);
      const mean = bias ? part.reduce((sum, value) => sum + value, 0) / columns : 0;
      const square = part.reduce((sum, value) => sum + (value - mean) ** 2, 0) / columns;
      const inverse = 1 / Math.sqrt(square + this.config.norm_epsilon);
      part.forEach((value, i) => {
        out[start + i] = (value - mean) * inverse * (weight?.[i] ?? 1) + (bias?.[i] ?? 0);
      });
    }
    return out;
  }

  // In place: the elements i and i + E/2 of each head by the angle of its token.
  rotate(x) {
    const { head_size } = this.config;
    const half = head_size / 2;
    const [cosines, sines] = this.tables.map((table) => table.subarray(this.position * half));
    for (let start = 0; start < x.length; start += head_size) {
      for (let i = 0; i < half; i++) {
        const [first, second] = [x[start + i], x[start + half + i]];
        x[start + i] = first * cosines[i] - second * sines[i];
        x[start + half + i] = second * cosines[i] + first * sines[i];
      }
    }
    return x;
  }

  // softmax(q kᵀ / √E) v of every head over all tokens so far, or the last `window` of them.
  // `scores` gets those in front of the softmax, (heads, tokens).
  attend(layer, query, key, value, window, scores) {
    const { heads, kv_heads, head_size: E } = this.config;
    const [keys, values] = [this.keys[layer], this.values[layer]];
    keys.length = values.length = this.position;
    keys.push(key);
    values.push(value);
    const mixed = new Float32Array(query.length);
    const found = new Float32Array(heads * keys.length);
    for (let head = 0; head < heads; head++) {
      const own = head * E;
      const shared = Math.floor((head * kv_heads) / heads) * E; // the key/value head that it reads
      const row = found.subarray(head * keys.length, (head + 1) * keys.length);
      keys.forEach((each, token) => {
        let sum = 0;
        for (let i = 0; i < E; i++) sum += query[own + i] * each[shared + i];
        row[token] = sum / Math.sqrt(E);
      });
      const shares = softmax(seen(row, window));
      values.forEach((each, token) => {
        for (let i = 0; i < E; i++) mixed[own + i] += shares[token] * each[shared + i];
      });
    }
    scores?.push(found);
    return mixed;
  }

  part(x, i, count) {
    const columns = x.length / count;
    return x.slice(i * columns, (i + 1) * columns);
  }

  swiglu(gate, up) {
    return gate.map((value, i) => silu(value) * up[i]);
  }

  gelu(x) {
    return x.map(gelu);
  }
}

// Scores of the last token, of which it does not see those before its window.
const seen = (scores, window) =>
  scores.map((score, token) => (window && token < scores.length - window ? -Infinity : score));
