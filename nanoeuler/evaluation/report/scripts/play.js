// Ask the model of this page, and look inside: what each token cost and what else was likely, where
// the heads looked, and what the model would have said after each Euler step.
"use strict";

const ALTERNATIVES = 8;
const TOP_P = 0.95;

class Playground {
  constructor(section) {
    this.form = section.querySelector("form");
    this.inside = section.querySelector(".inside");
    this.strip = section.querySelector(".strip");
    this.panel = section.querySelector(".panel");
    this.status = section.querySelector("output");
    this.tokens = []; // {id, text, kind, likely: [[id, share], …], bits, trace}
    this.computedBy = section.querySelector(".computed");
    this.done = Promise.resolve(); // what is being written
    this.layer = this.head = this.depth = 0; // which ones are shown; of depth, Euler steps
    this.form.hidden = false;
    this.listen();
  }

  async open() {
    if (this.model) return;
    this.status.textContent = "Reading the weights …";
    await pause();
    Object.assign(this, await inPage.load());
    this.depth = 2 * this.model.config.layers;
    this.computedBy.textContent = this.model.computedBy;
  }

  // Write something else: what is being written ends first.
  begin(work) {
    const run = (this.run = {});
    this.done = this.done.catch(() => {}).then(() => (this.run === run ? work(run) : undefined));
    return this.done;
  }

  // ---- reading and writing

  // Read a token; `kind` is template, said, answer, or result: of the calculator.
  async append(id, kind) {
    const trace = {};
    const token = { id, kind, likely: [], bits: 0, trace, shares: this.next };
    if (this.next) {
      token.likely = this.likeliest(this.next);
      token.bits = -Math.log2(this.next[id]);
    }
    this.next = softmax(await this.model.append(id, trace));
    this.computedBy.textContent = this.model.computedBy;
    this.tokens.push(token);
    const texts = this.tokenizer.texts(this.tokens.map((each) => each.id));
    token.text = id === this.tokenizer.end ? "" : this.bracket(id) ?? texts.at(-1);
  }

  // How a call of the calculator shows: [48/2=]24.
  bracket(id) {
    return ["[", "=]"][this.tokenizer.calls.indexOf(id)];
  }

  // The next token of a result of the calculator, if one is to follow.
  get result() {
    const ids = this.tokens.filter(({ kind }) => /answer|result/.test(kind)).map(({ id }) => id);
    return this.tokenizer.calls.length ? given(ids, this.tokenizer)[0] : undefined;
  }

  likeliest(shares, count = ALTERNATIVES) {
    return ranked(shares.keys(), shares).slice(0, count).map((id) => [id, shares[id]]);
  }

  choose(temperature) {
    return draw(ranked(this.tokenizer.allowed, this.next), this.next, temperature, TOP_P);
  }

  async answer(run) {
    await this.open();
    const [before, behind] = inPage.description.prompt;
    const said = this.form.prompt.value;
    const ids = this.tokenizer.encode(before + said + behind);
    const kinds = this.kindsOf(ids, before, said);
    if (ids.length >= this.limit) {
      const most = `it reads ${this.limit} at once, with its answer`;
      this.status.textContent = `${ids.length} tokens are too many: ${most}.`;
      return;
    }
    this.rewind(0);
    await this.append(this.tokenizer.end, "template");
    for (const [i, id] of ids.entries()) {
      if (this.run !== run) return;
      await this.append(id, kinds[i]);
    }
    await this.write(run);
  }

  // Which tokens are the template's: by the bytes that they stand for.
  kindsOf(ids, before, said) {
    const size = (text) => new TextEncoder().encode(text).length;
    const [from, to] = [size(before), size(before) + size(said)];
    let at = 0;
    return ids.map((id) => {
      at += this.tokenizer.bytes[id].length;
      return at > from && at <= to ? "said" : "template";
    });
  }

