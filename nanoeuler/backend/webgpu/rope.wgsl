// Rotary positions: (a, b) -> (a cos - b sin, b cos + a sin), of halves of each head, in place.
//
// In:   x (N, heads, 2 * half), positions (N) int32, cosines and sines (positions, half)
// Out:  x; direction -1 rotates back
// A thread takes a pair: bytes = 8 * N * heads * 2 * half, and those of the tables from cache.

struct Arguments {
    rows: u32, heads: u32, half: u32, direction: f32,
    x_at: u32, x_row: u32, positions_at: u32, cosines_at: u32, sines_at: u32,
}

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> positions: array<i32>;
@group(0) @binding(2) var<storage, read_write> cosines: array<f32>;
@group(0) @binding(3) var<storage, read_write> sines: array<f32>;
@group(0) @binding(4) var<uniform> p: Arguments;

@compute @workgroup_size(THREADS)
fn rotate(thread: Thread) {
    let i = element(thread);
    if (i >= p.rows * p.heads * p.half) {
        return;
    }
    let e = i % p.half;
    let head = (i / p.half) % p.heads;
    let n = i / (p.half * p.heads);
    let angle = u32(positions[p.positions_at + n]) * p.half + e;
    let cosine = cosines[p.cosines_at + angle];
    let sine = p.direction * sines[p.sines_at + angle];
    let at = p.x_at + n * p.x_row + head * 2u * p.half + e;
    let a = x[at];
    let b = x[at + p.half];
    x[at] = fma(a, cosine, -b * sine);
    x[at + p.half] = fma(b, cosine, a * sine);
}
