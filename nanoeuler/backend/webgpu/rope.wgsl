// Rotary positions: (a, b) -> (a cos - b sin, b cos + a sin), of halves of each head.
//
// rotate: in and out x (N, heads, 2 * half), positions (N) int32; direction -1 rotates back
// append: in and out x (N, columns), a token's heads of queries, rotated in place, and from columns
//         `key` and `value` on key_heads each; offset (N / tokens), the tokens in the cache; out
//         keys and values (N / tokens, slots, key_heads, 2 * half), where what would lie past the
//         end is dropped
// Cosines and sines are (positions, half). A thread takes a pair: bytes = 16 for each, and those of
// the tables from cache.

struct Arguments {
    rows: u32, heads: u32, half: u32, direction: f32,
    key_heads: u32, key: u32, value: u32, tokens: u32, slots: u32,
    x_at: u32, x_row: u32, positions_at: u32, cosines_at: u32, sines_at: u32, offset_at: u32,
    keys_at: u32, keys_row: u32, keys_batch: u32, values_at: u32, values_row: u32,
    values_batch: u32,
}

@group(0) @binding(0) var<storage, read_write> x: array<Activation>;
@group(0) @binding(1) var<storage, read_write> positions: array<i32>;
@group(0) @binding(2) var<storage, read_write> cosines: array<f32>;
@group(0) @binding(3) var<storage, read_write> sines: array<f32>;
@group(0) @binding(4) var<storage, read_write> offset: array<i32>;
@group(0) @binding(5) var<storage, read_write> keys: array<Activation>;
@group(0) @binding(6) var<storage, read_write> values: array<Activation>;
@group(0) @binding(7) var<uniform> p: Arguments;

/// Pair e of a head that begins at x[at].
fn rotated(at: u32, position: u32, e: u32) -> vec2<f32> {
    let cosine = cosines[p.cosines_at + position * p.half + e];
    let sine = p.direction * sines[p.sines_at + position * p.half + e];
    let a = f32(x[at + e]);
    let b = f32(x[at + p.half + e]);
    return vec2(fma(a, cosine, -b * sine), fma(b, cosine, a * sine));
}

@compute @workgroup_size(THREADS)
fn rotate(thread: Thread) {
    let i = element(thread);
    if (i >= p.rows * p.heads * p.half) {
        return;
    }
    let e = i % p.half;
    let n = i / (p.half * p.heads);
    let at = p.x_at + n * p.x_row + (i / p.half) % p.heads * 2u * p.half;
    let pair = rotated(at, u32(positions[p.positions_at + n]), e);
    x[at + e] = Activation(pair.x);
    x[at + p.half + e] = Activation(pair.y);
}

@compute @workgroup_size(THREADS)
fn append(thread: Thread) {
    let i = element(thread);
    let all_heads = p.heads + 2u * p.key_heads;
    if (i >= p.rows * all_heads * p.half) {
        return;
    }
    let e = i % p.half;
    let head = (i / p.half) % all_heads;
    let n = i / (p.half * all_heads);
    let b = n / p.tokens;
    let slot = u32(offset[p.offset_at + b]) + n % p.tokens;
    let token = p.x_at + n * p.x_row;
    if (head < p.heads) {
        let at = token + head * 2u * p.half;
        let pair = rotated(at, slot, e);
        x[at + e] = Activation(pair.x);
        x[at + p.half + e] = Activation(pair.y);
    } else if (slot < p.slots) {
        let of_key = head - p.heads < p.key_heads;
        let first = (head - p.heads) % p.key_heads * 2u * p.half;
        if (of_key) {
            let to = p.keys_at + b * p.keys_batch + slot * p.keys_row + first + e;
            let pair = rotated(token + p.key + first, slot, e);
            keys[to] = Activation(pair.x);
            keys[to + p.half] = Activation(pair.y);
        } else {
            let to = p.values_at + b * p.values_batch + slot * p.values_row + first + e;
            values[to] = x[token + p.value + first + e];
            values[to + p.half] = x[token + p.value + first + p.half + e];
        }
    }
}
