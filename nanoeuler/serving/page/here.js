// Served models that this page has loaded and computes itself: nothing is asked of the server then.
"use strict";

const PIECE = 4e6; // bytes of weights that are asked for at once
const READ_AT_ONCE = 16; // tokens of a prompt, before the page may draw again
const here = new Map(); // model → what the page has of it

// Load a model whose weights have so many bytes; `progress` is told the share that has arrived.
async function load(name, size, progress) {
  const address = `browser/${encodeURIComponent(name)}`;
  const described = await (await call(address)).json();
  const bytes = new Uint8Array(size);
  for (let first = 0; first < size; first += PIECE) {
    const last = Math.min(first + PIECE, size) - 1;
    const headers = { Range: `bytes=${first}-${last}` };
    const response = await call(`${address}/weights`, { headers });
    bytes.set(new Uint8Array(await response.arrayBuffer()), first);
    progress((last + 1) / size);
  }
  const { config, tokenizer, prompt, kernels, block } = described;
  const weights = (block ? fromBlocks : fromHalves)(bytes, described);
  const model = new Model(config, weights);
  await model.useWebGpu(kernels);
  const made = { model, tokenizer: new Tokenizer(tokenizer), prompt, done: Promise.resolve() };
  here.set(name, { ...made, kind: block ? ", its matrices in int8" : "" });
}

// Weights in bfloat16, one after another.
function fromHalves(bytes, { tensors }) {
  return named(widened(new Uint16Array(bytes.buffer)), tensors);
}

function widened(halves) {
  const numbers = new Float32Array(halves.length);
  const bits = new Uint32Array(numbers.buffer);
  halves.forEach((half, i) => (bits[i] = half << 16));
  return numbers;
}

// Vectors in bfloat16, then matrices in int8, whose blocks have a scale: see packing.py.
function fromBlocks(bytes, { tensors, vectors, block }) {
  const isVector = new Set(vectors);
  const narrow = tensors.filter(([name]) => isVector.has(name));
  const wide = tensors.filter(([name]) => !isVector.has(name));
  const count = (some) => some.reduce((sum, [, size]) => sum + size, 0);
  const start = 2 * count(narrow);
  const blocks = Math.ceil(count(wide) / block);
  const codes = new Int8Array(bytes.buffer, start, block * blocks);
  const scales = new Float32Array(bytes.slice(start + block * blocks).buffer);
  const numbers = Float32Array.from(codes, (code, i) => code * scales[Math.floor(i / block)]);
  const halves = new Uint16Array(bytes.buffer, 0, count(narrow));
  return { ...named(widened(halves), narrow), ...named(numbers, wide) };
}

// The choices of a reply, as the server's stream has them. A model writes one reply at a time.
async function* choicesHere(turn, name, signal) {
  const { temperature = 1, top_p = 1, max_tokens, seed, response_format } = turn.settings;
  if (response_format) throw new Error("a reply of a given form takes the server");
  const one = here.get(name);
  const before = one.done;
  let done;
  one.done = new Promise((end) => (done = end));
  await before;
  try {
    const { model, tokenizer } = one;
    const { context } = model.config;
    const prompt = promptOf(turn, name, one);
    model.rewind(0);
    for (const [i, id] of prompt.slice(0, -1).entries()) {
      model.read(id);
      if (i % READ_AT_ONCE === 0) await pause();
      signal.throwIfAborted();
    }
    const random = seed === undefined ? Math.random : dice(seed);
    const most = Math.min(max_tokens ?? Infinity, context - prompt.length);
    const reply = [];
    const decoder = new TextDecoder();
    let inCall = false;
    for (let id = prompt.at(-1); ; ) {
      const shares = softmax(await model.append(id));
      signal.throwIfAborted();
      const [result] = tokenizer.calls.length ? given(reply, tokenizer) : [];
      const ids = ranked(tokenizer.allowed, shares);
      id = result ?? draw(ids, shares, temperature, top_p, random);
      if (id === tokenizer.end) return;
      reply.push(id);
      const entry = (each) => ({
        token: new TextDecoder().decode(tokenizer.bytes[each]),
        bytes: [...tokenizer.bytes[each]],
        logprob: Math.log(shares[each]),
      });
      const written = entry(id);
      if (result !== undefined) written.logprob = null;
      else written.top_logprobs = ids.slice(0, ALTERNATIVES).map(entry);
      const isBracket = tokenizer.calls.includes(id);
      const bytes = isBracket || inCall ? [] : tokenizer.bytes[id];
      const ends = reply.length === most;
      const content = decoder.decode(Uint8Array.from(bytes), { stream: !ends });
      if (isBracket) inCall = id === tokenizer.calls[0];
      const finish_reason = ends ? "length" : null;
      yield { delta: { content }, logprobs: { content: [written] }, finish_reason };
      if (ends) return;
      await pause();
    }
  } finally {
    done();
  }
}

// The tokens of what was said, as in training: each turn begins with the token that ends a text.
// Where earlier turns do not fit, the oldest are left out.
function promptOf(turn, name, { model, tokenizer, prompt: [front, behind] }) {
  const { context } = model.config;
  for (let first = 0; ; first++) {
    const ids = continues(turn, name)
      ? [tokenizer.end, ...tokenizer.encode(turn.text)]
      : messages(turn, name, first).flatMap(({ role, content }) => (role === "user"
        ? [tokenizer.end, ...tokenizer.encode(front + content + behind)]
        : tokenizer.encode(content)));
    if (ids.length < context) return ids;
    if (first < turns.indexOf(turn)) continue;
    throw new Error(`${ids.length} tokens are too many: here it reads ${context} with its reply`);
  }
}

// ---- the controls

// A button that loads a model, or the word that it is here.
function hereOf({ id: name, nanoeuler: { browser: size } }) {
  if (typeof size === "string") return []; // it says why
  if (here.has(name)) return [make("span", { className: "here", textContent: "runs here" })];
  const textContent = `Run it here (${Number((size / 1e6).toPrecision(2))} MB)`;
  const title = "Load its weights into this page, which then answers without the server";
  const button = make("button", { type: "button", className: "small", title, textContent });
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      await load(name, size, (share) => {
        button.textContent = share < 1 ? `${Math.round(100 * share)} %` : "starts …";
      });
      listModels();
    } catch (error) {
      Object.assign(button, { disabled: false, textContent });
      field("status").textContent = error.message;
      if (error.status === 401) askForKey();
    }
    tellHere();
  });
  return [button];
}

// Which models are here, and what computes them.
function tellHere() {
  const told = [...here].map(([name, { model, kind }]) =>
    `${name} is in this page${kind}. ${model.computedBy}`);
  field("here").textContent = told.join(" ");
}
