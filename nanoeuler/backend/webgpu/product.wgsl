// Matrix products: out[m, n] = scale * sum over k of left[m, k] right[n, k] + add_scale * add[m, n]
//
// In:   left (batches, rows, inner), right (batches, columns, inner), add like out; any strides
// Out:  out (batches, rows, columns), maybe the array of add; or of one product, with several parts
//       of the inner dimension, the sums over `inner` elements each of `whole_inner`
// A workgroup of (TILE / 4)^2 threads makes a tile of TILE^2 from steps of STEP = TILE / 4 of the
// inner dimension, and a thread 4 x 4 of it. Each element of left is read columns / TILE times, and
// of right rows / TILE times: bytes = 4 * rows * columns * inner * 2 / TILE, and those of out.
// LEFT_INNER and RIGHT_INNER say whether neighbours of the inner dimension are so in memory.

struct Arguments {
    rows: u32, columns: u32, inner: u32, whole_inner: u32, add_scale: f32, scale: f32,
    left_at: u32, left_batch: u32, left_outer: u32, left_inner: u32,
    right_at: u32, right_batch: u32, right_outer: u32, right_inner: u32,
    add_at: u32, add_batch: u32, add_outer: u32,
    out_at: u32, out_batch: u32, out_outer: u32,
}

@group(0) @binding(0) var<storage, read_write> left: array<Left>;
@group(0) @binding(1) var<storage, read_write> right: array<Right>;
@group(0) @binding(2) var<storage, read_write> add: array<Add>;
@group(0) @binding(3) var<storage, read_write> out: array<Out>;
@group(0) @binding(4) var<uniform> p: Arguments;

const QUADS = TILE / 4u;

// (step, quad of rows or columns)
var<workgroup> left_tile: array<array<vec4<f32>, QUADS>, STEP>;
var<workgroup> right_tile: array<array<vec4<f32>, QUADS>, STEP>;

fn left_element(base: u32, m: u32, k: u32, end: u32) -> f32 {
    if (m < p.rows && k < end) {
        return f32(left[base + m * p.left_outer + k * p.left_inner]);
    }
    return 0.0;
}

fn right_element(base: u32, n: u32, k: u32, end: u32) -> f32 {
    if (n < p.columns && k < end) {
        return f32(right[base + n * p.right_outer + k * p.right_inner]);
    }
    return 0.0;
}

fn store_row(batch: u32, m: u32, n: u32, sums: vec4<f32>) {
    if (m >= p.rows) {
        return;
    }
    let to = p.out_at + batch * p.out_batch + m * p.out_outer;
    let from_add = p.add_at + batch * p.add_batch + m * p.add_outer;
    for (var i = 0u; i < 4u; i++) {
        if (n + i < p.columns) {
            var value = p.scale * sums[i];
            if (p.add_scale != 0.0) {
                value = fma(p.add_scale, f32(add[from_add + n + i]), value);
            }
            out[to + n + i] = Out(value);
        }
    }
}

@compute @workgroup_size(QUADS * QUADS)
fn multiply(
    @builtin(workgroup_id) w: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let first_row = w.y * TILE;
    let first_column = w.x * TILE;
    let left_base = p.left_at + w.z * p.left_batch;
    let right_base = p.right_at + w.z * p.right_batch;
    // the part of a tile that a thread loads: four neighbours in memory
    let outer = thread / QUADS;
    let inner = thread % QUADS;
    var row0 = vec4<f32>();
    var row1 = vec4<f32>();
    var row2 = vec4<f32>();
    var row3 = vec4<f32>();
    let begin = select(w.z * p.inner, 0u, p.whole_inner == p.inner);
    let end = min(begin + p.inner, p.whole_inner);
    for (var k = begin; k < end; k += STEP) {
        if (LEFT_INNER) {
            for (var i = 0u; i < 4u; i++) {
                let at = inner / (QUADS / 4u) + 4u * outer;  // a row of the tile
                let step = (inner % (QUADS / 4u)) * 4u + i;
                left_tile[step][at / 4u][at % 4u] =
                    left_element(left_base, first_row + at, k + step, end);
            }
        } else {
            let m = first_row + 4u * inner;
            let step = k + outer;
            left_tile[outer][inner] = vec4(
                left_element(left_base, m, step, end),
                left_element(left_base, m + 1u, step, end),
                left_element(left_base, m + 2u, step, end),
                left_element(left_base, m + 3u, step, end),
            );
        }
        if (RIGHT_INNER) {
            for (var i = 0u; i < 4u; i++) {
                let at = inner / (QUADS / 4u) + 4u * outer;
                let step = (inner % (QUADS / 4u)) * 4u + i;
                right_tile[step][at / 4u][at % 4u] =
                    right_element(right_base, first_column + at, k + step, end);
            }
        } else {
            let n = first_column + 4u * inner;
            let step = k + outer;
            right_tile[outer][inner] = vec4(
                right_element(right_base, n, step, end),
                right_element(right_base, n + 1u, step, end),
                right_element(right_base, n + 2u, step, end),
                right_element(right_base, n + 3u, step, end),
            );
        }
        workgroupBarrier();
        for (var step = 0u; step < STEP; step++) {
            let a = left_tile[step][outer];
            let b = right_tile[step][inner];
            row0 = fma(vec4(a.x), b, row0);
            row1 = fma(vec4(a.y), b, row1);
            row2 = fma(vec4(a.z), b, row2);
            row3 = fma(vec4(a.w), b, row3);
        }
        workgroupBarrier();
    }
    let m = first_row + 4u * outer;
    let n = first_column + 4u * inner;
    store_row(w.z, m, n, row0);
    store_row(w.z, m + 1u, n, row1);
    store_row(w.z, m + 2u, n, row2);
    store_row(w.z, m + 3u, n, row3);
}
