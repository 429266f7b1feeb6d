// Large matrix products: out[m, n] = scale * sum over k of left[m, k] right[n, k]
// + add_scale * add[m, n]
//
// In:   left (rows, inner), right (columns, inner); add like out
// Out:  out (rows, columns), maybe the array of add; or with several parts of the inner dimension
//       out (parts, rows, columns), the sums over `inner` elements each of `whole_inner`
// A workgroup makes a tile of WIDE_ROWS x WIDE_COLUMNS from steps of WIDE_DEPTH elements of the
// inner dimension, and a thread 8 x 8 of it: four blocks of 4 x 4. Its memory holds two steps: one
// is computed while the next is read. Everything is read and written in quads of neighbours, so
// every beginning and stride is a multiple of 4, and so is each size along which neighbours lie.
// bytes = 4 * rows * columns * inner * (1 / WIDE_ROWS + 1 / WIDE_COLUMNS), and those of out.
// LEFT_READS and RIGHT_READS are the quads that a thread reads in a step.
// LEFT_INNER and RIGHT_INNER say whether neighbours of the inner dimension are so in memory.

struct Arguments {
    rows: u32, columns: u32, inner: u32, whole_inner: u32, add_scale: f32, scale: f32,
    left_at: u32, left_outer: u32, left_inner: u32,
    right_at: u32, right_outer: u32, right_inner: u32,
    add_at: u32, add_outer: u32, out_at: u32, out_batch: u32, out_outer: u32,
}

@group(0) @binding(0) var<storage, read_write> left: array<vec4<Left>>;
@group(0) @binding(1) var<storage, read_write> right: array<vec4<Right>>;
@group(0) @binding(2) var<storage, read_write> add: array<vec4<Add>>;
@group(0) @binding(3) var<storage, read_write> out: array<vec4<Out>>;
@group(0) @binding(4) var<uniform> p: Arguments;

const ACROSS = WIDE_COLUMNS / 8u;  // threads in a row
const MEMBERS = ACROSS * WIDE_ROWS / 8u;
const LEFT_QUADS = WIDE_ROWS / 4u;
const RIGHT_QUADS = WIDE_COLUMNS / 4u;
const DEEP_QUADS = WIDE_DEPTH / 4u;

// one more, so that threads that turn a quad write to different banks
var<workgroup> left_tile: array<array<vec4<f32>, LEFT_QUADS + 1u>, 2u * WIDE_DEPTH>;
var<workgroup> right_tile: array<array<vec4<f32>, RIGHT_QUADS + 1u>, 2u * WIDE_DEPTH>;

/// The i-th quad of a step: row (of the tile) and k, the first of both.
fn place(i: u32, quads: u32, along_inner: bool) -> vec2<u32> {
    if (along_inner) {
        return vec2(i / DEEP_QUADS, 4u * (i % DEEP_QUADS));
    }
    return vec2(4u * (i % quads), i / quads);
}

fn read_left(row: u32, k: u32, end: u32) -> vec4<Left> {
    if (row < p.rows && k < end) {
        return left[(p.left_at + row * p.left_outer + k * p.left_inner) / 4u];
    }
    return vec4<Left>();
}

fn read_right(row: u32, k: u32, end: u32) -> vec4<Right> {
    if (row < p.columns && k < end) {
        return right[(p.right_at + row * p.right_outer + k * p.right_inner) / 4u];
    }
    return vec4<Right>();
}

/// Into the half of the tile that begins at step `half`. What was read becomes float32 here and no
/// earlier: a thread would wait for it, which costs a fifth of the rate.
fn store_left(at: vec2<u32>, half: u32, read: vec4<Left>) {
    let quad = vec4<f32>(read);
    let k = half + at.y;
    if (LEFT_INNER) {
        left_tile[k][at.x / 4u][at.x % 4u] = quad.x;
        left_tile[k + 1u][at.x / 4u][at.x % 4u] = quad.y;
        left_tile[k + 2u][at.x / 4u][at.x % 4u] = quad.z;
        left_tile[k + 3u][at.x / 4u][at.x % 4u] = quad.w;
    } else {
        left_tile[k][at.x / 4u] = quad;
    }
}

