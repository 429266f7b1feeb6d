// What a head of the model looks at over the tokens of the lens, by layer and head.
"use strict";

for (const figure of document.querySelectorAll("figure.attention")) {
  const { tokens, attention } = embedded(figure);
  const heading = (text, scope) => make("th", { scope }, make("code", { textContent: text }));
  const columns = ["earlier", ...tokens].map((text) => heading(text, "col"));
  const head = make("thead", {}, make("tr", {}, make("th"), ...columns));
  const body = make("tbody");
  figure.querySelector(".scroll").append(make("table", {}, head, body));

  const sizes = { layer: attention.length, head: attention[0].length };
  const choosers = Object.entries(sizes).map(([name, count]) => {
    const option = (_, i) => make("option", { value: i, textContent: i + 1 });
    const list = make("select", {}, ...Array.from({ length: count }, option));
    figure.querySelector(".row").append(make("label", {}, `${name} `, list));
    list.addEventListener("change", () => show());
    return list;
  });
  const show = () => {
    const [layer, number] = choosers.map((list) => Number(list.value));
    const rows = attention[layer][number].map((shares, at) => {
      const cells = shares.map((share) => {
        const cell = make("td", { textContent: share || "" });
        cell.style.setProperty("--tint", `${Math.round(0.8 * share)}%`);
        return cell;
      });
      return make("tr", {}, heading(tokens[at], "row"), ...cells);
    });
    body.replaceChildren(...rows);
  };
  figure.hidden = false;
  show();
}
