// The page of `nanoeuler serve`: one prompt, answered by one or more models side by side.
"use strict";

const ALTERNATIVES = 5;
const MOST_INDENTED = 20; // levels of JSON
const MOST_READINGS = 6; // steps that are named; the others are counted
const WHERE = "Where does this come from?";
// The tokens around an expression for the calculator, as they show: [48/2=].
const BRACKETS = new Map([["<|reserved_4|>", "["], ["<|reserved_5|>", "=]"]]);
const field = (id) => document.getElementById(id);
const turns = []; // {text, mode, settings, replies: [{model, text, tokens, …}]}
let models = [];
let running = []; // AbortController of each reply that is being written
const changed = new Set(); // replies that are not shown as they are

function make(name, properties = {}, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

// ---- the API

async function call(path, options = {}) {
  const key = field("key").value;
  const headers = { "Content-Type": "application/json", ...options.headers };
  if (key) headers.Authorization = `Bearer ${key}`;
  const response = await fetch(path, { ...options, headers });
  if (response.ok) return response;
  const answer = await response.json().catch(() => ({}));
  const error = new Error(answer.error?.message ?? `the server answered ${response.status}`);
  error.code = answer.error?.code;
  error.status = response.status;
  throw error;
}

const pause = () => new Promise((done) => setTimeout(done));

// The choices of a stream. Between two pieces of it the page may draw and take clicks.
async function* choicesOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the connection ended before the reply");
    const parts = (held + value).split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      yield* event.choices;
    }
    await pause();
  }
}

// Tokens of both kinds of stream as {text, logprob, top: [[text, logprob], …]}. Results of the
// calculator have no logprob, and in a chat stand apart with their places.
function tokensOf(choice) {
  const scores = choice.logprobs;
  if (!scores) return [];
  if (scores.content) {
    const entries = [...scores.content];
    for (const result of choice.nanoeuler?.results ?? []) entries.splice(result.index, 0, result);
    return entries.map(({ bytes, token, logprob, top_logprobs: top = [] }) => ({
      bytes, text: token, logprob, top: top.map((entry) => [entry.token, entry.logprob]),
    }));
  }
  return scores.tokens.map((text, i) => ({
    text,
    logprob: scores.token_logprobs[i],
    top: Object.entries(scores.top_logprobs[i] ?? {}).sort((a, b) => b[1] - a[1]),
  }));
}

// ---- what is asked

const mode = () => document.querySelector("[name=mode]:checked").value;
const chosen = () => [...field("models").querySelectorAll("input:checked")].map((box) => box.value);

function settings() {
  const number = (id) => (field(id).value === "" ? undefined : Number(field(id).value));
  return {
    temperature: number("temperature"),
    top_p: number("top_p"),
    max_tokens: number("max_tokens"),
    seed: number("seed"),
    response_format: field("json").checked ? { type: "json_object" } : undefined,
    stream: true,
  };
}

// The messages up to a turn, as one model has seen them.
function messages(turn, model, first) {
  const before = field("history").checked ? turns.slice(first, turns.indexOf(turn)) : [];
  const told = before.flatMap(({ text, replies }) => {
    const reply = replies.find((each) => each.model === model);
    return reply?.text ? [user(text), { role: "assistant", content: reply.text }] : [];
  });
  return [...told, user(turn.text)];
}

const user = (content) => ({ role: "user", content });

// A base model continues the text, also beside models that answer it.
const continues = (turn, model) => turn.mode === "text" || !about(model).chat;

function request(turn, model, first) {
  const shared = { ...turn.settings, model };
  if (continues(turn, model)) {
    return ["v1/completions", { ...shared, prompt: turn.text, logprobs: ALTERNATIVES }];
  }
  const told = { messages: messages(turn, model, first), logprobs: true };
  return ["v1/chat/completions", { ...shared, ...told, top_logprobs: ALTERNATIVES }];
}

// Where earlier turns do not fit the context, the oldest are left out.
async function open(turn, model, signal) {
  const earlier = field("history").checked && !continues(turn, model) ? turns.indexOf(turn) : 0;
  for (let first = 0; ; first++) {
    const [path, body] = request(turn, model, first);
    try {
      return await call(path, { method: "POST", body: JSON.stringify(body), signal });
    } catch (error) {
      if (error.code !== "context_length_exceeded" || first >= earlier) throw error;
    }
  }
}

// ---- what is shown

