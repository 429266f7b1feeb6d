// Copies of words of 32 bits between arrays of any strides, and fills.
//
// In:   source, or a value
// Out:  copied, of up to five dimensions: the inner four have sizes and strides of their own
// A thread takes a word: bytes = 8 for each, 4 of a fill.

struct Arguments {
    count: u32, size1: u32, size2: u32, size3: u32, size4: u32, value: u32,
    to0: u32, to1: u32, to2: u32, to3: u32, to4: u32,
    from0: u32, from1: u32, from2: u32, from3: u32, from4: u32,
    source_at: u32, copied_at: u32,
}

@group(0) @binding(0) var<storage, read_write> source: array<u32>;
@group(0) @binding(1) var<storage, read_write> copied: array<u32>;
@group(0) @binding(2) var<uniform> p: Arguments;

struct Places { to: u32, source: u32 }

fn places(i: u32) -> Places {
    let i4 = i % p.size4;
    let rest3 = i / p.size4;
    let i3 = rest3 % p.size3;
    let rest2 = rest3 / p.size3;
    let i2 = rest2 % p.size2;
    let rest1 = rest2 / p.size2;
    let i1 = rest1 % p.size1;
    let i0 = rest1 / p.size1;
    return Places(
        p.copied_at + i0 * p.to0 + i1 * p.to1 + i2 * p.to2 + i3 * p.to3 + i4 * p.to4,
        p.source_at + i0 * p.from0 + i1 * p.from1 + i2 * p.from2 + i3 * p.from3 + i4 * p.from4,
    );
}

@compute @workgroup_size(THREADS)
fn copy(thread: Thread) {
    let i = element(thread);
    if (i < p.count) {
        let at = places(i);
        copied[at.to] = source[at.source];
    }
}

@compute @workgroup_size(THREADS)
fn fill(thread: Thread) {
    let i = element(thread);
    if (i < p.count) {
        copied[places(i).to] = p.value;
    }
}
