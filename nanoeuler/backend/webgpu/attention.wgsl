// Causal grouped-query attention: out = softmax(q k^T / sqrt(E)) v; reference.py has the formulas.
//
// In:   query, dout (B, T, H, E), key, value (B, S, G, E), starts (B, T), offset (B) int32
// Out:  out like query, lse (B, H, T); stats (B, H, T): lse, and the sum of dout * out; dquery,
//       dkey, dvalue
// Query i of row b sits at key position offset[b] + i and sees the keys from starts[b, i] on. A
// workgroup takes one query of one head, or backward one key of one key/value head, and THREADS
// keys or queries at a time: a thread finds the score of one of them, then sums one column of the
// head over all of them. Each pass reads keys and values T times, mostly from cache:
// bytes = 4 * B * H * T * T * E forward, 3.5 times as many backward.
// HEAD_SIZE is E, a multiple of 4.

struct Arguments {
    tokens: u32, heads: u32, group: u32, cap: f32, root: f32,
    query_at: u32, query_row: u32, query_batch: u32, key_at: u32, key_row: u32, key_batch: u32,
    value_at: u32, value_row: u32, value_batch: u32, out_at: u32, out_row: u32, out_batch: u32,
    dout_at: u32, dout_row: u32, dout_batch: u32,
    dquery_at: u32, dquery_row: u32, dquery_batch: u32, dkey_at: u32, dkey_row: u32,
    dkey_batch: u32, dvalue_at: u32, dvalue_row: u32, dvalue_batch: u32,
    starts_at: u32, offset_at: u32, lse_at: u32, stats_at: u32,
}

@group(0) @binding(0) var<storage, read_write> query: array<f32>;
@group(0) @binding(1) var<storage, read_write> key: array<f32>;
@group(0) @binding(2) var<storage, read_write> value: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
@group(0) @binding(4) var<storage, read_write> starts: array<i32>;
@group(0) @binding(5) var<storage, read_write> offset: array<i32>;
@group(0) @binding(6) var<storage, read_write> lse: array<f32>;
@group(0) @binding(7) var<storage, read_write> dout: array<f32>;
@group(0) @binding(8) var<storage, read_write> stats: array<vec2<f32>>;
@group(0) @binding(9) var<storage, read_write> dquery: array<f32>;
@group(0) @binding(10) var<storage, read_write> dkey: array<f32>;
@group(0) @binding(11) var<storage, read_write> dvalue: array<f32>;
@group(0) @binding(12) var<uniform> p: Arguments;

const COLUMNS = (HEAD_SIZE + THREADS - 1u) / THREADS;  // of a head, for each thread

var<workgroup> first_row: array<f32, HEAD_SIZE>;  // the query, or the key
var<workgroup> second_row: array<f32, HEAD_SIZE>;  // its dout, or its value
var<workgroup> probabilities: array<f32, THREADS>;
var<workgroup> slopes: array<f32, THREADS>;  // of scores
var<workgroup> bounds: vec2<u32>;  // the first key that is seen, and the query's position

/// The capped score, and the derivative of the cap there.
fn capped(score: f32) -> vec2<f32> {
    if (p.cap == 0.0) {
        return vec2(score, 1.0);
    }
    let bent = hyperbolic_tangent(score / p.cap);
    return vec2(p.cap * bent, fma(-bent, bent, 1.0));
}

