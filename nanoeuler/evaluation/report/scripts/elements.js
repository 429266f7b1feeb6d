// Helpers of the other scripts: elements, numbers, downloads.
"use strict";

function make(name, properties = {}, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

function button(text, title, act) {
  const made = make("button", { type: "button", textContent: text, title });
  made.addEventListener("click", act);
  return made;
}

const SVG = make("template", { innerHTML: "<svg/>" }).content.firstChild.namespaceURI;

// A part of a drawing; lengths are rounded to a tenth of a pixel.
function svgPart(name, attributes, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) {
    made.setAttribute(key, typeof value === "number" ? value.toFixed(1) : value);
  }
  made.textContent = text;
  return made;
}

// The JSON that lies in an element.
function embedded(element) {
  return JSON.parse(element.querySelector("script[type='application/json']").textContent);
}

// A number for people: four digits, thousands with commas.
function shownNumber(value) {
  const size = Math.abs(value);
  if (size >= 1e4) return Math.round(value).toLocaleString("en-US");
  if (size !== 0 && size < 1e-3) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

const percent = (share) => `${(100 * share).toFixed(1)} %`;
const visible = (text) => text.replace(/ /g, "␣").replace(/\n/g, "⏎").replace(/\t/g, "⇥");

// Rows of texts and numbers as CSV (RFC 4180), saved under a name made of `words`.
function saveCsv(rows, ...words) {
  const quoted = (cell) => (/[",\n]/.test(cell) ? `"${String(cell).replace(/"/g, '""')}"` : cell);
  const text = rows.map((row) => row.map((cell) => quoted(cell ?? "")).join(",") + "\r\n").join("");
  const name = words.join("-").toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "");
  const address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  make("a", { href: address, download: `${name}.csv` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

const runName = () => document.querySelector("h1").textContent;
