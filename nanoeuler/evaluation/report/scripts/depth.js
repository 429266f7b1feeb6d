// Depth: the trajectory in a plane; a slider over the Euler steps marks the point in it and its row
// of the lens, and says how far the stream has come. Held-out text: a token's bits in every stage.
"use strict";

const PLANE = { width: 460, tallest: 330, margin: 26 };
const INNERMOST = 0.3; // the smallest radius of a logarithmic picture, as a share of the largest

// A dot for each point (norm, degrees), a line for each step, rings of equal norm, and the numbers
// of layers. `log`: the distance from the middle is the logarithm of the norm.
function drawPlane(svg, { norms, angles, log }) {
  const { width, tallest, margin } = PLANE;
  const [low, high] = [Math.min(...norms), Math.max(...norms)];
  const share = (norm) => Math.log(norm / low) / Math.log(high / low);
  const radius = (norm) => (log ? INNERMOST + (1 - INNERMOST) * share(norm) : norm / high);
  const direction = (degrees) => { // counter-clockwise from the right; y grows downwards
    const angle = (degrees * Math.PI) / 180;
    return [Math.cos(angle), -Math.sin(angle)];
  };
  const flat = norms.map((norm, i) => direction(angles[i]).map((one) => radius(norm) * one));
  const [[left, right], [top, bottom]] = [0, 1].map((axis) => {
    const along = [0, ...flat.map((point) => point[axis])];
    return [Math.min(...along), Math.max(...along)];
  });
  const scale = Math.min(
    (width - 2 * margin) / (right - left),
    (tallest - 2 * margin) / Math.max(bottom - top, 0.3),
  );
  const middle = [width / 2 - ((left + right) / 2) * scale, margin - top * scale];
  const place = (norm, degrees, beyond = 0) => {
    const from = radius(norm) * scale + beyond;
    return direction(degrees).map((one, axis) => middle[axis] + one * from);
  };
  const circle = (kind, [cx, cy], r) => svgPart("circle", { class: kind, cx, cy, r });
  const text = (kind, [x, y], label) =>
    svgPart("text", { class: kind, x, y: y + 4.5, "text-anchor": "middle" }, label);

  // The rings' labels lie on the way to the middle of the path, where nothing else is drawn.
  const between = angles.findIndex((angle) => angle >= angles.at(-1) / 2);
  const ring = (norm) => {
    const drawn = circle("gridline ring", middle, radius(norm) * scale);
    const room = radius(norm) < radius(norms[between]) - 0.1;
    return room ? [drawn, text("", place(norm, angles[between]), tickLabel(norm))] : [drawn];
  };
  const ticks = log ? logTicksAround(low, high) : ticksAround(0, high, 3).slice(1);
  const rings = ticks.filter((norm) => norm <= high && radius(norm) > 0).flatMap(ring);
  const points = norms.map((norm, i) => place(norm, angles[i]));
  const lines = points.slice(1).map(([x2, y2], i) => {
    const [x1, y1] = points[i];
    return svgPart("line", { class: `line s${i % 2}`, x1, y1, x2, y2 });
  });
  const dots = points.map((point, i) =>
    circle(`dot ${i ? `s${(i + 1) % 2}` : "start"}`, point, i % 2 ? 2 : 3.4));
  const last = Math.floor((norms.length - 1) / 2);
  const every = Math.max(1, Math.round(last / 6));
  const layers = Array.from({ length: last + 1 }, (_, layer) => layer)
    .filter((layer) => layer % every === 0 || layer === last)
    .map((layer) => text("name", place(norms[2 * layer], angles[2 * layer], 14), layer));
  svg.setAttribute("viewBox", `0 0 ${width} ${Math.round((bottom - top) * scale + 2 * margin)}`);
  svg.replaceChildren(...rings, circle("origin", middle, 2.5), ...lines, ...dots, ...layers);
}

for (const picture of document.querySelectorAll("figure.plane")) {
  const numbers = embedded(picture);
  const { norms, angles, names } = numbers;
  drawPlane(picture.querySelector("svg"), numbers);
  const dots = [...picture.querySelectorAll(".dot")];
  const rows = [...(picture.parentElement.querySelector(".lens tbody")?.rows ?? [])];
  const last = dots.length - 1;
  const slider = make("input", { type: "range", min: 0, max: last });
  slider.value = last;
  slider.setAttribute("aria-label", "Euler steps taken");
  const told = make("output", { className: "muted" });
  const show = () => {
    const at = Number(slider.value);
    dots.forEach((dot, i) => dot.classList.toggle("shown", i === at));
    rows.forEach((row, i) => row.classList.toggle("chosen", i === at));
    const turned = angles[at] - (angles[at - 1] ?? angles[at]);
    const step = at ? `, turned by ${turned.toFixed(0)}° in this step` : "";
    const norm = shownNumber(norms[at]);
    told.textContent = `${at} of ${last} steps (${names[at]}): norm ${norm}${step}`;
  };
  slider.addEventListener("input", () => {
    show();
    const row = rows[slider.value];
    const frame = row?.closest(".scroll");
    if (frame) frame.scrollTop = row.offsetTop - frame.clientHeight / 2;
  });
  picture.append(slider, told);
  show();
}

for (const article of document.querySelectorAll("#reading article")) {
  const stages = [...article.querySelectorAll(".texts > div")];
  const tokens = stages.map((stage) => [...stage.querySelectorAll(".cost i")]);
  const tip = make("div", { className: "tip", hidden: true });
  tip.setAttribute("role", "status");
  article.append(tip);
  let shown = -1;
  const hide = () => {
    tip.hidden = true;
    for (const each of tokens) each[shown]?.classList.remove("shown");
    shown = -1;
  };
  const show = (at, beside) => {
    hide();
    shown = at;
    const rows = stages.map((stage, i) => {
      tokens[i][at].classList.add("shown");
      const key = make("i", { className: stage.querySelector(".key").className });
      const bits = make("b", { textContent: `${tokens[i][at].dataset.bits} bits` });
      return make("div", {}, key, `${stage.querySelector("h4").textContent} `, bits);
    });
    tip.replaceChildren(make("code", { textContent: visible(beside.textContent) }), ...rows);
    tip.hidden = false;
    const [token, outer] = [beside, article].map((each) => each.getBoundingClientRect());
    const room = outer.width - tip.offsetWidth - 6;
    tip.style.left = `${Math.max(4, Math.min(room, token.left - outer.left))}px`;
    tip.style.top = `${token.bottom - outer.top + 6}px`;
  };
  stages.forEach((stage, i) => {
    for (const token of tokens[i]) {
      token.dataset.bits = token.title;
      token.removeAttribute("title");
    }
    const text = stage.querySelector(".cost");
    text.tabIndex = 0;
    text.setAttribute("aria-label", "Tokens. Arrows choose one.");
    text.addEventListener("pointerover", (event) => {
      const at = tokens[i].indexOf(event.target);
      if (at >= 0) show(at, event.target);
    });
    text.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && hide());
    text.addEventListener("blur", hide);
    text.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const at = shown + (step ?? 0);
      if (event.key === "Escape") hide();
      if (!step || !tokens[i][at]) return;
      event.preventDefault();
      show(at, tokens[i][at]);
    });
  });
}
