// Which token follows: nanoeuler/inference/sampling.py in little.
"use strict";

// Numbers from 0 to below 1, the same for a seed (Mulberry32).
function dice(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let mixed = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

// Ids, the likeliest first.
const ranked = (ids, shares) => Array.from(ids).sort((a, b) => shares[b] - shares[a]);

// The first of the ranked ids, or one drawn from the fewest that hold `topP` of the probability.
function draw(ids, shares, temperature, topP, random = Math.random) {
  if (temperature === 0) return ids[0];
  const powers = softmax(ids.map((id) => Math.log(shares[id]) / temperature));
  let held = 0;
  const last = powers.findIndex((power) => (held += power) >= topP);
  let left = random() * held;
  return ids[Math.max(0, powers.findIndex((power, i) => (left -= power) <= 0 || i === last))];
}
