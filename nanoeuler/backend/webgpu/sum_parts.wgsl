// What parts of a product's inner dimension gave: out[m, n] = scale * sum of parts
// + add_scale * add[m, n]
//
// In:   partial (parts, rows, columns), add (rows, columns)
// Out:  out (rows, columns), maybe the array of add
// A thread takes an element: bytes = 4 * rows * columns * (parts + 1), and those of add.

struct Arguments {
    rows: u32, columns: u32, parts: u32, add_scale: f32, scale: f32,
    partial_at: u32, add_at: u32, add_outer: u32, out_at: u32, out_outer: u32,
}

@group(0) @binding(0) var<storage, read_write> partial: array<f32>;
@group(0) @binding(1) var<storage, read_write> add: array<Add>;
@group(0) @binding(2) var<storage, read_write> out: array<Out>;
@group(0) @binding(3) var<uniform> p: Arguments;

@compute @workgroup_size(THREADS)
fn sum_parts(thread: Thread) {
    let i = element(thread);
    let elements = p.rows * p.columns;
    if (i >= elements) {
        return;
    }
    var sum = 0.0;
    for (var part = 0u; part < p.parts; part++) {
        sum += partial[p.partial_at + part * elements + i];
    }
    var value = p.scale * sum;
    let m = i / p.columns;
    let n = i % p.columns;
    if (p.add_scale != 0.0) {
        value = fma(p.add_scale, f32(add[p.add_at + m * p.add_outer + n]), value);
    }
    out[p.out_at + m * p.out_outer + n] = Out(value);
}
