// Causal grouped-query attention: out = softmax(q k^T / sqrt(E)) v; reference.py has the formulas.
//
// In:   query, dout (B, T, H, E), key, value (B, S, G, E), starts (B, T), offset (B) int32
// Out:  out like query, lse (B, H, T); stats (B, H, T): lse, and the sum of dout * out; dquery,
//       dkey, dvalue
// Query i of row b sits at key position offset[b] + i and sees the keys from starts[b, i] on. A
// workgroup takes ROWS neighbouring queries of one head, or backward ROWS keys of one key/value
// head, and THREADS keys or queries at a time: a thread finds the scores of one of these, then sums
// one column of the head over all of them, for some of the rows. Keys and values are read T / ROWS
// times, mostly from cache: bytes = 4 * B * H * T * T * E / ROWS forward, 3.5 times as many
// backward. HEAD_SIZE is E, a multiple of 4; ROWS is a power of 2.

struct Arguments {
    tokens: u32, heads: u32, group: u32, cap: f32, root: f32,
    query_at: u32, query_row: u32, query_batch: u32, key_at: u32, key_row: u32, key_batch: u32,
    value_at: u32, value_row: u32, value_batch: u32, out_at: u32, out_row: u32, out_batch: u32,
    dout_at: u32, dout_row: u32, dout_batch: u32,
    dquery_at: u32, dquery_row: u32, dquery_batch: u32, dkey_at: u32, dkey_row: u32,
    dkey_batch: u32, dvalue_at: u32, dvalue_row: u32, dvalue_batch: u32,
    starts_at: u32, offset_at: u32, lse_at: u32, stats_at: u32,
}

@group(0) @binding(0) var<storage, read_write> query: array<Activation>;
@group(0) @binding(1) var<storage, read_write> key: array<Activation>;
@group(0) @binding(2) var<storage, read_write> value: array<Activation>;
@group(0) @binding(3) var<storage, read_write> out: array<Activation>;
@group(0) @binding(4) var<storage, read_write> starts: array<i32>;
@group(0) @binding(5) var<storage, read_write> offset: array<i32>;
@group(0) @binding(6) var<storage, read_write> lse: array<f32>;
@group(0) @binding(7) var<storage, read_write> dout: array<Activation>;
@group(0) @binding(8) var<storage, read_write> stats: array<vec2<f32>>;
@group(0) @binding(9) var<storage, read_write> dquery: array<Activation>;
@group(0) @binding(10) var<storage, read_write> dkey: array<Activation>;
@group(0) @binding(11) var<storage, read_write> dvalue: array<Activation>;
@group(0) @binding(12) var<uniform> p: Arguments;

const QUADS = HEAD_SIZE / 4u;
const GROUPS = max(1u, THREADS / HEAD_SIZE);  // of threads, each with a thread for each column
const COLUMNS = (HEAD_SIZE + THREADS - 1u) / THREADS;  // of a thread, in wide heads
const SPLITS = THREADS / QUADS;  // of keys, each with a thread for each quad
const OWN = (ROWS + GROUPS - 1u) / GROUPS;  // rows of a group
const SHARE = THREADS / ROWS;  // threads that share a row's softmax

alias Rows = array<array<vec4<f32>, QUADS>, ROWS>;
alias Sums = array<array<f32, COLUMNS>, OWN>;

var<workgroup> first_rows: Rows;  // the queries, or the keys
var<workgroup> second_rows: Rows;  // their dout, or their values
var<workgroup> probabilities: array<array<f32, THREADS>, ROWS>;
var<workgroup> slopes: array<array<f32, THREADS>, ROWS>;  // of scores
var<workgroup> spans: array<vec2<u32>, ROWS>;  // the first key that a query sees, and the end
var<workgroup> bounds: vec2<u32>;  // the same of all rows
var<workgroup> partial: array<f32, THREADS>;
var<workgroup> split_sums: array<vec4<f32>, THREADS>;
var<workgroup> tops: array<f32, ROWS>;  // of the softmax so far: largest score,
var<workgroup> totals: array<f32, ROWS>;  // sum of exponentials,
var<workgroup> factors: array<f32, ROWS>;  // and what older sums are multiplied by

/// The capped score, and the derivative of the cap there.
fn capped(score: f32) -> vec2<f32> {
    if (p.cap == 0.0) {
        return vec2(score, 1.0);
    }
    let bent = hyperbolic_tangent(score / p.cap);
    return vec2(p.cap * bent, fma(-bent, bent, 1.0));
}

