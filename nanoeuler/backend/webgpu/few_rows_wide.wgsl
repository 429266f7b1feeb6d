// A product of few rows, as few_rows.wgsl, of what can be read in quads of neighbours:
// out[m, n] = scale * sum over k of left[m, k] right[n, k] + add_scale * add[m, n]
//
// In:   left (ROWS, inner), right (columns, inner), whose neighbours k are neighbours in memory
// Out:  out (ROWS, columns); may be the array of add
// A workgroup makes FEW_ROWS_COLUMNS columns of all rows, and some threads share the inner
// dimension of one. Right is read once: bytes = 4 * columns * inner, or half of that in float16.

struct Arguments {
    columns: u32, inner: u32, add_scale: f32, scale: f32,
    left_at: u32, left_outer: u32, right_at: u32, right_outer: u32,
    add_at: u32, add_outer: u32, out_at: u32, out_outer: u32,
}

@group(0) @binding(0) var<storage, read_write> left: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> right: array<vec4<Weight>>;
@group(0) @binding(2) var<storage, read_write> add: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
@group(0) @binding(4) var<uniform> p: Arguments;

const SHARE = THREADS / FEW_ROWS_COLUMNS;

var<workgroup> partial: array<array<f32, THREADS>, ROWS>;

@compute @workgroup_size(THREADS)
fn multiply(
    @builtin(workgroup_id) w: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let n = (w.y * count.x + w.x) * FEW_ROWS_COLUMNS + thread / SHARE;
    let share = thread % SHARE;
    var sums = array<f32, ROWS>();
    if (n < p.columns) {
        let weights = (p.right_at + n * p.right_outer) / 4u;
        for (var q = share; q < p.inner / 4u; q += SHARE) {
            let weight = vec4<f32>(right[weights + q]);
            for (var m = 0u; m < ROWS; m++) {  // unrolled
                sums[m] += dot(left[(p.left_at + m * p.left_outer) / 4u + q], weight);
            }
        }
    }
    for (var m = 0u; m < ROWS; m++) {  // unrolled
        partial[m][thread] = sums[m];
    }
    workgroupBarrier();
    for (var half = SHARE / 2u; half > 0u; half /= 2u) {
        if (share < half) {
            for (var m = 0u; m < ROWS; m++) {  // unrolled
                partial[m][thread] += partial[m][thread + half];
            }
        }
        workgroupBarrier();
    }
    if (share < ROWS && n < p.columns) {
        var value = p.scale * partial[share][thread - share];
        if (p.add_scale != 0.0) {
            value = fma(p.add_scale, add[p.add_at + share * p.add_outer + n], value);
        }
        out[p.out_at + share * p.out_outer + n] = value;
    }
}
