// Copies of words of 32 bits between arrays of any strides, and fills; copies of floats that become
// those of another size.
//
// In:   source or floats, or a value
// Out:  copied or converted, of up to five dimensions: the inner four have sizes and strides of
//       their own
// A thread takes a word, or a float: bytes = 8 for each, 4 of a fill.

struct Arguments {
    count: u32, size1: u32, size2: u32, size3: u32, size4: u32, value: u32,
    to0: u32, to1: u32, to2: u32, to3: u32, to4: u32,
    from0: u32, from1: u32, from2: u32, from3: u32, from4: u32,
    source_at: u32, copied_at: u32, floats_at: u32, converted_at: u32,
}

@group(0) @binding(0) var<storage, read_write> source: array<u32>;
@group(0) @binding(1) var<storage, read_write> copied: array<u32>;
@group(0) @binding(2) var<storage, read_write> floats: array<Left>;
@group(0) @binding(3) var<storage, read_write> converted: array<Out>;
@group(0) @binding(4) var<uniform> p: Arguments;

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
        i0 * p.to0 + i1 * p.to1 + i2 * p.to2 + i3 * p.to3 + i4 * p.to4,
        i0 * p.from0 + i1 * p.from1 + i2 * p.from2 + i3 * p.from3 + i4 * p.from4,
    );
}

@compute @workgroup_size(THREADS)
fn copy(thread: Thread) {
    let i = element(thread);
    if (i < p.count) {
        let at = places(i);
        copied[p.copied_at + at.to] = source[p.source_at + at.source];
    }
}

@compute @workgroup_size(THREADS)
fn fill(thread: Thread) {
    let i = element(thread);
    if (i < p.count) {
        copied[p.copied_at + places(i).to] = p.value;
    }
}

@compute @workgroup_size(THREADS)
fn convert(thread: Thread) {
    let i = element(thread);
    if (i < p.count) {
        let at = places(i);
        converted[p.converted_at + at.to] = Out(floats[p.floats_at + at.source]);
    }
}