fn query_quad(at: u32) -> vec4<f32> {
    return vec4<f32>(vec4(query[at], query[at + 1u], query[at + 2u], query[at + 3u]));
}

fn key_quad(at: u32) -> vec4<f32> {
    return vec4<f32>(vec4(key[at], key[at + 1u], key[at + 2u], key[at + 3u]));
}

fn value_quad(at: u32) -> vec4<f32> {
    return vec4<f32>(vec4(value[at], value[at + 1u], value[at + 2u], value[at + 3u]));
}

fn dout_quad(at: u32) -> vec4<f32> {
    return vec4<f32>(vec4(dout[at], dout[at + 1u], dout[at + 2u], dout[at + 3u]));
}

/// The keys that the queries from t on see, of each and of all; `position` is that of t.
fn find_spans(b: u32, t: u32, position: u32, lane: u32) -> vec2<u32> {
    if (lane < ROWS) {
        spans[lane] = vec2(0xffffffffu, 0u);
        if (t + lane < p.tokens) {
            let start = u32(starts[p.starts_at + b * p.tokens + t + lane]);
            spans[lane] = vec2(start, position + lane + 1u);
        }
    }
    workgroupBarrier();
    if (lane == 0u) {
        var whole = spans[0];
        for (var r = 1u; r < ROWS; r++) {
            whole = vec2(min(whole.x, spans[r].x), max(whole.y, spans[r].y));
        }
        bounds = whole;
    }
    return workgroupUniformLoad(&bounds);
}

/// The softmax of the scores at hand, which become probabilities but for the sum's division.
fn soften(lane: u32) {
    let r = lane / SHARE;
    let own = lane % SHARE;
    var top = tops[r];
    for (var j = own; j < THREADS; j += SHARE) {
        top = max(top, probabilities[r][j]);
    }
    partial[lane] = top;
    workgroupBarrier();
    for (var j = 0u; j < SHARE; j++) {
        top = max(top, partial[r * SHARE + j]);
    }
    var sum = 0.0;
    for (var j = own; j < THREADS; j += SHARE) {
        let score = probabilities[r][j];
        let probability = select(0.0, exponential(score - top), score > -HUGE);
        probabilities[r][j] = probability;
        sum += probability;
    }
    workgroupBarrier();
    partial[lane] = sum;
    workgroupBarrier();
    if (own == 0u) {
        sum = 0.0;
        for (var j = 0u; j < SHARE; j++) {
            sum += partial[lane + j];
        }
        let factor = select(exponential(tops[r] - top), 0.0, tops[r] == -HUGE);
        totals[r] = fma(totals[r], factor, sum);
        tops[r] = top;
        factors[r] = factor;
    }
    workgroupBarrier();
}

@compute @workgroup_size(THREADS)
fn forward(@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let t0 = w.x * ROWS;
    let h = w.y;
    let b = w.z;
    for (var i = lane; i < ROWS * QUADS; i += THREADS) {
        let t = min(t0 + i / QUADS, p.tokens - 1u);
        let row = p.query_at + b * p.query_batch + t * p.query_row + h * HEAD_SIZE;
        first_rows[i / QUADS][i % QUADS] = query_quad(row + 4u * (i % QUADS));
    }
    if (lane < ROWS) {
        tops[lane] = -HUGE;
        totals[lane] = 0.0;
    }
    let seen = find_spans(b, t0, u32(offset[p.offset_at + b]) + t0, lane);
    let head = (h / p.group) * HEAD_SIZE;
    let keys = p.key_at + b * p.key_batch + head;
    let values = p.value_at + b * p.value_batch + head;
    let quad = lane % QUADS;
    let split = lane / QUADS;
    var sums = array<vec4<f32>, ROWS>();
    for (var first = seen.x; first < seen.y; first += THREADS) {
        let s = first + lane;
        var products = array<f32, ROWS>();
        if (s < seen.y) {
            for (var q = 0u; q < QUADS; q++) {
                let of_key = key_quad(keys + s * p.key_row + 4u * q);
                for (var r = 0u; r < ROWS; r++) {
                    products[r] += dot(first_rows[r][q], of_key);
                }
            }
        }
        for (var r = 0u; r < ROWS; r++) {
            let is_seen = s >= spans[r].x && s < spans[r].y;
            probabilities[r][lane] = select(-HUGE, capped(products[r] * p.root).x, is_seen);
        }
        workgroupBarrier();
        soften(lane);
        for (var r = 0u; r < ROWS; r++) {
            sums[r] *= factors[r];
        }
        if (split < SPLITS) {
            for (var j = split; j < min(THREADS, seen.y - first); j += SPLITS) {
                let of_value = value_quad(values + (first + j) * p.value_row + 4u * quad);
                for (var r = 0u; r < ROWS; r++) {
                    sums[r] = fma(vec4(probabilities[r][j]), of_value, sums[r]);
                }
            }
        }
        workgroupBarrier();
    }
    for (var r = 0u; r < ROWS; r++) {
        split_sums[lane] = sums[r];
        workgroupBarrier();
        if (lane < QUADS && t0 + r < p.tokens) {
            var sum = split_sums[lane];
            for (var i = 1u; i < SPLITS; i++) {
                sum += split_sums[i * QUADS + lane];
            }
            let to = p.out_at + b * p.out_batch + (t0 + r) * p.out_row + h * HEAD_SIZE + 4u * lane;
            for (var e = 0u; e < 4u; e++) {
                out[to + e] = Activation(sum[e] / totals[r]);
            }
        }
        workgroupBarrier();
    }
    if (lane < ROWS && t0 + lane < p.tokens) {
        let found = tops[lane] + logarithm(totals[lane]);
        lse[p.lse_at + (b * p.heads + h) * p.tokens + t0 + lane] = found;
    }
}