function addTurn(text) {
  const turn = { text, mode: mode(), settings: settings(), replies: [] };
  const said = make("p", { className: "said", textContent: text });
  turn.row = make("div", { className: "replies" });
  field("turns").append(make("section", {}, turn.mode === "chat" ? said : "", turn.row));
  turns.push(turn);
  return turn;
}

function addReply(turn, model) {
  const textElement = make("div", { className: "text", tabIndex: 0 });
  const speed = make("span", { className: "speed" });
  const again = make("button", { type: "button", className: "small", textContent: "Regenerate" });
  const where = make("button", { type: "button", className: "small where", hidden: true });
  const origins = make("section", { className: "origins", ariaLabel: "Where this comes from" });
  const reply = { model, textElement, speed, again, where, origins };
  again.addEventListener("click", () => {
    turn.settings = settings();
    write(turn, reply);
  });
  where.addEventListener("click", () => {
    if (origins.hidden) showOrigins(reply);
    else hideOrigins(reply);
  });
  turn.replies.push(reply);
  turn.row.append(make("article", { className: "reply" }, make("h2", { textContent: model }),
    textElement, make("footer", {}, speed, again, about(model).traced ? where : ""), origins));
  return reply;
}

const about = (model) => models.find(({ id }) => id === model).nanoeuler;

// A token may hold a part of a character: the part shows with the token that completes it.
function take(reply, choice) {
  reply.text += choice.delta?.content ?? choice.text ?? "";
  for (const token of tokensOf(choice)) {
    const bracket = BRACKETS.get(token.text);
    if (bracket || reply.inCall) token.kind = "call";
    else token.kind = token.logprob === null ? "result" : "plain";
    if (bracket) {
      token.shown = bracket === "[" || reply.inCall ? bracket : ""; // one that ends no call
      reply.inCall = bracket === "[";
    } else {
      const bytes = token.bytes ?? bytesOf(token.text);
      token.shown = reply.decoder.decode(new Uint8Array(bytes), { stream: true });
    }
    token.size = token.kind === "call" ? 0 : token.shown.length; // in the reply's text
    reply.tokens.push(token);
    reply.last = performance.now();
    reply.first ??= reply.last;
  }
  if (choice.finish_reason === "length") reply.end = "cut off at the limit";
}

function bytesOf(text) {
  if (!/^bytes:(\\x[0-9a-f]{2})+$/.test(text)) return new TextEncoder().encode(text);
  return text.slice(6).split("\\x").slice(1).map((pair) => parseInt(pair, 16));
}

async function write(turn, reply) {
  const control = new AbortController();
  running.push(control);
  update();
  const began = performance.now();
  Object.assign(reply, { text: "", tokens: [], drawn: 0, began, first: undefined, end: "" });
  reply.decoder = new TextDecoder();
  reply.inCall = false; // is a call of the calculator open?
  hideOrigins(reply);
  reply.where.hidden = true;
  reply.textElement.replaceChildren();
  reply.textElement.classList.remove("json");
  if (continues(turn, reply.model)) {
    reply.textElement.append(make("span", { className: "given", textContent: turn.text }));
  }
  reply.speed.textContent = "…";
  reply.again.disabled = true;
  try {
    const choices = here.has(reply.model) ? choicesHere(turn, reply.model, control.signal)
      : choicesOf(await open(turn, reply.model, control.signal));
    for await (const choice of choices) {
      take(reply, choice);
      showSoon(reply);
    }
  } catch (error) {
    if (error.name === "AbortError") reply.end = "stopped";
    else reply.end = make("span", { className: "error", textContent: error.message });
    if (error.status === 401) askForKey();
  } finally {
    running = running.filter((each) => each !== control);
    tellHere();
    reply.again.disabled = false;
    reply.where.hidden = !reply.text;
    if (!continues(turn, reply.model)) layOut(reply);
    update();
    showSoon(reply);
  }
}

// Replies that changed are drawn together, once for each frame of the display.
function showSoon(reply) {
  if (!changed.size) requestAnimationFrame(showChanged);
  changed.add(reply);
}

function showChanged() {
  const page = document.documentElement;
  const atEnd = page.scrollHeight - page.scrollTop - innerHeight < 200;
  for (const reply of changed) {
    reply.textElement.append(...reply.tokens.slice(reply.drawn).map(spanOf));
    reply.drawn = reply.tokens.length;
    report(reply);
  }
  changed.clear();
  if (atEnd) scrollTo(0, page.scrollHeight);
}

