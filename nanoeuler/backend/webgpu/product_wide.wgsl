// Large matrix products: out[m, n] = scale * sum over k of left[m, k] right[n, k]
// + add_scale * add[m, n]
//
// In:   left (rows, inner), right (columns, inner); add like out
// Out:  out (rows, columns), maybe the array of add; or with several parts of the inner dimension
//       out (parts, rows, columns), the sums over `inner` elements each of `whole_inner`
// A workgroup of 256 threads makes a tile of WIDE_TILE^2 from steps of 8 elements of the inner
// dimension, and a thread 8 x 8 of it: four blocks of 4 x 4. What the next step reads is on its way
// while a step is computed. Everything is read and written in quads of neighbours, so every
// beginning and stride is a multiple of 4, and so is each size along which neighbours lie.
// bytes = 8 * rows * columns * inner / WIDE_TILE, and those of out.
// LEFT_INNER and RIGHT_INNER say whether neighbours of the inner dimension are so in memory.

struct Arguments {
    rows: u32, columns: u32, inner: u32, whole_inner: u32, add_scale: f32, scale: f32,
    left_at: u32, left_outer: u32, left_inner: u32,
    right_at: u32, right_outer: u32, right_inner: u32,
    add_at: u32, add_outer: u32, out_at: u32, out_batch: u32, out_outer: u32,
}

@group(0) @binding(0) var<storage, read_write> left: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> right: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> add: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(4) var<uniform> p: Arguments;

const DEPTH = 8u;  // of a step
const QUADS = WIDE_TILE / 4u;
const PADDED = QUADS + 1u;  // so that threads that turn a quad write to different banks

var<workgroup> left_tile: array<array<vec4<f32>, PADDED>, DEPTH>;
var<workgroup> right_tile: array<array<vec4<f32>, PADDED>, DEPTH>;

/// The thread's quad of a step: row (of the tile) and k, the first of both.
fn place(thread: u32, along_inner: bool) -> vec2<u32> {
    if (along_inner) {
        return vec2(thread / 2u, 4u * (thread % 2u));
    }
    return vec2(4u * (thread % QUADS), thread / QUADS);
}

fn read_left(row: u32, k: u32, end: u32) -> vec4<f32> {
    if (row < p.rows && k < end) {
        return left[(p.left_at + row * p.left_outer + k * p.left_inner) / 4u];
    }
    return vec4<f32>();
}

fn read_right(row: u32, k: u32, end: u32) -> vec4<f32> {
    if (row < p.columns && k < end) {
        return right[(p.right_at + row * p.right_outer + k * p.right_inner) / 4u];
    }
    return vec4<f32>();
}

fn store_quad(part: u32, m: u32, n: u32, sums: vec4<f32>) {
    if (m < p.rows && n < p.columns) {
        var value = p.scale * sums;
        if (p.add_scale != 0.0) {
            value = fma(vec4(p.add_scale), add[(p.add_at + m * p.add_outer + n) / 4u], value);
        }
        out[(p.out_at + part * p.out_batch + m * p.out_outer + n) / 4u] = value;
    }
}

