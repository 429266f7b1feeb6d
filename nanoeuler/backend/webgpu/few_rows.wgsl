// A product of few rows, as in decoding: out[m, n] = scale * sum over k of left[m, k] right[n, k]
// + add_scale * add[m, n]
//
// In:   left (rows, inner), right (columns, inner), whose neighbours k are neighbours in memory
// Out:  out (rows, columns); may be the array of add
// A workgroup makes FEW_ROWS_COLUMNS columns of all rows, at most FEW_ROWS, and some threads share
// the inner dimension of one. Right is read once: bytes = 4 * columns * inner.

struct Arguments {
    rows: u32, columns: u32, inner: u32, add_scale: f32, scale: f32,
    left_at: u32, left_outer: u32, left_inner: u32, right_at: u32, right_outer: u32,
    add_at: u32, add_outer: u32, out_at: u32, out_outer: u32,
}

@group(0) @binding(0) var<storage, read_write> left: array<f32>;
@group(0) @binding(1) var<storage, read_write> right: array<Weight>;
@group(0) @binding(2) var<storage, read_write> add: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
@group(0) @binding(4) var<uniform> p: Arguments;

const SHARE = THREADS / FEW_ROWS_COLUMNS;

var<workgroup> partial: array<array<f32, THREADS>, FEW_ROWS>;

@compute @workgroup_size(THREADS)
fn multiply(
    @builtin(workgroup_id) w: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let n = (w.y * count.x + w.x) * FEW_ROWS_COLUMNS + thread / SHARE;
    let share = thread % SHARE;
    var sums = array<f32, FEW_ROWS>();
    if (n < p.columns) {
        for (var k = share; k < p.inner; k += SHARE) {
            let weight = f32(right[p.right_at + n * p.right_outer + k]);
            for (var m = 0u; m < FEW_ROWS; m++) {
                if (m < p.rows) {
                    let x = left[p.left_at + m * p.left_outer + k * p.left_inner];
                    sums[m] = fma(x, weight, sums[m]);
                }
            }
        }
    }
    for (var m = 0u; m < FEW_ROWS; m++) {
        partial[m][thread] = sums[m];
    }
    workgroupBarrier();
    // a thread of each column for each row
    for (var m = share; m < p.rows; m += SHARE) {
        if (n < p.columns) {
            var sum = 0.0;
            for (var i = 0u; i < SHARE; i++) {
                sum += partial[m][thread - share + i];
            }
            var value = p.scale * sum;
            if (p.add_scale != 0.0) {
                value = fma(p.add_scale, add[p.add_at + m * p.add_outer + n], value);
            }
            out[p.out_at + m * p.out_outer + n] = value;
        }
    }
}