function spanOf(token) {
  const className = `token ${token.kind}`;
  const span = make("span", { className, textContent: token.shown, token });
  span.style.setProperty("--doubt", Math.min(0.6, -token.logprob / 8).toFixed(2));
  return span;
}

// A reply that is a whole JSON object or array is shown with a line for each of its values.
function layOut(reply) {
  const tokens = reply.tokens.filter(({ kind }) => kind !== "call");
  const laidOut = indented(tokens.map(({ shown }) => shown).join(""));
  if (!laidOut) return;
  for (const token of tokens) token.shown = laidOut.splice(0, token.shown.length).join("");
  for (const span of reply.textElement.querySelectorAll(".token")) {
    span.textContent = span.token.shown;
  }
  reply.textElement.classList.add("json");
  hideAlternatives(); // their token has moved
}

// What each character of a JSON object or array shows as: itself, behind a line break where a value
// begins, or nothing. Such a break takes the place of white space. Undefined for other texts.
function indented(text) {
  try {
    if (!(JSON.parse(text) instanceof Object)) return undefined;
  } catch {
    return undefined;
  }
  const shown = [];
  let [last, depth, space] = ["", 0, undefined];
  for (const part of text.match(/"[^"\\]*(?:\\.[^"\\]*)*"|\s+|[^\s"]/g)) {
    const at = shown.length;
    shown.push(...part.split(""));
    if (/^\s/.test(part)) {
      space = at;
      shown.fill("", at);
      continue;
    }
    const [opened, closes] = [/^[{[]$/.test(last), /^[}\]]$/.test(part)];
    if (closes) depth--;
    let gap = last === ":" ? " " : "";
    if (last === "," || opened !== closes) gap = `\n${"  ".repeat(Math.min(depth, MOST_INDENTED))}`;
    shown[space ?? at] = gap + shown[space ?? at];
    if (/^[{[]$/.test(part)) depth++;
    [last, space] = [part, undefined];
  }
  return shown;
}

function report({ tokens, began, first, last, end, speed }) {
  const count = tokens.length;
  const said = [];
  if (count) {
    said.push(`${count} ${count === 1 ? "token" : "tokens"}`);
    said.push(`first after ${Math.round(first - began)} ms`);
    const lasted = last - first;
    // a short reply comes in one piece, which says nothing of its speed
    if (lasted > 50) said.push(`${Math.round((1000 * (count - 1)) / lasted)} tokens/s`);
  }
  speed.replaceChildren(said.join(" · "), count && end ? " · " : "", end);
}

function update() {
  const busy = running.length > 0;
  field("stop").hidden = !busy;
  field("send").hidden = busy;
  field("status").textContent = busy ? "Writing …" : "";
}

// ---- alternatives of a token

function showAlternatives(span) {
  const { token } = span;
  const box = field("alternatives");
  for (const other of document.querySelectorAll(".token.shown")) other.classList.remove("shown");
  span.classList.add("shown");
  const listed = token.top.some(([text]) => text === token.text)
    ? token.top : [...token.top, [token.text, token.logprob]];
  const rows = listed.map(([text, logprob]) => {
    const share = Math.exp(logprob);
    const row = make("tr", {}, make("td", { textContent: visible(text) }),
      make("td", { textContent: `${(100 * share).toFixed(1)} %` }),
      make("td", {}, make("meter", { value: share })));
    if (text === token.text) row.className = "chosen";
    return row;
  });
  const table = make("table", {}, make("tbody", {}, ...rows));
  if (token.kind === "call") table.createCaption().textContent = "In a call of the calculator";
  box.replaceChildren(token.kind === "result" ? "The calculator's result, not sampled" : table);
  box.hidden = false;
  const at = [...span.getClientRects()].at(-1); // behind a line break that it may begin with
  const left = Math.min(at.left, document.documentElement.clientWidth - box.offsetWidth - 8);
  const above = at.bottom + box.offsetHeight + 8 > innerHeight;
  box.style.left = `${scrollX + Math.max(8, left)}px`;
  box.style.top = `${scrollY + (above ? at.top - box.offsetHeight - 4 : at.bottom + 4)}px`;
}

function visible(text) {
  if (BRACKETS.has(text)) return `${BRACKETS.get(text)} of a call`;
  return text.replace(/ /g, "␣").replace(/\n/g, "⏎").replace(/\t/g, "⇥");
}

function hideAlternatives() {
  field("alternatives").hidden = true;
  for (const span of document.querySelectorAll(".token.shown")) span.classList.remove("shown");
}

// The keyboard walks through the tokens of a reply with the arrows, once its text has the focus.
function walk(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const text = event.target.closest?.(".text");
  if (!step || !text) return;
  event.preventDefault();
  const spans = [...text.querySelectorAll(".token")];
  const now = spans.findIndex((span) => span.classList.contains("shown"));
  const next = now < 0 ? (step > 0 ? 0 : spans.length - 1) : now + step;
  if (spans[next]) showAlternatives(spans[next]);
}

// ---- where a reply comes from

// The words that were read are marked where browsers have such marks, and listed in all.
const marks = globalThis.Highlight && { copied: new Highlight(), pointed: new Highlight() };
for (const name in marks) CSS.highlights.set(name, marks[name]);

async function showOrigins(reply) {
  const { where, origins, text, tokens, model } = reply;
  where.disabled = true;
  where.textContent = "Searching …";
  let shown;
  try {
    const response = await call("trace", { method: "POST", body: JSON.stringify({ model, text }) });
    const found = await response.json();
    if (reply.tokens === tokens) shown = originsOf(reply, found); // it marks words
  } catch (error) {
    shown = [make("p", { className: "error", textContent: error.message })];
    if (error.status === 401) askForKey();
  }
  where.disabled = false;
  if (reply.tokens !== tokens) return; // it has been written again
  where.textContent = "Hide where it comes from";
  where.ariaExpanded = true;
  origins.replaceChildren(...shown);
  origins.hidden = false;
}

function hideOrigins({ where, origins, ranges = [] }) {
  where.textContent = WHERE;
  where.ariaExpanded = false;
  origins.hidden = true;
  origins.replaceChildren();
  for (const range of ranges.splice(0)) marks?.copied.delete(range);
  marks?.pointed.clear();
}

function originsOf(reply, found) {
  const ranges = found.spans.map(({ characters }) => characters.map((at) => rangeOf(reply, ...at)));
  reply.ranges = ranges.flat();
  for (const range of reply.ranges) marks?.copied.add(range);
  const { share, least_tokens: least } = found.memorised;
  const memorised = `${Math.round(100 * share)} % of the reply is memorised`;
  const [all, listed] = [found.spans_found, found.spans.length];
  const which = all > listed ? `The ${listed} rarest of ${all} passages` : "These words";
  const told = listed ? `${which} stand word for word in what ${reply.model} learned from.`
    : `No eight tokens in a row of this reply stand in what ${reply.model} learned from.`;
  return [
    make("p", { textContent: told }),
    make("ol", {}, ...found.spans.map((span, i) => spanEntry(span, ranges[i]))),
    make("p", { textContent: `${memorised}, in passages of ${least} tokens or more.` }),
  ];
}

function spanEntry(span, ranges) {
  const times = Object.entries(span.times).filter(([, count]) => count)
    .map(([name, count]) => `${count.toLocaleString("en")}\u00a0×\u00a0in ${name}`);
  const entry = make("li", {},
    make("q", { textContent: span.text.trim() }),
    make("span", { textContent: ` ${span.tokens} tokens, ${times.join(", ")}` }),
    make("ul", {}, ...span.documents.map(documentEntry)));
  entry.addEventListener("pointerenter", () => ranges.forEach((each) => marks?.pointed.add(each)));
  entry.addEventListener("pointerleave", () => marks?.pointed.clear());
  return entry;
}

function documentEntry(found) {
  const { title, author, address, licence, readings } = found;
  const web = /^https?:/.test(address);
  const link = web ? { href: address, target: "_blank", rel: "noreferrer" } : {};
  const place = make(web ? "a" : "span", { ...link, textContent: address ?? "" });
  const named = [title, author, address && place, licence].filter(Boolean);
  return make("li", {}, `${found.in}: `, ...named.flatMap((name, i) => (i ? [" · ", name] : name)),
    make("br"), make("span", { className: "read", textContent: readAt(found.in, readings) }));
}

function readAt(collection, readings) {
  if (!readings.length) return collection === "held-out text" ? "held out" : "not read";
  const named = readings.slice(0, MOST_READINGS);
  const more = readings.length - named.length;
  const steps = named.map(({ step, epoch }) => `${step} (epoch ${epoch})`).join(", ");
  return `read by ${readings[0].stage} at step ${steps}${more ? ` and ${more} more` : ""}`;
}

// The range of the page that shows some code points of a reply.
function rangeOf({ text, textElement }, start, stop) {
  const range = new Range();
  const points = [...text];
  const ends = [start, stop].map((end) => points.slice(0, end).join("").length);
  let at = 0;
  for (const { token: { size }, firstChild: node } of textElement.querySelectorAll(".token")) {
    if (!size || !node) continue;
    const [from, to] = ends.map((end) => end - at);
    const same = node.length === size; // and not JSON that is laid out
    if (from >= 0 && from < size) range.setStart(node, same ? from : 0);
    if (to > 0 && to <= size) range.setEnd(node, same ? to : node.length);
    at += size;
  }
  return range;
}

// ---- the controls

function send() {
  const text = field("text").value;
  if (!text.trim() || running.length) return;
  if (!chosen().length) {
    field("settings").open = true;
    field("status").textContent = "Choose a model first.";
    return;
  }
  const turn = addTurn(text);
  if (turn.mode === "chat") field("text").value = "";
  for (const model of chosen()) write(turn, addReply(turn, model));
  scrollTo(0, document.documentElement.scrollHeight);
}

function askForKey() {
  field("settings").open = true;
  field("key-field").hidden = false;
  field("key").focus();
}

function listModels() {
  const chats = mode() === "chat";
  const before = new Set(chosen());
  const usual = (model) => !before.size || before.has(model.id);
  const boxes = models.flatMap((model) => {
    const box = make("input", { type: "checkbox", value: model.id, checked: usual(model) });
    const { parameters, context, chat, browser } = model.nanoeuler;
    const kind = chat ? "answers" : "a base model, which continues text";
    const millions = (parameters / 1e6).toPrecision(3);
    const kept = typeof browser === "string" ? `; not in the page: ${browser}` : "";
    const title = `${millions} M parameters, context ${context}; ${kind}${kept}`;
    return [make("label", { title }, box, model.id), ...hereOf(model)];
  });
  field("models").replaceChildren(make("legend", { textContent: "Models" }), ...boxes);
  field("text").placeholder = chats ? "Ask something" : "A text to be continued";
  field("history").parentElement.hidden = !chats;
  field("json").parentElement.hidden = !chats || !models.some(({ nanoeuler }) => nanoeuler.forms);
  welcome();
}

// What a page says that nobody has written in yet.
function welcome() {
  const who = chosen().join(", ").replace(/, ([^,]*)$/, " and $1");
  const deed = mode() === "chat" ? "will answer" : "will go on with your text";
  const tap = "Tap a word of a reply to see what else was likely.";
  field("welcome").textContent = who && `${who} ${deed}. ${tap}`;
}

async function start() {
  try {
    models = (await (await call("v1/models")).json()).data;
    field("status").textContent = "";
  } catch (error) {
    field("status").textContent = error.message;
    if (error.status === 401) askForKey();
    return;
  }
  const chat = document.querySelector("[value=chat]");
  if (!models.some((model) => model.nanoeuler.chat)) {
    chat.disabled = true;
    document.querySelector("[value=text]").checked = true;
  }
  listModels();
}

field("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
field("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
field("stop").addEventListener("click", () => running.forEach((control) => control.abort()));
field("clear").addEventListener("click", () => {
  running.forEach((control) => control.abort());
  turns.length = 0;
  field("turns").replaceChildren();
  for (const name in marks) marks[name].clear();
  hideAlternatives();
  field("text").focus();
});
field("mode").addEventListener("change", listModels);
field("models").addEventListener("change", welcome);
field("key").addEventListener("change", () => {
  sessionStorage.setItem("key", field("key").value);
  start();
});
field("tint").addEventListener("change", () => {
  document.body.classList.toggle("tint", field("tint").checked);
});
document.addEventListener("pointerover", (event) => {
  if (event.pointerType !== "mouse") return;
  if (event.target.classList?.contains("token")) showAlternatives(event.target);
  else hideAlternatives();
});
document.addEventListener("click", (event) => {
  if (event.target.classList?.contains("token")) showAlternatives(event.target);
  else if (!event.target.closest("#alternatives")) hideAlternatives();
});
document.addEventListener("keydown", (event) => {
  walk(event);
  if (event.key === "Escape") {
    hideAlternatives();
    running.forEach((control) => control.abort());
  }
});
field("settings").open = innerWidth >= 900;
field("key").value = sessionStorage.getItem("key") ?? "";
start();
