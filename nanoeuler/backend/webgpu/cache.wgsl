// The cache of keys and values, the windows through which tokens see it, and rows by number.
//
// write:   in new (B, T, width), offset (B); out cache (B, S, width): slots from offset[b] on, and
//          what would lie past the end is dropped; bytes = 8 * B * T * width
// windows: in starts (B, T), offset (B); out out (B, T); bytes = 8 * B * T
// gather:  in source (N, D), index (R); out copied (R, D); bytes = 8 * R * D

struct Arguments {
    count: u32, tokens: u32, width: u32, slots: u32, window: i32, last: i32, bound: u32,
    source_at: u32, source_row: u32, source_batch: u32,
    copied_at: u32, copied_row: u32, copied_batch: u32,
    offset_at: u32, starts_at: u32, out_at: u32,
}

@group(0) @binding(0) var<storage, read_write> source: array<Activation>;
@group(0) @binding(1) var<storage, read_write> offset: array<i32>;
@group(0) @binding(2) var<storage, read_write> copied: array<Activation>;
@group(0) @binding(3) var<storage, read_write> starts: array<i32>;
@group(0) @binding(4) var<storage, read_write> out: array<i32>;
@group(0) @binding(5) var<uniform> p: Arguments;

@compute @workgroup_size(THREADS)
fn write(thread: Thread) {
    let i = element(thread);
    if (i >= p.count) {
        return;
    }
    let e = i % p.width;
    let n = i / p.width;
    let b = n / p.tokens;
    let t = n % p.tokens;
    let slot = u32(offset[p.offset_at + b]) + t;
    if (slot < p.slots) {
        let to = p.copied_at + b * p.copied_batch + slot * p.copied_row + e;
        copied[to] = source[p.source_at + b * p.source_batch + t * p.source_row + e];
    }
}

@compute @workgroup_size(THREADS)
fn windows(thread: Thread) {
    let i = element(thread);
    if (i >= p.count) {
        return;
    }
    let slot = offset[p.offset_at + i / p.tokens] + i32(i % p.tokens);
    out[p.out_at + i] = min(max(starts[p.starts_at + i], slot - p.window + 1), p.last);
}

@compute @workgroup_size(THREADS)
fn gather(thread: Thread) {
    let i = element(thread);
    if (i >= p.count) {
        return;
    }
    let row = u32(clamp(offset[p.offset_at + i / p.width], 0, i32(p.bound) - 1));
    let d = i % p.width;
    copied[p.copied_at + (i / p.width) * p.copied_row + d] =
        source[p.source_at + row * p.source_row + d];
}
