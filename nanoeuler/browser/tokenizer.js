// Byte-level BPE over GPT-2's words: text to ids and back, as nanoeuler/tokenizer does it.
"use strict";

// \p{White_Space} where GPT-2's pattern has \s: in JavaScript, \s is not Unicode's white space.
// Letters and numbers are those of the browser's Unicode.
const WORDS = new RegExp(
  "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\p{White_Space}\\p{L}\\p{N}]+" +
    "|\\p{White_Space}+(?!\\P{White_Space})|\\p{White_Space}+",
  "gu",
);

class Tokenizer {
  // `tokens`: each id's bytes, in hexadecimal. `merges`: pairs of ids, the first learned first.
  // `calls`: the tokens around an expression, of a model that calls the calculator.
  constructor({ tokens, specials, merges, end, calls }) {
    const bytesOf = (hex) => Uint8Array.from(hex.match(/../g) ?? [], (pair) => parseInt(pair, 16));
    this.bytes = tokens.map(bytesOf);
    this.specials = new Set(specials);
    this.end = end;
    this.calls = calls;
    const mayWrite = (id) => id === end || calls.includes(id) || !this.specials.has(id);
    this.allowed = tokens.map((_, id) => id).filter(mayWrite); // that a model may write
    const ids = new Map();
    tokens.forEach((hex, id) => this.specials.has(id) || ids.set(hex, id));
    const idOf = (byte) => ids.get(byte.toString(16).padStart(2, "0"));
    this.idOfByte = Array.from({ length: 256 }, (_, byte) => idOf(byte));
    const merged = ([left, right]) => ids.get(tokens[left] + tokens[right]);
    this.merges = new Map(merges.map((pair, rank) => [pair.join(), [rank, merged(pair)]]));
  }

  encode(text) {
    const encoder = new TextEncoder();
    const idsOf = (word) => Array.from(encoder.encode(word), (byte) => this.idOfByte[byte]);
    return (text.match(WORDS) ?? []).flatMap((word) => this.merge(idsOf(word)));
  }

  // Merge the leftmost pair of the lowest rank until no neighbours are a pair that was learned.
  merge(ids) {
    for (;;) {
      let best = [Infinity];
      for (let at = 0; at + 1 < ids.length; at++) {
        const [rank, id] = this.merges.get(`${ids[at]},${ids[at + 1]}`) ?? [Infinity];
        if (rank < best[0]) best = [rank, at, id];
      }
      if (best[0] === Infinity) return ids;
      ids.splice(best[1], 2, best[2]);
    }
  }

  // The text of each id; a character of several tokens shows with the one that completes it. Where
  // the last one has `ended` the text, bytes of an incomplete character show with it.
  texts(ids, ended = false) {
    const decoder = new TextDecoder(), last = ended ? ids.length - 1 : Infinity;
    return ids.map((id, at) => decoder.decode(this.bytes[id], { stream: at < last }));
  }
}
