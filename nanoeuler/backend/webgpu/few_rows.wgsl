// A product of few rows, as in decoding: out[m, n] = scale * sum over k of left[m, k] right[n, k]
// + add_scale * add[m, n]
//
// In:   left (LEFT_ROWS, inner), right (columns, inner), whose neighbours k are neighbours in
//       memory; NORMED: an RMSNorm of left's rows with `weight` (inner) comes first; GATED: right
//       makes gates, up (columns, inner) what they let through, and out is silu(gate) * up
// Out:  out (LEFT_ROWS, columns); may be the array of add
// A workgroup makes FEW_ROWS_COLUMNS columns of all rows, and SHARE threads share the inner
// dimension of one, WIDTH neighbours at a time. Right is read once: bytes = 4 * columns * inner, or
// half of that in float16; with gates twice as many.

struct Arguments {
    columns: u32, inner: u32, add_scale: f32, scale: f32, epsilon: f32,
    left_at: u32, left_outer: u32, right_at: u32, right_outer: u32, up_at: u32, up_outer: u32,
    weight_at: u32, add_at: u32, add_outer: u32, out_at: u32, out_outer: u32,
}

@group(0) @binding(0) var<storage, read_write> left: array<NumbersOfLeft>;
@group(0) @binding(1) var<storage, read_write> right: array<NumbersOfRight>;
@group(0) @binding(2) var<storage, read_write> up: array<NumbersOfRight>;
@group(0) @binding(3) var<storage, read_write> weight: array<NumbersOfLeft>;
@group(0) @binding(4) var<storage, read_write> add: array<Add>;
@group(0) @binding(5) var<storage, read_write> out: array<Out>;
@group(0) @binding(6) var<uniform> p: Arguments;

const SHARE = THREADS / FEW_ROWS_COLUMNS;

alias Partial = array<array<f32, THREADS>, LEFT_ROWS>;

var<workgroup> partial: Partial;
var<workgroup> partial_up: Partial;
var<workgroup> partial_squares: Partial;

@compute @workgroup_size(THREADS)
fn multiply(workgroup: Workgroup, @builtin(local_invocation_index) thread: u32) {
    let n = number_of(workgroup) * FEW_ROWS_COLUMNS + thread / SHARE;
    let share = thread % SHARE;
    var sums = array<Numbers, LEFT_ROWS>();
    var ups = array<Numbers, LEFT_ROWS>();
    var squares = array<Numbers, LEFT_ROWS>();
    if (n < p.columns) {
        let from_right = (p.right_at + n * p.right_outer) / WIDTH;
        let from_up = (p.up_at + n * p.up_outer) / WIDTH;
        for (var k = share; k < p.inner / WIDTH; k += SHARE) {
            let of_right = Numbers(right[from_right + k]);
            var of_up = Numbers();
            if (GATED) {
                of_up = Numbers(up[from_up + k]);
            }
            for (var m = 0u; m < LEFT_ROWS; m++) {  // unrolled
                var x = Numbers(left[(p.left_at + m * p.left_outer) / WIDTH + k]);
                if (NORMED) {
                    squares[m] = fma(x, x, squares[m]);
                    x *= Numbers(weight[p.weight_at / WIDTH + k]);
                }
                sums[m] = fma(x, of_right, sums[m]);
                if (GATED) {
                    ups[m] = fma(x, of_up, ups[m]);
                }
            }
        }
    }
    for (var m = 0u; m < LEFT_ROWS; m++) {  // unrolled
        partial[m][thread] = sum_of(sums[m]);
        if (GATED) {
            partial_up[m][thread] = sum_of(ups[m]);
        }
        if (NORMED) {
            partial_squares[m][thread] = sum_of(squares[m]);
        }
    }
    workgroupBarrier();
    for (var half = SHARE / 2u; half > 0u; half /= 2u) {
        if (share < half) {
            for (var m = 0u; m < LEFT_ROWS; m++) {  // unrolled
                partial[m][thread] += partial[m][thread + half];
                if (GATED) {
                    partial_up[m][thread] += partial_up[m][thread + half];
                }
                if (NORMED) {
                    partial_squares[m][thread] += partial_squares[m][thread + half];
                }
            }
        }
        workgroupBarrier();
    }
    if (share < LEFT_ROWS && n < p.columns) {
        let first = thread - share;
        var factor = 1.0;
        if (NORMED) {
            factor = 1.0 / sqrt(partial_squares[share][first] / f32(p.inner) + p.epsilon);
        }
        var value = factor * partial[share][first];
        if (GATED) {
            value *= sigmoid(value) * factor * partial_up[share][first];
        }
        value *= p.scale;
        if (p.add_scale != 0.0) {
            value = fma(p.add_scale, f32(add[p.add_at + share * p.add_outer + n]), value);
        }
        out[p.out_at + share * p.out_outer + n] = Out(value);
    }
}