fn store_right(at: vec2<u32>, half: u32, read: vec4<Right>) {
    let quad = vec4<f32>(read);
    let k = half + at.y;
    if (RIGHT_INNER) {
        right_tile[k][at.x / 4u][at.x % 4u] = quad.x;
        right_tile[k + 1u][at.x / 4u][at.x % 4u] = quad.y;
        right_tile[k + 2u][at.x / 4u][at.x % 4u] = quad.z;
        right_tile[k + 3u][at.x / 4u][at.x % 4u] = quad.w;
    } else {
        right_tile[k][at.x / 4u] = quad;
    }
}

fn store_quad(part: u32, m: u32, n: u32, sums: vec4<f32>) {
    if (m < p.rows && n < p.columns) {
        var value = p.scale * sums;
        if (p.add_scale != 0.0) {
            let added = vec4<f32>(add[(p.add_at + m * p.add_outer + n) / 4u]);
            value = fma(vec4(p.add_scale), added, value);
        }
        out[(p.out_at + part * p.out_batch + m * p.out_outer + n) / 4u] = vec4<Out>(value);
    }
}

@compute @workgroup_size(MEMBERS)
fn multiply(
    @builtin(workgroup_id) w: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let m0 = w.y * WIDE_ROWS;
    let n0 = w.x * WIDE_COLUMNS;
    let begin = w.z * p.inner;
    let end = min(begin + p.inner, p.whole_inner);
    let y = thread / ACROSS;
    let x = thread % ACROSS;
    // rows 0 to 3 of the blocks above, 4 to 7 below; a: the blocks on the left, b: on the right
    var a0 = vec4<f32>(); var a1 = vec4<f32>(); var a2 = vec4<f32>(); var a3 = vec4<f32>();
    var a4 = vec4<f32>(); var a5 = vec4<f32>(); var a6 = vec4<f32>(); var a7 = vec4<f32>();
    var b0 = vec4<f32>(); var b1 = vec4<f32>(); var b2 = vec4<f32>(); var b3 = vec4<f32>();
    var b4 = vec4<f32>(); var b5 = vec4<f32>(); var b6 = vec4<f32>(); var b7 = vec4<f32>();
    for (var i = 0u; i < LEFT_READS; i++) {  // unrolled
        let at = place(thread + i * MEMBERS, LEFT_QUADS, LEFT_INNER);
        store_left(at, 0u, read_left(m0 + at.x, begin + at.y, end));
    }
    for (var i = 0u; i < RIGHT_READS; i++) {  // unrolled
        let at = place(thread + i * MEMBERS, RIGHT_QUADS, RIGHT_INNER);
        store_right(at, 0u, read_right(n0 + at.x, begin + at.y, end));
    }
    workgroupBarrier();
    var half = 0u;
    for (var k = begin; k < end; k += WIDE_DEPTH) {
        let next = k + WIDE_DEPTH;
        var next_left = array<vec4<Left>, LEFT_READS>();
        var next_right = array<vec4<Right>, RIGHT_READS>();
        for (var i = 0u; i < LEFT_READS; i++) {  // unrolled
            let at = place(thread + i * MEMBERS, LEFT_QUADS, LEFT_INNER);
            next_left[i] = read_left(m0 + at.x, next + at.y, end);
        }
        for (var i = 0u; i < RIGHT_READS; i++) {  // unrolled
            let at = place(thread + i * MEMBERS, RIGHT_QUADS, RIGHT_INNER);
            next_right[i] = read_right(n0 + at.x, next + at.y, end);
        }
        for (var step = 0u; step < WIDE_DEPTH; step++) {  // unrolled
            let top = left_tile[half + step][y];
            let bottom = left_tile[half + step][y + LEFT_QUADS / 2u];
            let a = right_tile[half + step][x];
            let b = right_tile[half + step][x + RIGHT_QUADS / 2u];
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
        half = WIDE_DEPTH - half;
        for (var i = 0u; i < LEFT_READS; i++) {  // unrolled
            store_left(place(thread + i * MEMBERS, LEFT_QUADS, LEFT_INNER), half, next_left[i]);
        }
        for (var i = 0u; i < RIGHT_READS; i++) {  // unrolled
            store_right(place(thread + i * MEMBERS, RIGHT_QUADS, RIGHT_INNER), half, next_right[i]);
        }
        workgroupBarrier();
    }
    let m = m0 + 4u * y;
    let lower = m + WIDE_ROWS / 2u;
    let n = n0 + 4u * x;
    let further = n + WIDE_COLUMNS / 2u;
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
