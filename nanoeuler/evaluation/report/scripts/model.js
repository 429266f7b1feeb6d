// The model of this page: its weights, and the forward pass that nanoeuler/model has in Python.
// A token passes 2·L Euler steps x ← x + h·f(norm(x)): attention's and the MLP's of each layer.
"use strict";

// The weights lie in the page as bfloat16, the upper halves of float32: first the upper byte of
// every number, then the lower ones, deflated and in base64.
async function readWeights(text, tensors) {
  const packed = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const count = bytes.length / 2;
  const numbers = new Float32Array(count);
  const bits = new Uint32Array(numbers.buffer);
  for (let i = 0; i < count; i++) bits[i] = (bytes[i] << 24) | (bytes[count + i] << 16);
  const weights = {};
  let start = 0;
  for (const [name, size] of tensors) weights[name] = numbers.subarray(start, (start += size));
  return weights;
}

// out = W x, for W of (out, in) row by row; with a bias where the model has one.
function linear(weight, x, bias) {
  const out = new Float32Array(weight.length / x.length);
  for (let row = 0, at = 0; row < out.length; row++) {
    let sum = bias ? bias[row] : 0;
    for (let i = 0; i < x.length; i++, at++) sum += weight[at] * x[i];
    out[row] = sum;
  }
  return out;
}

// RMSNorm, and with a bias LayerNorm.
function norm(x, weight, bias, epsilon) {
  const mean = bias ? x.reduce((sum, value) => sum + value, 0) / x.length : 0;
  const square = x.reduce((sum, value) => sum + (value - mean) ** 2, 0) / x.length;
  const inverse = 1 / Math.sqrt(square + epsilon);
  const scaled = (value, i) => (value - mean) * inverse * (weight?.[i] ?? 1);
  return x.map((value, i) => scaled(value, i) + (bias?.[i] ?? 0));
}

// The pair of elements i and i + E/2 of a head is rotated by position · θ^(−2i/E) · scale[i].
function rotate(head, position, theta, [scale, factor]) {
  const half = head.length / 2;
  for (let i = 0; i < half; i++) {
    const angle = position * theta ** (-i / half) * scale[i];
    const [first, second] = [factor * head[i], factor * head[half + i]];
    head[i] = first * Math.cos(angle) - second * Math.sin(angle);
    head[half + i] = second * Math.cos(angle) + first * Math.sin(angle);
  }
}

const sigmoid = (x) => 1 / (1 + Math.exp(-x));
const silu = (x) => x * sigmoid(x);
const gelu = (x) => x * sigmoid(2 * Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3));

function softmax(scores) {
  const top = scores.reduce((most, score) => Math.max(most, score), -Infinity);
  const powers = scores.map((score) => Math.exp(score - top));
  const total = powers.reduce((sum, power) => sum + power, 0);
  return powers.map((power) => power / total);
}

class Model {
  constructor(config, weights) {
    Object.assign(this, { config, weights });
    this.keys = Array.from({ length: config.layers }, () => []); // [layer][token], and so values
    this.values = Array.from({ length: config.layers }, () => []);
    this.position = 0;
  }

  // Go back to where it had read that many tokens.
  rewind(position) {
    this.position = position;
    for (const kept of [...this.keys, ...this.values]) kept.length = position;
  }

  // Read the next token and return the stream behind the last layer. `trace` gets the stream at
  // every point, 2·L + 1 of them, and the attention of every head, [layer][head][token].
  append(id, trace) {
    const { config: c, weights: w } = this;
    const [block, other] = c.family === "gpt2" ? ["gpt2", "gelu"] : ["llama", "swiglu"];
    const table = w[block === "gpt2" ? "transformer.wte.weight" : "model.embed_tokens.weight"];
    let x = table.slice(id * c.dim, (id + 1) * c.dim);
    if (block === "gpt2") {
      const at = this.position * c.dim;
      x = x.map((value, i) => value + w["transformer.wpe.weight"][at + i]);
    }
    trace?.points.push(x);
    for (let layer = 0; layer < c.layers; layer++) {
      const attention = this[block](x, layer);
      x = x.map((value, i) => value + c.step_size * attention.out[i]);
      trace?.points.push(x);
      trace?.attention.push(attention.shares);
      const mlp = this[other](x, layer);
      x = x.map((value, i) => value + c.step_size * mlp[i]);
      trace?.points.push(x);
    }
    this.position++;
    return x;
  }

