// Depth: a slider over the Euler steps marks the point in the picture and its row of the lens, and
// says how far the stream has come. Held-out text: a token's bits in every stage.
"use strict";

for (const picture of document.querySelectorAll("figure.plane")) {
  const { norms, angles, names } = embedded(picture);
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
