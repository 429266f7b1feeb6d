// Charts: the values under the pointer, zoom into a stretch, a logarithmic axis, CSV.
// The page brings every chart drawn (charts.py); a chart is drawn again when its view changes.
"use strict";

const NEAR_ZERO = 1e-9;

// About five round ticks, 1, 2 or 5 times a power of ten apart, around the range.
function ticksAround(low, high) {
  if (high <= low) [low, high] = [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  const raw = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((multiple) => multiple * power >= raw * 0.999) * power;
  const ticks = [];
  for (let i = Math.floor(low / step + NEAR_ZERO); i <= Math.ceil(high / step - NEAR_ZERO); i++) {
    ticks.push(i * step);
  }
  return ticks;
}

// 1, 2 and 5 times the powers of ten that enclose the range; the powers alone where it is wide.
function logTicksAround(low, high) {
  const ticks = [];
  const last = Math.ceil(Math.log10(high) - NEAR_ZERO);
  for (let power = Math.floor(Math.log10(low) + NEAR_ZERO); power <= last; power++) {
    ticks.push(...[1, 2, 5].map((digit) => digit * 10 ** power));
  }
  const first = ticks.findLastIndex((tick) => tick <= low * (1 + NEAR_ZERO));
  const end = ticks.findIndex((tick) => tick >= high * (1 - NEAR_ZERO));
  const enclosing = ticks.slice(first, Math.max(end, first + 1) + 1);
  return enclosing.length <= 8 ? enclosing : enclosing.filter((_, i) => (first + i) % 3 === 0);
}

function tickLabel(value) {
  const size = Math.abs(value);
  if (size < 1e-12) return "0";
  for (const [limit, unit, letter] of [[1e9, 1e9, "G"], [1e6, 1e6, "M"], [1e4, 1e3, "k"]]) {
    if (size >= limit) return `${Number((value / unit).toPrecision(3))}\u202f${letter}`;
  }
  const plain = Number(value.toPrecision(4));
  return size < 0.01 ? plain.toExponential().replace("+", "") : String(plain);
}

class Chart {
  constructor(figure) {
    this.figure = figure;
    this.svg = figure.querySelector("svg");
    Object.assign(this, embedded(figure)); // title, x_label, series, box, x, y, log, from_zero
    this.whole = { x: this.x, log: this.log };
    this.tip = make("div", { className: "tip", hidden: true });
    this.tip.setAttribute("role", "status");
    figure.append(this.tip);
    this.addTools();
    this.svg.tabIndex = 0;
    this.svg.setAttribute("aria-label", `${this.title}. Arrows read values, + and − zoom.`);
    this.listen();
  }

  addTools() {
    const values = this.series.flatMap((one) => [...this.valuesOf(one, -Infinity, Infinity)]);
    this.logButton = button("log", "Logarithmic axis (l)", () => this.toggleLog());
    this.logButton.setAttribute("aria-pressed", this.log);
    this.logButton.hidden = !values.every((value) => value > 0);
    this.wholeButton = button("whole", "Show all of it (0)", () => this.show(this.whole.x));
    this.wholeButton.hidden = true;
    const save = () => saveCsv(this.rows(), runName(), this.title);
    const buttons = [this.logButton, button("CSV", "Save the numbers", save), this.wholeButton];
    const tools = make("span", { className: "tools" }, ...buttons);
    this.figure.querySelector("figcaption").append(tools);
  }

  // All values of y that a series shows from x = low to x = high.
  *valuesOf(one, low, high) {
    if (one.level !== null) yield one.level;
    for (let i = 0; i < one.x.length; i++) {
      if (one.x[i] < low || one.x[i] > high) continue;
      yield one.y[i];
      if (one.low) yield* [one.low[i], one.high[i]];
    }
  }

  rows() {
    const all = [...new Set(this.series.flatMap((one) => one.x))].sort((a, b) => a - b);
    const columns = [[this.x_label, ...all]];
    for (const one of this.series) {
      const at = new Map(one.x.map((x, i) => [x, i]));
      const column = (values) => all.map((x) => values[at.get(x)]);
      columns.push([one.label, ...(one.level === null ? column(one.y) : all.map(() => one.level))]);
      if (!one.low) continue;
      columns.push([`${one.label}, lower quartile`, ...column(one.low)]);
      columns.push([`${one.label}, upper quartile`, ...column(one.high)]);
    }
    return columns[0].map((_, i) => columns.map((column) => column[i]));
  }

  // ---- the view

  toggleLog() {
    this.log = !this.log;
    this.logButton.setAttribute("aria-pressed", this.log);
    this.show(this.x);
  }

  show([low, high]) {
    this.x = [Math.max(low, this.whole.x[0]), Math.min(high, this.whole.x[1])];
    this.wholeButton.hidden = this.x[0] === this.whole.x[0] && this.x[1] === this.whole.x[1];
    const seen = this.series.flatMap((one) => [...this.valuesOf(one, ...this.x)]);
    if (this.from_zero && !this.log) seen.push(0);
    if (!seen.length) return this.draw();
    const [least, most] = [Math.min(...seen), Math.max(...seen)];
    this.yTicks = (this.log ? logTicksAround : ticksAround)(least, most);
    this.y = [Math.min(this.yTicks[0], least), Math.max(this.yTicks.at(-1), most)];
    this.draw();
  }

  zoom(factor, middle = (this.x[0] + this.x[1]) / 2) {
    const [low, high] = this.x;
    const reach = (this.whole.x[1] - this.whole.x[0]) / 1000;
    if (factor < 1 && high - low < reach) return;
    this.show([middle - (middle - low) * factor, middle + (high - middle) * factor]);
  }

  toPixels(x, y) {
    const [left, top, right, bottom] = this.box;
    const scale = this.log ? Math.log : Number;
    const up = (scale(y) - scale(this.y[0])) / (scale(this.y[1]) - scale(this.y[0]));
    const across = (x - this.x[0]) / (this.x[1] - this.x[0]);
    return [left + across * (right - left), bottom - up * (bottom - top)];
  }

  atPixel(event) {
    const area = this.svg.getBoundingClientRect();
    const across = ((event.clientX - area.left) / area.width) * this.svg.viewBox.baseVal.width;
    const [left, , right] = this.box;
    const share = Math.min(1, Math.max(0, (across - left) / (right - left)));
    return this.x[0] + share * (this.x[1] - this.x[0]);
  }

  part(name, attributes, text) {
    const made = document.createElementNS(this.svg.namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) {
      made.setAttribute(key, typeof value === "number" ? value.toFixed(1) : value);
    }
    if (text !== undefined) made.textContent = text;
    return made;
  }

  draw() {
    const [left, top, right, bottom] = this.box;
    const parts = [];
    for (const y of this.yTicks ?? []) {
      const at = this.toPixels(this.x[0], y)[1];
      parts.push(this.part("line", { class: "gridline", x1: left, x2: right, y1: at, y2: at }),
        this.part("text", { x: left - 7, y: at + 4.5, "text-anchor": "end" }, tickLabel(y)));
    }
    for (const x of ticksAround(...this.x)) {
      if (x < this.x[0] || x > this.x[1]) continue;
      const [at] = this.toPixels(x, this.y[0]);
      const anchor = at > right - 14 ? "end" : "middle";
      parts.push(this.part("text", { x: at, y: bottom + 17, "text-anchor": anchor }, tickLabel(x)));
    }
    const axis = { class: "axis", x: (left + right) / 2, y: bottom + 35, "text-anchor": "middle" };
    parts.push(this.part("text", axis, this.x_label));
    this.clip ??= `clip-${Chart.count++}`;
    const area = this.part("clipPath", { id: this.clip });
    const size = { width: right - left + 4, height: bottom - top + 8 };
    area.append(this.part("rect", { x: left, y: top - 4, ...size }));
    const lines = this.part("g", { "clip-path": `url(#${this.clip})` });
    for (const one of this.series) lines.append(...this.lineParts(one));
    this.svg.replaceChildren(area, ...parts, lines);
  }

  lineParts(one) {
    const [left, , right] = this.box;
    const colour = `s${one.colour}`;
    if (one.level !== null) {
      const at = this.toPixels(0, one.level)[1];
      return [this.part("line", { class: `level ${colour}`, x1: left, x2: right, y1: at, y2: at })];
    }
    const path = (values) => one.x.map((x, i) => this.toPixels(x, values[i]));
    const spell = (point) => point.map((at) => at.toFixed(1)).join();
    const told = (points) => points.map(spell).join(" ");
    const line = path(one.y);
    const parts = [this.part("polyline", { class: `line ${colour}`, points: told(line) })];
    if (one.low) {
      const band = told([...path(one.high), ...path(one.low).reverse()]);
      parts.unshift(this.part("polygon", { class: `band ${colour}`, points: band }));
    }
    const shown = one.x.filter((x) => x >= this.x[0] && x <= this.x[1]).length;
    if (one.dots || shown < 40) {
      const dot = ([cx, cy]) => this.part("circle", { class: `dot ${colour}`, cx, cy, r: 3 });
      parts.push(...line.map(dot));
    }
    return parts;
  }

  // ---- reading values

  // The value of every series at its point nearest to x.
  read(x) {
    const { series, svg, tip } = this;
    this.at = x;
    const rows = [];
    let snapped = x;
    let nearest = Infinity;
    for (const one of series) {
      if (one.level !== null || !one.x.length) continue;
      let i = one.x.findIndex((each) => each >= x);
      if (i < 0) i = one.x.length - 1;
      if (i > 0 && x - one.x[i - 1] < one.x[i] - x) i--;
      if (Math.abs(one.x[i] - x) < nearest) {
        nearest = Math.abs(one.x[i] - x);
        snapped = one.x[i];
      }
      const ends = one.low ? ` (${shownNumber(one.low[i])} … ${shownNumber(one.high[i])})` : "";
      rows.push(make("div", {}, make("i", { className: `key s${one.colour}` }),
        `${one.label} `, make("b", { textContent: shownNumber(one.y[i]) + ends })));
    }
    const place = `${this.x_label} ${shownNumber(snapped)}`;
    tip.replaceChildren(make("div", { className: "muted", textContent: place }), ...rows);
    tip.hidden = false;
    const [across] = this.toPixels(snapped, this.y[0]);
    const [, top, , bottom] = this.box;
    this.cursor?.remove();
    const ends = { x1: across, x2: across, y1: top, y2: bottom };
    this.cursor = this.part("line", { class: "cursor", ...ends });
    svg.append(this.cursor);
    this.placeTip(across / svg.viewBox.baseVal.width);
  }

  // Beside the cursor, which stands at a share of the drawing's width, inside of the figure.
  placeTip(share) {
    const [inner, outer] = [this.svg, this.figure].map((each) => each.getBoundingClientRect());
    const at = inner.left - outer.left + share * inner.width;
    const room = outer.width - this.tip.offsetWidth - 6;
    const beside = at + 12 > room ? at - this.tip.offsetWidth - 14 : at + 12;
    this.tip.style.left = `${Math.max(4, Math.min(room, beside))}px`;
    this.tip.style.top = `${inner.top - outer.top + 4}px`;
  }

  hide() {
    this.tip.hidden = true;
    this.cursor?.remove();
  }

  // The next point of any series, to the right (1) or to the left (−1).
  step(direction) {
    const from = this.tip.hidden ? (direction > 0 ? -Infinity : Infinity) : this.at;
    const inside = (x) => x >= this.x[0] && x <= this.x[1];
    const next = this.series.flatMap((one) => one.x)
      .filter((x) => inside(x) && (x - from) * direction > 0)
      .reduce((best, x) => ((x - best) * direction < 0 ? x : best), direction * Infinity);
    if (Number.isFinite(next)) this.read(next);
  }

  listen() {
    const { svg } = this;
    svg.addEventListener("pointermove", (event) => {
      this.read(this.atPixel(event));
      if (this.from !== undefined) this.drawSelection(this.atPixel(event));
    });
    svg.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      this.from = this.atPixel(event);
      svg.setPointerCapture(event.pointerId);
    });
    svg.addEventListener("pointerup", (event) => {
      if (this.from === undefined) return;
      const ends = [this.from, this.atPixel(event)].sort((a, b) => a - b);
      this.forget();
      if (ends[1] - ends[0] > (this.x[1] - this.x[0]) / 50) this.show(ends);
      this.read(this.atPixel(event));
    });
    svg.addEventListener("pointercancel", () => this.forget());
    svg.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && this.hide());
    svg.addEventListener("blur", () => this.hide());
    svg.addEventListener("dblclick", () => this.show(this.whole.x));
    svg.addEventListener("keydown", (event) => {
      const act = {
        ArrowRight: () => this.step(1),
        ArrowLeft: () => this.step(-1),
        "+": () => this.zoom(0.5, this.tip.hidden ? undefined : this.at),
        "-": () => this.zoom(2, this.tip.hidden ? undefined : this.at),
        0: () => this.show(this.whole.x),
        Escape: () => this.show(this.whole.x),
        l: () => this.logButton.hidden || this.toggleLog(),
      }[event.key];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      act();
    });
  }

  drawSelection(to) {
    const [, top, , bottom] = this.box;
    const ends = [this.from, to].map((x) => this.toPixels(x, this.y[0])[0]).sort((a, b) => a - b);
    this.selection?.remove();
    const size = { width: ends[1] - ends[0], height: bottom - top };
    this.selection = this.part("rect", { class: "selection", x: ends[0], y: top, ...size });
    this.svg.append(this.selection);
  }

  forget() {
    this.from = undefined;
    this.selection?.remove();
  }
}
Chart.count = 0;

for (const figure of document.querySelectorAll("figure.chart:not(.plane):has(> script)")) {
  new Chart(figure);
}