@compute @workgroup_size(THREADS)
fn row_stats(@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let of_out = p.out_at + w.z * p.out_batch + w.x * p.out_row + w.y * HEAD_SIZE;
    let of_dout = p.dout_at + w.z * p.dout_batch + w.x * p.dout_row + w.y * HEAD_SIZE;
    var product = 0.0;
    for (var e = lane; e < HEAD_SIZE; e += THREADS) {
        product = fma(f32(out[of_out + e]), f32(dout[of_dout + e]), product);
    }
    let sum = workgroup_sum(product, lane);
    if (lane == 0u) {
        let at = (w.z * p.heads + w.y) * p.tokens + w.x;
        stats[p.stats_at + at] = vec2(lse[p.lse_at + at], sum);
    }
}

@compute @workgroup_size(THREADS)
fn query_gradient(@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let t0 = w.x * ROWS;
    let h = w.y;
    let b = w.z;
    for (var i = lane; i < ROWS * QUADS; i += THREADS) {
        let t = min(t0 + i / QUADS, p.tokens - 1u);
        let at = h * HEAD_SIZE + 4u * (i % QUADS);
        first_rows[i / QUADS][i % QUADS] =
            query_quad(p.query_at + b * p.query_batch + t * p.query_row + at);
        second_rows[i / QUADS][i % QUADS] =
            dout_quad(p.dout_at + b * p.dout_batch + t * p.dout_row + at);
    }
    let seen = find_spans(b, t0, t0, lane);
    let head = (h / p.group) * HEAD_SIZE;
    let keys = p.key_at + b * p.key_batch + head;
    let values = p.value_at + b * p.value_batch + head;
    let of_stats = p.stats_at + (b * p.heads + h) * p.tokens;
    let group = lane / min(HEAD_SIZE, THREADS);
    let column = lane % min(HEAD_SIZE, THREADS);
    var sums = Sums();
    for (var first = seen.x; first < seen.y; first += THREADS) {
        let s = first + lane;
        var products = array<f32, ROWS>();
        var gradients = array<f32, ROWS>();
        if (s < seen.y) {
            for (var q = 0u; q < QUADS; q++) {
                let of_key = key_quad(keys + s * p.key_row + 4u * q);
                let of_value = value_quad(values + s * p.value_row + 4u * q);
                for (var r = 0u; r < ROWS; r++) {
                    products[r] += dot(first_rows[r][q], of_key);
                    gradients[r] += dot(second_rows[r][q], of_value);
                }
            }
        }
        for (var r = 0u; r < ROWS; r++) {
            let found = stats[of_stats + min(t0 + r, p.tokens - 1u)];
            let score = capped(products[r] * p.root);
            let slope = exponential(score.x - found.x) * (gradients[r] - found.y) * score.y;
            slopes[r][lane] = select(0.0, slope, s >= spans[r].x && s < spans[r].y);
        }
        workgroupBarrier();
        if (group < GROUPS) {
            for (var j = 0u; j < min(THREADS, seen.y - first); j++) {
                for (var c = 0u; c < COLUMNS; c++) {
                    let e = min(c * THREADS + column, HEAD_SIZE - 1u);
                    let k = f32(key[keys + (first + j) * p.key_row + e]);
                    for (var o = 0u; o < OWN; o++) {
                        let r = min(group * OWN + o, ROWS - 1u);
                        sums[o][c] = fma(slopes[r][j], k, sums[o][c]);
                    }
                }
            }
        }
        workgroupBarrier();
    }
    for (var o = 0u; o < OWN; o++) {
        let r = group * OWN + o;
        for (var c = 0u; c < COLUMNS; c++) {
            let e = c * THREADS + column;
            if (group < GROUPS && r < ROWS && t0 + r < p.tokens && e < HEAD_SIZE) {
                let to = p.dquery_at + b * p.dquery_batch + (t0 + r) * p.dquery_row;
                dquery[to + h * HEAD_SIZE + e] = Activation(sums[o][c] * p.root);
            }
        }
    }
}