@compute @workgroup_size(THREADS)
fn forward(@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let t = w.x;
    let h = w.y;
    let b = w.z;
    let row = p.query_at + b * p.query_batch + t * p.query_row + h * HEAD_SIZE;
    for (var e = lane; e < HEAD_SIZE; e += THREADS) {
        first_row[e] = query[row + e];
    }
    if (lane == 0u) {
        let start = starts[p.starts_at + b * p.tokens + t];
        bounds = vec2(u32(start), u32(offset[p.offset_at + b]) + t);
    }
    let seen = workgroupUniformLoad(&bounds);
    let head = (h / p.group) * HEAD_SIZE;
    let keys = p.key_at + b * p.key_batch + head;
    let values = p.value_at + b * p.value_batch + head;
    var top = -HUGE;
    var total = 0.0;
    var sums: array<f32, COLUMNS>;
    for (var first = seen.x; first <= seen.y; first += THREADS) {
        let s = first + lane;
        var score = -HUGE;
        if (s <= seen.y) {
            var products = vec4<f32>();
            let of_key = keys + s * p.key_row;
            for (var e = 0u; e < HEAD_SIZE; e += 4u) {
                let k = of_key + e;
                let left = vec4(
                    first_row[e], first_row[e + 1u], first_row[e + 2u], first_row[e + 3u],
                );
                products = fma(left, vec4(key[k], key[k + 1u], key[k + 2u], key[k + 3u]), products);
            }
            score = capped(dot(products, vec4(1.0)) * p.root).x;
        }
        let next = max(top, workgroup_max(score, lane));
        let probability = select(0.0, exponential(score - next), s <= seen.y);
        probabilities[lane] = probability;
        let sum = workgroup_sum(probability, lane);
        let factor = select(exponential(top - next), 0.0, top == -HUGE);
        total = fma(total, factor, sum);
        top = next;
        let count = min(THREADS, seen.y + 1u - first);
        for (var c = 0u; c < COLUMNS; c++) {
            let e = c * THREADS + lane;
            if (e < HEAD_SIZE) {
                var mixed = 0.0;
                for (var j = 0u; j < count; j++) {
                    let v = values + (first + j) * p.value_row + e;
                    mixed = fma(probabilities[j], value[v], mixed);
                }
                sums[c] = fma(sums[c], factor, mixed);
            }
        }
        workgroupBarrier();
    }
    let to = p.out_at + b * p.out_batch + t * p.out_row + h * HEAD_SIZE;
    for (var c = 0u; c < COLUMNS; c++) {
        let e = c * THREADS + lane;
        if (e < HEAD_SIZE) {
            out[to + e] = sums[c] / total;
        }
    }
    if (lane == 0u) {
        lse[p.lse_at + (b * p.heads + h) * p.tokens + t] = top + logarithm(total);
    }
}

@compute @workgroup_size(THREADS)
fn row_stats(@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let of_out = p.out_at + w.z * p.out_batch + w.x * p.out_row + w.y * HEAD_SIZE;
    let of_dout = p.dout_at + w.z * p.dout_batch + w.x * p.dout_row + w.y * HEAD_SIZE;
    var product = 0.0;
    for (var e = lane; e < HEAD_SIZE; e += THREADS) {
        product = fma(out[of_out + e], dout[of_dout + e], product);
    }
    let sum = workgroup_sum(product, lane);
    if (lane == 0u) {
        let at = (w.z * p.heads + w.y) * p.tokens + w.x;
        stats[p.stats_at + at] = vec2(lse[p.lse_at + at], sum);
    }
}

@compute @workgroup_size(THREADS)
fn query_gradient(@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let t = w.x;
    let h = w.y;
    let b = w.z;
    let row = p.query_at + b * p.query_batch + t * p.query_row + h * HEAD_SIZE;
    let drow = p.dout_at + b * p.dout_batch + t * p.dout_row + h * HEAD_SIZE;
    for (var e = lane; e < HEAD_SIZE; e += THREADS) {
        first_row[e] = query[row + e];
        second_row[e] = dout[drow + e];
    }
    if (lane == 0u) {
        bounds = vec2(u32(starts[p.starts_at + b * p.tokens + t]), t);
    }
    let seen = workgroupUniformLoad(&bounds);
    let found = stats[p.stats_at + (b * p.heads + h) * p.tokens + t];
    let head = (h / p.group) * HEAD_SIZE;
    let keys = p.key_at + b * p.key_batch + head;
    let values = p.value_at + b * p.value_batch + head;
    var sums: array<f32, COLUMNS>;
    for (var first = seen.x; first <= seen.y; first += THREADS) {
        let s = first + lane;
        var slope = 0.0;
        if (s <= seen.y) {
            var sums_of_pairs = vec4<f32>();  // q k and dout v, over even and odd columns
            let of_key = keys + s * p.key_row;
            let of_value = values + s * p.value_row;
            for (var e = 0u; e < HEAD_SIZE; e += 2u) {
                let left = vec4(first_row[e], first_row[e + 1u], second_row[e], second_row[e + 1u]);
                let k = of_key + e;
                let v = of_value + e;
                let right = vec4(key[k], key[k + 1u], value[v], value[v + 1u]);
                sums_of_pairs = fma(left, right, sums_of_pairs);
            }
            let score = capped((sums_of_pairs.x + sums_of_pairs.y) * p.root);
            let gradient = sums_of_pairs.z + sums_of_pairs.w;
            slope = exponential(score.x - found.x) * (gradient - found.y) * score.y;
        }
        slopes[lane] = slope;
        workgroupBarrier();
        let count = min(THREADS, seen.y + 1u - first);
        for (var c = 0u; c < COLUMNS; c++) {
            let e = c * THREADS + lane;
            if (e < HEAD_SIZE) {
                for (var j = 0u; j < count; j++) {
                    sums[c] = fma(slopes[j], key[keys + (first + j) * p.key_row + e], sums[c]);
                }
            }
        }
        workgroupBarrier();
    }
    let to = p.dquery_at + b * p.dquery_batch + t * p.dquery_row + h * HEAD_SIZE;
    for (var c = 0u; c < COLUMNS; c++) {
        let e = c * THREADS + lane;
        if (e < HEAD_SIZE) {
            dquery[to + e] = sums[c] * p.root;
        }
    }
}

