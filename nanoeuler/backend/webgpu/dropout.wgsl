// Dropout: out = x, but 0 where a hash of row and column is below the threshold: see dropout.py.
//
// In:   x (N, F), seeds (N) int32
// Out:  out (N, F), maybe the array of x
// A thread takes an element: bytes = 8 * N * F.

struct Arguments {
    rows: u32, columns: u32, salt: u32, threshold: u32,
    x_at: u32, x_row: u32, seeds_at: u32, out_at: u32, out_row: u32,
}

@group(0) @binding(0) var<storage, read_write> x: array<Activation>;
@group(0) @binding(1) var<storage, read_write> seeds: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<Activation>;
@group(0) @binding(3) var<uniform> p: Arguments;

/// The end of MurmurHash3 (Appleby 2011).
fn mixed(word: u32) -> u32 {
    let once = (word ^ (word >> 16u)) * 0x85ebca6bu;
    let twice = (once ^ (once >> 13u)) * 0xc2b2ae35u;
    return twice ^ (twice >> 16u);
}

@compute @workgroup_size(THREADS)
fn drop(thread: Thread) {
    let i = element(thread);
    if (i >= p.rows * p.columns) {
        return;
    }
    let n = i / p.columns;
    let f = i % p.columns;
    let row = mixed(seeds[p.seeds_at + n] ^ mixed(p.salt));
    let kept = mixed(row ^ mixed(f)) >= p.threshold;
    out[p.out_at + n * p.out_row + f] = select(Activation(0.0), x[p.x_at + n * p.x_row + f], kept);
}
