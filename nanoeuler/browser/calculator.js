// The calculator that a model may call: nanoeuler/model/calculator.py and calls.py once more.
// Numbers are exact fractions, [numerator, denominator] of whole numbers.
"use strict";

const MOST_CHARACTERS = 200;
const MOST_DIGITS = 20;
const SIGNIFICANT = 6;
const PART = / *(?:(\d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)|([-+*/()]))/y;
const RANK = { "(": 0, "+": 1, "-": 1, "*": 2, "/": 2, negative: 3 };
const OPERATION = {
  "+": ([a, b], [c, d]) => [a * d + c * b, b * d],
  "-": ([a, b], [c, d]) => [a * d - c * b, b * d],
  "*": ([a, b], [c, d]) => [a * c, b * d],
  "/": ([a, b], [c, d]) => [a * d, b * c],
};

function calculate(expression) {
  if ([...expression].length > MOST_CHARACTERS) return "overflow";
  const value = evaluate(expression);
  if (!value) return "error";
  return value[1] ? written(value) : "undefined";
}

// The value by Dijkstra's two stacks; undefined where there is none, and x/0 by zero.
function evaluate(expression) {
  const text = expression.replace(/[−×x÷]/g, (sign) => "-**/"["−×x÷".indexOf(sign)])
    .replace(/ +$/, "");
  const [values, operators] = [[], []];
  let expectsValue = true;
  const applyDownTo = (rank) => {
    while (operators.length && RANK[operators.at(-1)] >= rank) {
      const [operator, right] = [operators.pop(), values.pop()];
      const value = operator === "negative"
        ? [-right[0], right[1]] : OPERATION[operator](values.pop(), right);
      values.push(reduced(value));
    }
  };
  for (PART.lastIndex = 0; PART.lastIndex < text.length; ) {
    const [, number, sign] = PART.exec(text) ?? [];
    const begins = number || sign === "(" || (expectsValue && /^[-+]$/.test(sign));
    if (!(number || sign) || expectsValue !== Boolean(begins)) return undefined;
    if (number) {
      const [whole, decimals = ""] = number.replaceAll(",", "").split(".");
      values.push(reduced([BigInt(whole + decimals), 10n ** BigInt(decimals.length)]));
      expectsValue = false;
    } else if (expectsValue) {
      if (sign !== "+") operators.push(sign === "(" ? sign : "negative");
    } else if (sign === ")") {
      applyDownTo(1);
      if (!operators.pop()) return undefined;
    } else {
      applyDownTo(RANK[sign]);
      operators.push(sign);
      expectsValue = true;
    }
  }
  if (!expectsValue) applyDownTo(1);
  return expectsValue || operators.length ? undefined : values.pop();
}

const size = (number) => (number < 0n ? -number : number);

// In lowest terms, the denominator positive; one that is zero stays so, whatever follows.
function reduced([numerator, denominator]) {
  let [a, b] = [size(numerator), size(denominator)];
  while (b) [a, b] = [b, a % b];
  if (!denominator) return [0n, 0n];
  const divisor = denominator < 0n ? -a : a;
  return [numerator / divisor, denominator / divisor];
}

function written([numerator, denominator]) {
  const above = size(numerator);
  const whole = above / denominator;
  if (whole >= 10n ** BigInt(MOST_DIGITS)) return "overflow";
  let places = MOST_DIGITS;
  if (10n ** BigInt(MOST_DIGITS) % denominator) {
    const before = whole ? String(whole).length : 1 - String(denominator / above).length;
    places = Math.min(Math.max(SIGNIFICANT - before, 0), MOST_DIGITS);
  }
  const rounded = (2n * above * 10n ** BigInt(places) + denominator) / (2n * denominator);
  const digits = String(rounded).padStart(places + 1, "0");
  const border = digits.length - places;
  const decimals = digits.slice(border).replace(/0+$/, "");
  const text = digits.slice(0, border) + (decimals && `.${decimals}`);
  return numerator < 0n && text !== "0" ? `-${text}` : text;
}

// The tokens of a result that are to follow, where `ids` end with a call or within a result.
function given(ids, tokenizer) {
  const [call, callEnd] = tokenizer.calls;
  let [expression, next] = [null, []];
  for (const id of ids) {
    if (next.length && id === next.shift()) continue;
    next = [];
    if (id === call) {
      expression = [];
    } else if (id === callEnd && expression) {
      next = tokenizer.encode(calculate(tokenizer.texts(expression).join("")));
      expression = null;
    } else if (id === tokenizer.end) {
      expression = null;
    } else {
      expression?.push(id);
    }
  }
  return next;
}
