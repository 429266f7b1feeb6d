// Charts: drawn from the numbers beside them, with the values under the pointer, zoom into a
// stretch, a logarithmic axis, and CSV.
"use strict";

const BOX = { left: 52, top: 10, right: 448, bottom: 210 }; // of lines, in a drawing of 460 × 250
const MOST_POINTS = 240; // of a line: more points than pixels show nothing more
const NEAR_ZERO = 1e-9;

// About `wanted` round ticks, 1, 2 or 5 times a power of ten apart, around the range.
function ticksAround(low, high, wanted = 5) {
  if (high <= low) [low, high] = [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  const raw = (high - low) / wanted;
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

// As many decimals as the distance of the ticks asks for; thousands and millions as k and M, small
// numbers with an exponent. Ticks of a logarithm have no distance: each stands for itself.
function tickLabel(value, ticks = [value]) {
  const largest = Math.max(...ticks.map(Math.abs));
  const step = ticks.length > 1 ? ticks[1] - ticks[0] : 0;
  const size = Math.abs(value);
  if (size <= step / 2) return "0";
  if (largest >= 1e4) {
    const unit = [["G", 1e9], ["M", 1e6], ["k", 1e3]].find(([, unit]) => size >= unit * 0.9995);
    const [letter, divisor] = unit ?? ["", 1];
    return `${Number((value / divisor).toPrecision(3))}${letter && `\u202f${letter}`}`;
  }
  if (largest < 0.01) return Number(value.toPrecision(2)).toExponential();
  if (!step) return String(Number(value.toPrecision(3)));
  return value.toFixed(Math.max(0, -Math.floor(Math.log10(step) + NEAR_ZERO)));
}

// At most MOST_POINTS of the points: the means of equal stretches.
function thin(points) {
  const count = Math.min(points.length, MOST_POINTS);
  const edge = (i) => Math.round((i * points.length) / count);
  return Array.from({ length: count }, (_, i) => {
    const part = points.slice(edge(i), edge(i + 1));
    return [0, 1].map((axis) => part.reduce((sum, point) => sum + point[axis], 0) / part.length);
  });
}

class Chart {
  constructor(figure) {
    this.figure = figure;
    this.svg = figure.querySelector("svg");
    Object.assign(this, embedded(figure)); // title, x_label, series, x, log, from_zero
    this.whole = this.x;
    this.tip = make("div", { className: "tip", hidden: true });
    this.tip.setAttribute("role", "status");
    figure.append(this.tip);
    this.addTools();
    this.svg.tabIndex = 0;
    this.svg.setAttribute("aria-label", `${this.title}. Arrows read values, + and − zoom.`);
    this.show(this.whole);
    this.listen();
  }

  addTools() {
    const values = this.series.flatMap((one) => [...this.valuesOf(one, -Infinity, Infinity)]);
    const positive = values.every((value) => value > 0);
    this.log &&= positive;
    this.logButton = button("log", "Logarithmic axis (l)", () => this.toggleLog());
    this.logButton.setAttribute("aria-pressed", this.log);
    this.logButton.hidden = !positive;
    this.wholeButton = button("whole", "Show all of it (0)", () => this.show(this.whole));
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
    this.x = [Math.max(low, this.whole[0]), Math.min(high, this.whole[1])];
    this.wholeButton.hidden = this.x[0] === this.whole[0] && this.x[1] === this.whole[1];
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
    const reach = (this.whole[1] - this.whole[0]) / 1000;
    if (factor < 1 && high - low < reach) return;
    this.show([middle - (middle - low) * factor, middle + (high - middle) * factor]);
  }

  toPixels(x, y) {
    const { left, top, right, bottom } = BOX;
    const scale = this.log ? Math.log : Number;
    const up = (scale(y) - scale(this.y[0])) / (scale(this.y[1]) - scale(this.y[0]));
    const across = (x - this.x[0]) / (this.x[1] - this.x[0]);
    return [left + across * (right - left), bottom - up * (bottom - top)];
  }

  atPixel(event) {
    const area = this.svg.getBoundingClientRect();
    const across = ((event.clientX - area.left) / area.width) * this.svg.viewBox.baseVal.width;
    const { left, right } = BOX;
    const share = Math.min(1, Math.max(0, (across - left) / (right - left)));
    return this.x[0] + share * (this.x[1] - this.x[0]);
  }

  draw() {
    const { left, top, right, bottom } = BOX;
    const parts = [];
    for (const y of this.yTicks ?? []) {
      const at = this.toPixels(this.x[0], y)[1];
      const label = tickLabel(y, this.log ? undefined : this.yTicks);
      parts.push(svgPart("line", { class: "gridline", x1: left, x2: right, y1: at, y2: at }),
        svgPart("text", { x: left - 7, y: at + 4.5, "text-anchor": "end" }, label));
    }
    const xTicks = ticksAround(...this.x);
    for (const x of xTicks) {
      if (x < this.x[0] || x > this.x[1]) continue;
      const [at] = this.toPixels(x, this.y[0]);
      const place = { x: at, y: bottom + 17, "text-anchor": at > right - 14 ? "end" : "middle" };
      parts.push(svgPart("text", place, tickLabel(x, xTicks)));
    }
    const axis = { class: "axis", x: (left + right) / 2, y: bottom + 35, "text-anchor": "middle" };
    parts.push(svgPart("text", axis, this.x_label));
    this.clip ??= `clip-${Chart.count++}`;
    const area = svgPart("clipPath", { id: this.clip });
    const size = { width: right - left + 4, height: bottom - top + 8 };
    area.append(svgPart("rect", { x: left, y: top - 4, ...size }));
    const lines = svgPart("g", { "clip-path": `url(#${this.clip})` });
    for (const one of this.series) lines.append(...this.lineParts(one));
    this.svg.replaceChildren(area, ...parts, lines);
  }

  lineParts(one) {
    const colour = `s${one.colour}`;
    if (one.level !== null) {
      const y = this.toPixels(0, one.level)[1];
      const ends = { x1: BOX.left, x2: BOX.right, y1: y, y2: y };
      return [svgPart("line", { class: `level ${colour}`, ...ends })];
    }
    const told = (points) => points.map((point) => point.map((at) => at.toFixed(1))).join(" ");
    const path = (values) => one.x.map((x, i) => this.toPixels(x, values[i]));
    const [low, high] = this.x;
    // The points in view, and one on each side, to which the line goes on.
    const near = (_, i) => !(one.x[i + 1] < low || one.x[i - 1] > high);
    const line = thin(path(one.y).filter(near));
    const parts = [svgPart("polyline", { class: `line ${colour}`, points: told(line) })];
    if (one.low) {
      const band = told([...path(one.high), ...path(one.low).reverse()]);
      parts.unshift(svgPart("polygon", { class: `band ${colour}`, points: band }));
    }
    if (one.dots || line.length === 1 || (!this.wholeButton.hidden && line.length < 40)) {
      const dot = ([cx, cy]) => svgPart("circle", { class: `dot ${colour}`, cx, cy, r: 3 });
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
    this.cursor?.remove();
    const ends = { x1: across, x2: across, y1: BOX.top, y2: BOX.bottom };
    this.cursor = svgPart("line", { class: "cursor", ...ends });
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
    svg.addEventListener("dblclick", () => this.show(this.whole));
    svg.addEventListener("keydown", (event) => {
      const act = {
        ArrowRight: () => this.step(1),
        ArrowLeft: () => this.step(-1),
        "+": () => this.zoom(0.5, this.tip.hidden ? undefined : this.at),
        "-": () => this.zoom(2, this.tip.hidden ? undefined : this.at),
        0: () => this.show(this.whole),
        Escape: () => this.show(this.whole),
        l: () => this.logButton.hidden || this.toggleLog(),
      }[event.key];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      act();
    });
  }

  drawSelection(to) {
    const { top, bottom } = BOX;
    const ends = [this.from, to].map((x) => this.toPixels(x, this.y[0])[0]).sort((a, b) => a - b);
    this.selection?.remove();
    const size = { width: ends[1] - ends[0], height: bottom - top };
    this.selection = svgPart("rect", { class: "selection", x: ends[0], y: top, ...size });
    this.svg.append(this.selection);
  }

  forget() {
    this.from = undefined;
    this.selection?.remove();
  }
}
Chart.count = 0;

for (const figure of document.querySelectorAll("figure.chart:not(.plane):has(> script)")) {
  figure.chart = new Chart(figure);
}