  // The attention block of a Llama: grouped heads, rotary positions, perhaps a norm of each head.
  llama(x, layer) {
    const { config: c, weights: w } = this;
    const part = `model.layers.${layer}.self_attn`;
    const [window, rotates] = c.layer_kinds[layer];
    const normed = norm(x, w[`model.layers.${layer}.input_layernorm.weight`], null, c.norm_epsilon);
    const product = (name) => {
      const bias = w[`${part}.${name}_proj.bias`]; // may be none
      return linear(w[`${part}.${name}_proj.weight`], normed, bias);
    };
    const [query, key, value] = ["q", "k", "v"].map(product);
    for (const [name, vector] of [["q", query], ["k", key]]) {
      const weight = w[`${part}.${name}_norm.weight`]; // may be none
      for (let start = 0; start < vector.length; start += c.head_size) {
        const head = vector.subarray(start, start + c.head_size);
        if (c.qk_norm !== "none") head.set(norm(head, weight, null, c.norm_epsilon));
        if (rotates) rotate(head, this.position, c.rope_theta, c.rope_scale);
      }
    }
    const { mixed, shares } = this.attend(layer, query, key, value, window);
    return { out: linear(w[`${part}.o_proj.weight`], mixed), shares };
  }

  // That of a GPT-2: one packed product, and biases.
  gpt2(x, layer) {
    const { config: c, weights: w } = this;
    const part = `transformer.h.${layer}`;
    const normed = norm(x, w[`${part}.ln_1.weight`], w[`${part}.ln_1.bias`], c.norm_epsilon);
    const packed = linear(w[`${part}.attn.c_attn.weight`], normed, w[`${part}.attn.c_attn.bias`]);
    const parts = [0, 1, 2].map((i) => packed.slice(i * c.dim, (i + 1) * c.dim));
    const { mixed, shares } = this.attend(layer, ...parts);
    const bias = w[`${part}.attn.c_proj.bias`];
    return { out: linear(w[`${part}.attn.c_proj.weight`], mixed, bias), shares };
  }

  // softmax(q kᵀ / √E) v of every head over all tokens so far, or the last `window` of them.
  attend(layer, query, key, value, window = 0) {
    const { heads, kv_heads, head_size: E } = this.config;
    const [keys, values] = [this.keys[layer], this.values[layer]];
    keys.push(key);
    values.push(value);
    const unseen = window ? keys.length - window : 0;
    const mixed = new Float32Array(query.length);
    const shares = [];
    for (let head = 0; head < heads; head++) {
      const own = head * E;
      const shared = Math.floor((head * kv_heads) / heads) * E; // the key/value head that it reads
      const scores = keys.map((each, token) => {
        let sum = token < unseen ? -Infinity : 0;
        for (let i = 0; i < E; i++) sum += query[own + i] * each[shared + i];
        return sum / Math.sqrt(E);
      });
      const share = softmax(scores);
      values.forEach((each, token) => {
        for (let i = 0; i < E; i++) mixed[own + i] += share[token] * each[shared + i];
      });
      shares.push(share);
    }
    return { mixed, shares };
  }

  swiglu(x, layer) {
    const w = (name) => this.weights[`model.layers.${layer}.${name}.weight`];
    const normed = norm(x, w("post_attention_layernorm"), null, this.config.norm_epsilon);
    const up = linear(w("mlp.up_proj"), normed);
    const gate = linear(w("mlp.gate_proj"), normed);
    return linear(w("mlp.down_proj"), gate.map((value, i) => silu(value) * up[i]));
  }

  gelu(x, layer) {
    const w = (name) => this.weights[`transformer.h.${layer}.${name}`];
    const normed = norm(x, w("ln_2.weight"), w("ln_2.bias"), this.config.norm_epsilon);
    const up = linear(w("mlp.c_fc.weight"), normed, w("mlp.c_fc.bias"));
    return linear(w("mlp.c_proj.weight"), up.map(gelu), w("mlp.c_proj.bias"));
  }

  // What the first head would say of a stream x: behind the last layer, these are the logits.
  logits(x) {
    const { config: c, weights: w } = this;
    const llama = c.family !== "gpt2";
    const final = llama
      ? norm(x, w["model.norm.weight"], null, c.norm_epsilon)
      : norm(x, w["transformer.ln_f.weight"], w["transformer.ln_f.bias"], c.norm_epsilon);
    const embedding = w[llama ? "model.embed_tokens.weight" : "transformer.wte.weight"];
    return linear(c.tied ? embedding : w["lm_head.weight"], final);
  }
}

// The model that the page holds and its tokenizer; its weights are read when it is first asked.
const inPage = {
  get there() {
    return document.getElementById("weights") !== null;
  },
  get description() {
    return (this.read ??= JSON.parse(document.getElementById("model").textContent));
  },
  load() {
    return (this.loading ??= this.make());
  },
  async make() {
    const { config, tensors, tokenizer } = this.description;
    const weights = await readWeights(document.getElementById("weights").textContent, tensors);
    return { model: new Model(config, weights), tokenizer: new Tokenizer(tokenizer) };
  },
};