@compute @workgroup_size(THREADS)
fn key_gradient(@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let s = w.x;
    let g = w.y;
    let b = w.z;
    for (var e = lane; e < HEAD_SIZE; e += THREADS) {
        first_row[e] = key[p.key_at + b * p.key_batch + s * p.key_row + g * HEAD_SIZE + e];
        second_row[e] = value[p.value_at + b * p.value_batch + s * p.value_row + g * HEAD_SIZE + e];
    }
    workgroupBarrier();
    var key_sums: array<f32, COLUMNS>;
    var value_sums: array<f32, COLUMNS>;
    for (var h = g * p.group; h < (g + 1u) * p.group; h++) {
        let queries = p.query_at + b * p.query_batch + h * HEAD_SIZE;
        let douts = p.dout_at + b * p.dout_batch + h * HEAD_SIZE;
        for (var first = s; first < p.tokens; first += THREADS) {
            let t = first + lane;
            var probability = 0.0;
            var slope = 0.0;
            let row = b * p.tokens + min(t, p.tokens - 1u);
            if (t < p.tokens && u32(starts[p.starts_at + row]) <= s) {
                let found = stats[p.stats_at + (b * p.heads + h) * p.tokens + t];
                var sums_of_pairs = vec4<f32>();
                let of_query = queries + t * p.query_row;
                let of_dout = douts + t * p.dout_row;
                for (var e = 0u; e < HEAD_SIZE; e += 2u) {
                    let left =
                        vec4(first_row[e], first_row[e + 1u], second_row[e], second_row[e + 1u]);
                    let right = vec4(
                        query[of_query + e], query[of_query + e + 1u],
                        dout[of_dout + e], dout[of_dout + e + 1u],
                    );
                    sums_of_pairs = fma(left, right, sums_of_pairs);
                }
                let score = capped((sums_of_pairs.x + sums_of_pairs.y) * p.root);
                let gradient = sums_of_pairs.z + sums_of_pairs.w;
                probability = exponential(score.x - found.x);
                slope = probability * (gradient - found.y) * score.y;
            }
            probabilities[lane] = probability;
            slopes[lane] = slope;
            workgroupBarrier();
            let count = min(THREADS, p.tokens - first);
            for (var c = 0u; c < COLUMNS; c++) {
                let e = c * THREADS + lane;
                if (e < HEAD_SIZE) {
                    for (var j = 0u; j < count; j++) {
                        let q = queries + (first + j) * p.query_row + e;
                        let d = douts + (first + j) * p.dout_row + e;
                        key_sums[c] = fma(slopes[j], query[q], key_sums[c]);
                        value_sums[c] = fma(probabilities[j], dout[d], value_sums[c]);
                    }
                }
            }
            workgroupBarrier();
        }
    }
    let to_key = p.dkey_at + b * p.dkey_batch + s * p.dkey_row + g * HEAD_SIZE;
    let to_value = p.dvalue_at + b * p.dvalue_batch + s * p.dvalue_row + g * HEAD_SIZE;
    for (var c = 0u; c < COLUMNS; c++) {
        let e = c * THREADS + lane;
        if (e < HEAD_SIZE) {
            dkey[to_key + e] = key_sums[c] * p.root;
            dvalue[to_value + e] = value_sums[c];
        }
    }
}