@compute @workgroup_size(256)
fn multiply(
    @builtin(workgroup_id) w: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let m0 = w.y * WIDE_TILE;
    let n0 = w.x * WIDE_TILE;
    let begin = w.z * p.inner;
    let end = min(begin + p.inner, p.whole_inner);
    let l = place(thread, LEFT_INNER);
    let r = place(thread, RIGHT_INNER);
    let y = thread / 16u;
    let x = thread % 16u;
    // rows 0 to 3 of the blocks above, 4 to 7 below; a: the blocks on the left, b: on the right
    var a0 = vec4<f32>(); var a1 = vec4<f32>(); var a2 = vec4<f32>(); var a3 = vec4<f32>();
    var a4 = vec4<f32>(); var a5 = vec4<f32>(); var a6 = vec4<f32>(); var a7 = vec4<f32>();
    var b0 = vec4<f32>(); var b1 = vec4<f32>(); var b2 = vec4<f32>(); var b3 = vec4<f32>();
    var b4 = vec4<f32>(); var b5 = vec4<f32>(); var b6 = vec4<f32>(); var b7 = vec4<f32>();
    var next_left = read_left(m0 + l.x, begin + l.y, end);
    var next_right = read_right(n0 + r.x, begin + r.y, end);
    for (var k = begin; k < end; k += DEPTH) {
        if (LEFT_INNER) {
            left_tile[l.y][l.x / 4u][l.x % 4u] = next_left.x;
            left_tile[l.y + 1u][l.x / 4u][l.x % 4u] = next_left.y;
            left_tile[l.y + 2u][l.x / 4u][l.x % 4u] = next_left.z;
            left_tile[l.y + 3u][l.x / 4u][l.x % 4u] = next_left.w;
        } else {
            left_tile[l.y][l.x / 4u] = next_left;
        }
        if (RIGHT_INNER) {
            right_tile[r.y][r.x / 4u][r.x % 4u] = next_right.x;
            right_tile[r.y + 1u][r.x / 4u][r.x % 4u] = next_right.y;
            right_tile[r.y + 2u][r.x / 4u][r.x % 4u] = next_right.z;
            right_tile[r.y + 3u][r.x / 4u][r.x % 4u] = next_right.w;
        } else {
            right_tile[r.y][r.x / 4u] = next_right;
        }
        workgroupBarrier();
        next_left = read_left(m0 + l.x, k + DEPTH + l.y, end);
        next_right = read_right(n0 + r.x, k + DEPTH + r.y, end);
        for (var step = 0u; step < DEPTH; step++) {
            let top = left_tile[step][y];
            let bottom = left_tile[step][y + QUADS / 2u];
            let a = right_tile[step][x];
            let b = right_tile[step][x + QUADS / 2u];
            a0 = fma(vec4(top.x), a, a0);
            b0 = fma(vec4(top.x), b, b0);
            a1 = fma(vec4(top.y), a, a1);
            b1 = fma(vec4(top.y), b, b1);
            a2 = fma(vec4(top.z), a, a2);
            b2 = fma(vec4(top.z), b, b2);
            a3 = fma(vec4(top.w), a, a3);
            b3 = fma(vec4(top.w), b, b3);
            a4 = fma(vec4(bottom.x), a, a4);
            b4 = fma(vec4(bottom.x), b, b4);
            a5 = fma(vec4(bottom.y), a, a5);
            b5 = fma(vec4(bottom.y), b, b5);
            a6 = fma(vec4(bottom.z), a, a6);
            b6 = fma(vec4(bottom.z), b, b6);
            a7 = fma(vec4(bottom.w), a, a7);
            b7 = fma(vec4(bottom.w), b, b7);
        }
        workgroupBarrier();
    }
    let m = m0 + 4u * y;
    let lower = m + WIDE_TILE / 2u;
    let n = n0 + 4u * x;
    let further = n + WIDE_TILE / 2u;
    store_quad(w.z, m, n, a0);
    store_quad(w.z, m, further, b0);
    store_quad(w.z, m + 1u, n, a1);
    store_quad(w.z, m + 1u, further, b1);
    store_quad(w.z, m + 2u, n, a2);
    store_quad(w.z, m + 2u, further, b2);
    store_quad(w.z, m + 3u, n, a3);
    store_quad(w.z, m + 3u, further, b3);
    store_quad(w.z, lower, n, a4);
    store_quad(w.z, lower, further, b4);
    store_quad(w.z, lower + 1u, n, a5);
    store_quad(w.z, lower + 1u, further, b5);
    store_quad(w.z, lower + 2u, n, a6);
    store_quad(w.z, lower + 2u, further, b6);
    store_quad(w.z, lower + 3u, n, a7);
    store_quad(w.z, lower + 3u, further, b7);
}