  async write(run) {
    const { temperature, most, stop } = this.form;
    const began = performance.now();
    stop.hidden = false;
    this.status.textContent = "Writing …";
    let count = 0;
    let end = "cut off at the limit";
    while (count < Number(most.value)) {
      if (this.tokens.length >= this.limit) {
        end = `all of the ${this.limit} tokens that it reads at once are taken`;
        break;
      }
      const result = this.result;
      const id = result ?? this.choose(Number(temperature.value) || 0);
      if (id === this.tokenizer.end) {
        end = "ended by itself";
        break;
      }
      await this.append(id, result === undefined ? "answer" : "result");
      count++;
      this.show();
      await pause();
      if (this.run !== run) return;
    }
    stop.hidden = true;
    const last = this.tokens.at(-1);
    if (last.kind === "answer" && !this.bracket(last.id)) {
      last.text = this.tokenizer.texts(this.tokens.map(({ id }) => id), true).at(-1);
      this.strip.lastChild.textContent = last.text;
    }
    const speed = (1000 * count) / (performance.now() - began);
    this.status.textContent = `${count} tokens, ${end}, ${Math.round(speed)} tokens/s`;
    this.select(this.tokens.findIndex(({ kind }) => kind === "answer"));
  }

  // The tokens that it was trained to read at once; beyond them it was never tried.
  get limit() {
    return this.model.config.context;
  }

  rewind(length) {
    this.model.rewind(length);
    this.next = this.tokens[length]?.shares;
    this.tokens.length = length;
    this.selected = undefined;
    this.strip.replaceChildren();
  }

  // Take another token in the selected place, and go on from there.
  async branch(id, place, run) {
    this.rewind(place);
    if (id !== this.tokenizer.end) await this.append(id, "answer");
    this.show();
    if (id !== this.tokenizer.end) await this.write(run);
  }

  // ---- the tokens

  get view() {
    return this.inside.querySelector("[name=view]:checked").value;
  }

  show() {
    this.inside.hidden = false;
    while (this.strip.childElementCount < this.tokens.length) {
      const place = this.strip.childElementCount;
      const { text, kind } = this.tokens[place];
      const span = make("span", { className: `token ${kind}`, textContent: text });
      span.addEventListener("click", () => this.select(place));
      this.strip.append(span);
    }
    this.colour();
  }

  async select(place) {
    if (place < 0 || place >= this.tokens.length) return;
    this.selected = place;
    this.colour();
    this.strip.children[place].scrollIntoView({ block: "nearest" });
    const { view } = this;
    const panel = await this[`${view}Panel`](this.tokens[place]);
    if (this.selected === place && this.view === view) this.panel.replaceChildren(...panel);
  }

  // Bits as red, but of template and results, which no stage learns; attention as blue, beside the
  // token that is looked at most.
  colour() {
    const selected = this.tokens[this.selected];
    const looked = selected?.trace.attention[this.layer][this.head] ?? [];
    const most = Math.max(...looked);
    this.strip.classList.toggle("attention", this.view === "attention");
    [...this.strip.children].forEach((span, place) => {
      const token = this.tokens[place];
      const attention = (looked[place] ?? 0) / most;
      const bits = /template|result/.test(token.kind) ? 0 : Math.min(1, token.bits / 8);
      const tint = { bits, attention, depth: 0 }[this.view];
      span.style.setProperty("--tint", `${Math.round(70 * tint)}%`);
      span.style.setProperty("--hue", this.view === "attention" ? "var(--s0)" : "var(--s4)");
      span.classList.toggle("selected", place === this.selected);
    });
  }

  // ---- what is said of the selected token

  spelled(id) {
    if (id === this.tokenizer.end) return "end";
    if (this.bracket(id)) return this.bracket(id);
    return visible(new TextDecoder().decode(this.tokenizer.bytes[id]));
  }

  bitsPanel(token) {
    const place = this.selected;
    if (!token.likely.length) return [make("p", { textContent: "The start of the text." })];
    const listed = token.likely.some(([id]) => id === token.id)
      ? token.likely : [...token.likely, [token.id, token.shares[token.id]]];
    const rows = listed.map(([id, share]) => {
      const take = button(this.spelled(id), "Take this one and go on", () =>
        this.begin((run) => this.branch(id, place, run)));
      const row = make("tr", {}, make("td", {}, take), ...shareCells(share));
      if (id === token.id) row.className = "chosen";
      return row;
    });
    const title = `${this.spelled(token.id)} cost ${token.bits.toFixed(2)} bits. Likely were:`;
    const hint = "Choose one, and the model goes on from there.";
    return [make("p", { textContent: title }), make("table", {}, make("tbody", {}, ...rows)),
      make("p", { className: "note", textContent: hint })];
  }