@compute @workgroup_size(THREADS)
fn key_gradient(@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let s0 = w.x * ROWS;
    let g = w.y;
    let b = w.z;
    for (var i = lane; i < ROWS * QUADS; i += THREADS) {
        let s = min(s0 + i / QUADS, p.tokens - 1u);
        let at = g * HEAD_SIZE + 4u * (i % QUADS);
        first_rows[i / QUADS][i % QUADS] =
            key_quad(p.key_at + b * p.key_batch + s * p.key_row + at);
        second_rows[i / QUADS][i % QUADS] =
            value_quad(p.value_at + b * p.value_batch + s * p.value_row + at);
    }
    workgroupBarrier();
    let group = lane / min(HEAD_SIZE, THREADS);
    let column = lane % min(HEAD_SIZE, THREADS);
    var key_sums = Sums();
    var value_sums = Sums();
    for (var h = g * p.group; h < (g + 1u) * p.group; h++) {
        let queries = p.query_at + b * p.query_batch + h * HEAD_SIZE;
        let douts = p.dout_at + b * p.dout_batch + h * HEAD_SIZE;
        for (var first = s0; first < p.tokens; first += THREADS) {
            let t = min(first + lane, p.tokens - 1u);
            let start = u32(starts[p.starts_at + b * p.tokens + t]);
            let found = stats[p.stats_at + (b * p.heads + h) * p.tokens + t];
            var products = array<f32, ROWS>();
            var gradients = array<f32, ROWS>();
            if (start < s0 + ROWS) {
                for (var q = 0u; q < QUADS; q++) {
                    let of_query = query_quad(queries + t * p.query_row + 4u * q);
                    let of_dout = dout_quad(douts + t * p.dout_row + 4u * q);
                    for (var r = 0u; r < ROWS; r++) {
                        products[r] += dot(first_rows[r][q], of_query);
                        gradients[r] += dot(second_rows[r][q], of_dout);
                    }
                }
            }
            for (var r = 0u; r < ROWS; r++) {
                let s = s0 + r;
                let is_seen = first + lane < p.tokens && start <= s && s <= t;
                let score = capped(products[r] * p.root);
                let probability = select(0.0, exponential(score.x - found.x), is_seen);
                probabilities[r][lane] = probability;
                slopes[r][lane] = probability * (gradients[r] - found.y) * score.y;
            }
            workgroupBarrier();
            if (group < GROUPS) {
                for (var j = 0u; j < min(THREADS, p.tokens - first); j++) {
                    for (var c = 0u; c < COLUMNS; c++) {
                        let e = min(c * THREADS + column, HEAD_SIZE - 1u);
                        let q = f32(query[queries + (first + j) * p.query_row + e]);
                        let d = f32(dout[douts + (first + j) * p.dout_row + e]);
                        for (var o = 0u; o < OWN; o++) {
                            let r = min(group * OWN + o, ROWS - 1u);
                            key_sums[o][c] = fma(slopes[r][j], q, key_sums[o][c]);
                            value_sums[o][c] = fma(probabilities[r][j], d, value_sums[o][c]);
                        }
                    }
                }
            }
            workgroupBarrier();
        }
    }
    for (var o = 0u; o < OWN; o++) {
        let r = group * OWN + o;
        for (var c = 0u; c < COLUMNS; c++) {
            let e = g * HEAD_SIZE + c * THREADS + column;
            let inside = r < ROWS && s0 + r < p.tokens && c * THREADS + column < HEAD_SIZE;
            if (group < GROUPS && inside) {
                let to_key = p.dkey_at + b * p.dkey_batch + (s0 + r) * p.dkey_row;
                let to_value = p.dvalue_at + b * p.dvalue_batch + (s0 + r) * p.dvalue_row;
                dkey[to_key + e] = Activation(key_sums[o][c] * p.root);
                dvalue[to_value + e] = Activation(value_sums[o][c]);
            }
        }
    }
}
