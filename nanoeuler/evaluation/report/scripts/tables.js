// Tables: sort by a column, save as CSV. Samples: choose whose are shown.
"use strict";

const UNITS = { k: 1e3, M: 1e6, G: 1e9, "%": 0.01, B: 1, kB: 1e3, MB: 1e6, GB: 1e9 };
const SECONDS = { s: 1, min: 60, h: 3600 };
const POWERS = "⁰¹²³⁴⁵⁶⁷⁸⁹";

// The number that a cell shows, as formats.py writes them: 1,234, 1.05 M, 78.3 % ± 2.4,
// 4.5 × 10⁻⁹, 2 min 05 s. NaN where it shows none.
function numberIn(text) {
  const words = text.replace(/,(?=\d{3})/g, "").replace("−", "-").trim().split(/\s+/);
  const power = /^(?:10|[-\d.]+ × 10)([⁻⁰-⁹¹²³]+)$/.exec(words.slice(0, 3).join(" "));
  if (power) {
    const digits = [...power[1]].map((each) => (each === "⁻" ? "-" : POWERS.indexOf(each)));
    return (words.length > 1 ? Number(words[0]) : 1) * 10 ** Number(digits.join(""));
  }
  if (words[0] === "" || !/^[-+]?[\d.]/.test(words[0])) return NaN;
  if (words[1] in SECONDS) {
    const seconds = (word, i) => (word in SECONDS ? SECONDS[word] * words[i - 1] : 0);
    return words.map(seconds).reduce((sum, each) => sum + each, 0);
  }
  return Number(words[0]) * (UNITS[words[1]] ?? 1);
}

function sortable(table) {
  const body = table.tBodies[0];
  const texts = (cell) => cell.textContent.replace(/\s+/g, " ").trim();
  const given = [...body.rows];
  const headings = [...table.tHead.rows[0].cells];
  const names = headings.map(texts);
  headings.forEach((heading, column) => {
    const name = names[column];
    const sort = () => {
      const following = { ascending: "descending", descending: "none" };
      const order = following[heading.ariaSort] ?? "ascending";
      for (const each of headings) each.ariaSort = "none";
      heading.ariaSort = order;
      const keys = new Map();
      for (const row of given) {
        const text = texts(row.cells[column]);
        keys.set(row, [numberIn(text), text]);
      }
      const sign = order === "ascending" ? 1 : -1;
      const compare = (a, b) => {
        const [[x, left], [y, right]] = [keys.get(a), keys.get(b)];
        if (isNaN(x) !== isNaN(y)) return isNaN(x) ? 1 : -1; // those without a number come last
        return sign * (isNaN(x) ? left.localeCompare(right) : x - y);
      };
      body.append(...(order === "none" ? given : [...given].sort(compare)));
    };
    const made = button(name || "↕", `Sort by ${name || "name"}`, sort);
    made.classList.toggle("unnamed", !name);
    heading.replaceChildren(made);
  });
  const save = () => {
    const cell = (each) => {
      const number = each.matches(".number") ? numberIn(texts(each)) : NaN;
      return isNaN(number) ? texts(each) : Number(number.toPrecision(12));
    };
    const section = table.closest("section")?.querySelector("h2")?.textContent ?? "";
    const rows = [...body.rows].map((row) => [...row.cells].map(cell));
    saveCsv([names, ...rows], runName(), section);
  };
  const tools = make("div", { className: "tools" }, button("CSV", "Save this table", save));
  table.parentElement.after(tools);
}

for (const table of document.querySelectorAll(".scroll > table:not(.pairs)")) {
  if (table.tBodies[0].rows.length > 1 && !table.closest(".lens, .attention")) sortable(table);
}

// One box per stage or run; a box that is not ticked hides its texts.
for (const samples of document.querySelectorAll(".samples")) {
  const texts = [...samples.querySelectorAll(".texts > div")];
  const nameOf = (text) => text.querySelector("h4").textContent;
  const names = [...new Set(texts.map(nameOf))];
  if (names.length < 2) continue;
  const box = (name) => make("input", { type: "checkbox", value: name, checked: true });
  const boxes = names.map(box);
  const choose = () => {
    const hidden = new Set(boxes.filter((box) => !box.checked).map((box) => box.value));
    for (const text of texts) text.hidden = hidden.has(nameOf(text));
  };
  const labels = boxes.map((box) => make("label", {}, box, box.value));
  const legend = make("legend", { textContent: "Show" });
  const choice = make("fieldset", { className: "choice" }, legend, ...labels);
  choice.addEventListener("change", choose);
  samples.before(choice);
}
