// The model that lies in the page.
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
  return named(numbers, tensors);
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
    const { config, tensors, tokenizer, kernels } = this.description;
    const weights = await readWeights(document.getElementById("weights").textContent, tensors);
    const model = new Model(config, weights);
    await model.useWebGpu(kernels);
    return { model, tokenizer: new Tokenizer(tokenizer) };
  },
};