  // A list from which the layer or the head is chosen.
  chooser(key, count) {
    const option = (_, i) => make("option", { value: i, textContent: i + 1 });
    const list = make("select", {}, ...Array.from({ length: count }, option));
    list.value = this[key];
    list.addEventListener("change", async () => {
      this[key] = Number(list.value);
      await this.select(this.selected);
      this.panel.querySelector(`[data-key=${key}]`).focus();
    });
    list.dataset.key = key;
    return make("label", {}, `${key} `, list);
  }

  attentionPanel(token) {
    const { config } = this.model;
    const shares = token.trace.attention[this.layer][this.head];
    const rows = this.likeliest(shares).map(([place, share]) => {
      const distance = place === this.selected ? "itself" : `${this.selected - place} back`;
      return make("tr", {}, make("td", { textContent: this.spelled(this.tokens[place].id) }),
        make("td", { className: "muted", textContent: distance }), ...shareCells(share));
    });
    const layer = this.chooser("layer", config.layers);
    return [
      make("div", { className: "row" }, layer, this.chooser("head", config.heads)),
      make("p", { textContent: `From ${this.spelled(token.id)} the head looks at:` }),
      make("table", {}, make("tbody", {}, ...rows)),
    ];
  }

  // The logit lens (nostalgebraist 2020): the final norm and the head, after each Euler step.
  async depthPanel(token) {
    const logits = await this.model.lens(token.trace.points);
    const steps = logits.map((each) => this.likeliest(softmax(each), 3));
    const half = (at) => `layer ${Math.ceil(at / 2)}, ${at % 2 ? "attention" : "MLP"}`;
    const rows = steps.map((likely, at) => {
      const cells = likely.map(([id, share]) => {
        const word = make("code", { textContent: this.spelled(id) });
        const cell = make("td", {}, word, ` ${Math.round(100 * share)} %`);
        cell.style.setProperty("--tint", `${Math.round(60 * share)}%`);
        return cell;
      });
      const name = at === 0 ? "embedding" : half(at);
      const row = make("tr", {}, make("th", { scope: "row", textContent: name }), ...cells);
      row.classList.toggle("chosen", at === this.depth);
      return row;
    });
    const slider = make("input", { type: "range", min: 0, max: steps.length - 1 });
    slider.value = this.depth;
    slider.setAttribute("aria-label", "Euler steps taken");
    const sentence = make("p");
    const tell = () => {
      this.depth = Number(slider.value);
      const [[id, share]] = steps[this.depth];
      rows.forEach((row, at) => row.classList.toggle("chosen", at === this.depth));
      const taken = `After ${this.depth} of ${steps.length - 1} Euler steps`;
      sentence.textContent = `${taken} it would say ${this.spelled(id)} (${percent(share)}).`;
    };
    slider.addEventListener("input", tell);
    tell();
    const table = make("table", {}, make("tbody", {}, ...rows));
    return [slider, sentence, make("div", { className: "scroll lens" }, table)];
  }

  // ---- the controls

  listen() {
    const { form, strip } = this;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.begin((run) => this.answer(run));
    });
    form.prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      form.requestSubmit();
    });
    for (const example of form.querySelectorAll(".examples button")) {
      example.addEventListener("click", () => {
        form.prompt.value = example.value;
        this.begin((run) => this.answer(run));
      });
    }
    form.stop.addEventListener("click", () => {
      this.run = {};
      form.stop.hidden = true;
      this.status.textContent = "stopped";
    });
    this.inside.addEventListener("change", (event) => {
      if (event.target.name === "view") this.select(this.selected ?? 0);
    });
    strip.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      this.select((this.selected ?? -1) + step);
    });
  }
}

const pause = () => new Promise((done) => setTimeout(done));

const shareCells = (share) => [
  make("td", { className: "number", textContent: percent(share) }),
  make("td", {}, make("meter", { value: share })),
];

if (inPage.there) new Playground(document.getElementById("play"));
