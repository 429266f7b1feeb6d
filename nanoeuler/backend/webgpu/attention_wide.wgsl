// Causal grouped-query attention of many tokens, as attention.wgsl computes it of few.
//
// In and out: as there; everything is read and written in quads of neighbours, so every beginning
// and stride is a multiple of 4.
// A workgroup of 8 x ACROSS threads takes OWN neighbouring queries of one head, or backward keys of
// one key/value head, and OTHERS keys or queries at a time, both in its memory. Thread (y, x) finds
// the scores of own rows 4 y to 4 y + 3 with the others x, x + ACROSS, and so on, EACH in all; then
// it sums quads x, x + ACROSS, and so on of the head, COLUMNS of its QUADS, over all others, for
// the same rows. Keys and values are read T / OWN times, mostly from cache:
// bytes = 4 * B * H * T * T * E / OWN forward, 3.5 times as many backward.

struct Arguments {
    tokens: u32, heads: u32, group: u32, cap: f32, root: f32,
    query_at: u32, query_row: u32, query_batch: u32, key_at: u32, key_row: u32, key_batch: u32,
    value_at: u32, value_row: u32, value_batch: u32, out_at: u32, out_row: u32, out_batch: u32,
    dout_at: u32, dout_row: u32, dout_batch: u32,
    dquery_at: u32, dquery_row: u32, dquery_batch: u32, dkey_at: u32, dkey_row: u32,
    dkey_batch: u32, dvalue_at: u32, dvalue_row: u32, dvalue_batch: u32,
    starts_at: u32, offset_at: u32, lse_at: u32, stats_at: u32,
}

@group(0) @binding(0) var<storage, read_write> query: array<vec4<Activation>>;
@group(0) @binding(1) var<storage, read_write> key: array<vec4<Activation>>;
@group(0) @binding(2) var<storage, read_write> value: array<vec4<Activation>>;
@group(0) @binding(3) var<storage, read_write> out: array<vec4<Activation>>;
@group(0) @binding(4) var<storage, read_write> starts: array<i32>;
@group(0) @binding(5) var<storage, read_write> offset: array<i32>;
@group(0) @binding(6) var<storage, read_write> lse: array<f32>;
@group(0) @binding(7) var<storage, read_write> dout: array<vec4<Activation>>;
@group(0) @binding(8) var<storage, read_write> stats: array<vec2<f32>>;
@group(0) @binding(9) var<storage, read_write> dquery: array<vec4<Activation>>;
@group(0) @binding(10) var<storage, read_write> dkey: array<vec4<Activation>>;
@group(0) @binding(11) var<storage, read_write> dvalue: array<vec4<Activation>>;
@group(0) @binding(12) var<uniform> p: Arguments;

const OWN = 32u;
const MEMBERS = ACROSS * OWN / 4u;
const STRIDE = QUADS + 1u;  // so that rows lie in different banks
const OWN_STRIDE = OWN / 4u + 1u;

var<workgroup> own_first: array<vec4<f32>, OWN * STRIDE>;  // queries, or keys
var<workgroup> own_second: array<vec4<f32>, OWN * STRIDE>;  // their dout, or values
var<workgroup> other_first: array<vec4<f32>, OTHERS * STRIDE>;  // keys, or queries
var<workgroup> other_second: array<vec4<f32>, OTHERS * STRIDE>;  // values, or dout
var<workgroup> probabilities: array<vec4<f32>, OTHERS * OWN_STRIDE>;  // of an other with own rows
var<workgroup> slopes: array<vec4<f32>, OTHERS * OWN_STRIDE>;  // of scores
var<workgroup> partial: array<array<vec4<f32>, OWN / 4u>, ACROSS>;
var<workgroup> begins: array<u32, OWN>;  // the first key that an own query sees
var<workgroup> first_key: u32;  // that any of them sees

/// The capped score, and the derivative of the cap there.
fn capped(score: f32) -> vec2<f32> {
    if (p.cap == 0.0) {
        return vec2(score, 1.0);
    }
    let bent = hyperbolic_tangent(score / p.cap);
    return vec2(p.cap * bent, fma(-bent, bent, 1.0));
}

/// Products of own rows 4 y to 4 y + 3 with row `other`, of the first arrays.
fn first_products(y: u32, other: u32) -> vec4<f32> {
    let own = 4u * y * STRIDE;
    let at = other * STRIDE;
    var sums = vec4<f32>();
    for (var q = 0u; q < QUADS; q++) {  // unrolled
        let quad = other_first[at + q];
        sums += vec4(
            dot(own_first[own + q], quad),
            dot(own_first[own + STRIDE + q], quad),
            dot(own_first[own + 2u * STRIDE + q], quad),
            dot(own_first[own + 3u * STRIDE + q], quad),
        );
    }
    return sums;
}

/// The same of the second arrays.
fn second_products(y: u32, other: u32) -> vec4<f32> {
    let own = 4u * y * STRIDE;
    let at = other * STRIDE;
    var sums = vec4<f32>();
    for (var q = 0u; q < QUADS; q++) {  // unrolled
        let quad = other_second[at + q];
        sums += vec4(
            dot(own_second[own + q], quad),
            dot(own_second[own + STRIDE + q], quad),
            dot(own_second[own + 2u * STRIDE + q], quad),
            dot(own_second[own + 3u * STRIDE + q], quad),
        );
    }
    return sums;
}

fn exponentials(x: vec4<f32>) -> vec4<f32> {
    return vec4(exponential(x.x), exponential(x.y), exponential(x.z), exponential(x.w));
}

/// Scores and the cap's derivatives: the products with `root`, capped.
fn capped_scores(products: vec4<f32>) -> array<vec4<f32>, 2> {
    let scores = products * p.root;
    if (p.cap == 0.0) {
        return array(scores, vec4(1.0));
    }
    let a = capped(scores.x);
    let b = capped(scores.y);
    let c = capped(scores.z);
    let d = capped(scores.w);
    return array(vec4(a.x, b.x, c.x, d.x), vec4(a.y, b.y, c.y, d.y));
}

fn query_row(b: u32, t: u32, h: u32) -> u32 {
    return (p.query_at + b * p.query_batch + t * p.query_row + h * HEAD_SIZE) / 4u;
}

fn dout_row(b: u32, t: u32, h: u32) -> u32 {
    return (p.dout_at + b * p.dout_batch + t * p.dout_row + h * HEAD_SIZE) / 4u;
}

fn key_row(b: u32, s: u32, g: u32) -> u32 {
    return (p.key_at + b * p.key_batch + s * p.key_row + g * HEAD_SIZE) / 4u;
}

fn value_row(b: u32, s: u32, g: u32) -> u32 {
    return (p.value_at + b * p.value_batch + s * p.value_row + g * HEAD_SIZE) / 4u;
}

/// The first key that the workgroup's queries see, of each into `begins`.
fn find_begins(b: u32, t0: u32, lane: u32) -> u32 {
    if (lane < OWN) {
        let t = min(t0 + lane, p.tokens - 1u);
        begins[lane] = u32(starts[p.starts_at + b * p.tokens + t]);
    }
    workgroupBarrier();
    if (lane == 0u) {
        var first = begins[0];
        for (var r = 1u; r < OWN; r++) {
            first = min(first, begins[r]);
        }
        first_key = first;
    }
    return workgroupUniformLoad(&first_key);
}

@compute @workgroup_size(MEMBERS)
fn forward(@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let t0 = w.x * OWN;
    let h = w.y;
    let b = w.z;
    let g = h / p.group;
    let y = lane / ACROSS;
    let x = lane % ACROSS;
    for (var i = lane; i < OWN * QUADS; i += MEMBERS) {
        let t = min(t0 + i / QUADS, p.tokens - 1u);
        let to = (i / QUADS) * STRIDE + i % QUADS;
        own_first[to] = vec4<f32>(query[query_row(b, t, h) + i % QUADS]);
    }
    let from_key = find_begins(b, t0, lane);
    let position = u32(offset[p.offset_at + b]) + t0;
    let end = position + min(OWN, p.tokens - t0);
    let begin = vec4(begins[4u * y], begins[4u * y + 1u], begins[4u * y + 2u], begins[4u * y + 3u]);
    let last = vec4(position + 4u * y) + vec4(0u, 1u, 2u, 3u);
    var top = vec4(-HUGE);  // of the softmax so far: largest scores,
    var total = vec4<f32>();  // and sums of exponentials
    var sums = array<vec4<f32>, 4u * COLUMNS>();
    for (var first = from_key; first < end; first += OTHERS) {
        for (var i = lane; i < OTHERS * QUADS; i += MEMBERS) {
            let s = min(first + i / QUADS, end - 1u);
            let to = (i / QUADS) * STRIDE + i % QUADS;
            other_first[to] = vec4<f32>(key[key_row(b, s, g) + i % QUADS]);
            other_second[to] = vec4<f32>(value[value_row(b, s, g) + i % QUADS]);
        }
        workgroupBarrier();
        var scores = array<vec4<f32>, EACH>();
        var best = top;
        for (var j = 0u; j < EACH; j++) {  // unrolled
            let s = vec4(first + x + ACROSS * j);
            let found = capped_scores(first_products(y, x + ACROSS * j));
            scores[j] = select(vec4(-HUGE), found[0], (s >= begin) & (s <= last));
            best = max(best, scores[j]);
        }
        partial[x][y] = best;
        workgroupBarrier();
        for (var i = 0u; i < ACROSS; i++) {  // unrolled
            best = max(best, partial[i][y]);
        }
        var sum = vec4<f32>();
        for (var j = 0u; j < EACH; j++) {  // unrolled
            let seen = scores[j] > vec4(-HUGE);
            let found = select(vec4<f32>(), exponentials(scores[j] - best), seen);
            probabilities[(x + ACROSS * j) * OWN_STRIDE + y] = found;
            sum += found;
        }
        workgroupBarrier();
        partial[x][y] = sum;
        workgroupBarrier();
        sum = vec4<f32>();
        for (var i = 0u; i < ACROSS; i++) {  // unrolled
            sum += partial[i][y];
        }
        let factor = select(exponentials(top - best), vec4<f32>(), top == vec4(-HUGE));
        total = fma(total, factor, sum);
        top = best;
        for (var c = 0u; c < COLUMNS; c++) {  // unrolled
            sums[4u * c] *= factor.x;
            sums[4u * c + 1u] *= factor.y;
            sums[4u * c + 2u] *= factor.z;
            sums[4u * c + 3u] *= factor.w;
        }
        for (var o = 0u; o < OTHERS; o++) {  // unrolled by 4
            let share = probabilities[o * OWN_STRIDE + y];
            for (var c = 0u; c < COLUMNS; c++) {  // unrolled
                let quad = other_second[o * STRIDE + min(c * ACROSS + x, QUADS - 1u)];
                sums[4u * c] = fma(vec4(share.x), quad, sums[4u * c]);
                sums[4u * c + 1u] = fma(vec4(share.y), quad, sums[4u * c + 1u]);
                sums[4u * c + 2u] = fma(vec4(share.z), quad, sums[4u * c + 2u]);
                sums[4u * c + 3u] = fma(vec4(share.w), quad, sums[4u * c + 3u]);
            }
        }
        workgroupBarrier();
    }
    for (var r = 0u; r < 4u; r++) {  // unrolled
        let t = t0 + 4u * y + r;
        if (t < p.tokens) {
            let to = (p.out_at + b * p.out_batch + t * p.out_row + h * HEAD_SIZE) / 4u;
            for (var c = 0u; c < COLUMNS; c++) {  // unrolled
                if (c * ACROSS + x < QUADS) {
                    out[to + c * ACROSS + x] = vec4<Activation>(sums[4u * c + r] / total[r]);
                }
            }
            if (x == 0u) {
                let found = top[r] + logarithm(total[r]);
                lse[p.lse_at + (b * p.heads + h) * p.tokens + t] = found;
            }
        }
    }
}

var<workgroup> row_sums: array<f32, MEMBERS>;

@compute @workgroup_size(MEMBERS)
fn row_stats(@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let t = w.x * (MEMBERS / ACROSS) + lane / ACROSS;
    let x = lane % ACROSS;
    var sum = 0.0;
    if (t < p.tokens) {
        let of_out = (p.out_at + w.z * p.out_batch + t * p.out_row + w.y * HEAD_SIZE) / 4u;
        for (var q = x; q < QUADS; q += ACROSS) {
            let of_dout = vec4<f32>(dout[dout_row(w.z, t, w.y) + q]);
            sum += dot(vec4<f32>(out[of_out + q]), of_dout);
        }
    }
    row_sums[lane] = sum;
    workgroupBarrier();
    if (x == 0u && t < p.tokens) {
        for (var i = 1u; i < ACROSS; i++) {
            sum += row_sums[lane + i];
        }
        let at = (w.z * p.heads + w.y) * p.tokens + t;
        stats[p.stats_at + at] = vec2(lse[p.lse_at + at], sum);
    }
}

@compute @workgroup_size(MEMBERS)
fn query_gradient(@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let t0 = w.x * OWN;
    let h = w.y;
    let b = w.z;
    let g = h / p.group;
    let y = lane / ACROSS;
    let x = lane % ACROSS;
    for (var i = lane; i < OWN * QUADS; i += MEMBERS) {
        let t = min(t0 + i / QUADS, p.tokens - 1u);
        let to = (i / QUADS) * STRIDE + i % QUADS;
        own_first[to] = vec4<f32>(query[query_row(b, t, h) + i % QUADS]);
        own_second[to] = vec4<f32>(dout[dout_row(b, t, h) + i % QUADS]);
    }
    let from_key = find_begins(b, t0, lane);
    let end = min(t0 + OWN, p.tokens);
    let begin = vec4(begins[4u * y], begins[4u * y + 1u], begins[4u * y + 2u], begins[4u * y + 3u]);
    let last = vec4(t0 + 4u * y) + vec4(0u, 1u, 2u, 3u);
    var lses = vec4<f32>();
    var means = vec4<f32>();
    for (var r = 0u; r < 4u; r++) {  // unrolled
        let t = min(t0 + 4u * y + r, p.tokens - 1u);
        let found = stats[p.stats_at + (b * p.heads + h) * p.tokens + t];
        lses[r] = found.x;
        means[r] = found.y;
    }
    var sums = array<vec4<f32>, 4u * COLUMNS>();
    for (var first = from_key; first < end; first += OTHERS) {
        for (var i = lane; i < OTHERS * QUADS; i += MEMBERS) {
            let s = min(first + i / QUADS, end - 1u);
            let to = (i / QUADS) * STRIDE + i % QUADS;
            other_first[to] = vec4<f32>(key[key_row(b, s, g) + i % QUADS]);
            other_second[to] = vec4<f32>(value[value_row(b, s, g) + i % QUADS]);
        }
        workgroupBarrier();
        for (var j = 0u; j < EACH; j++) {  // unrolled
            let o = x + ACROSS * j;
            let s = vec4(first + o);
            let found = capped_scores(first_products(y, o));
            let pulls = (second_products(y, o) - means) * found[1];
            let slope = exponentials(found[0] - lses) * pulls;
            let seen = (s >= begin) & (s <= last);
            slopes[o * OWN_STRIDE + y] = select(vec4<f32>(), slope, seen);
        }
        workgroupBarrier();
        for (var o = 0u; o < OTHERS; o++) {  // unrolled by 4
            let slope = slopes[o * OWN_STRIDE + y];
            for (var c = 0u; c < COLUMNS; c++) {  // unrolled
                let quad = other_first[o * STRIDE + min(c * ACROSS + x, QUADS - 1u)];
                sums[4u * c] = fma(vec4(slope.x), quad, sums[4u * c]);
                sums[4u * c + 1u] = fma(vec4(slope.y), quad, sums[4u * c + 1u]);
                sums[4u * c + 2u] = fma(vec4(slope.z), quad, sums[4u * c + 2u]);
                sums[4u * c + 3u] = fma(vec4(slope.w), quad, sums[4u * c + 3u]);
            }
        }
        workgroupBarrier();
    }
    for (var r = 0u; r < 4u; r++) {  // unrolled
        let t = t0 + 4u * y + r;
        if (t < p.tokens) {
            let to = (p.dquery_at + b * p.dquery_batch + t * p.dquery_row + h * HEAD_SIZE) / 4u;
            for (var c = 0u; c < COLUMNS; c++) {  // unrolled
                if (c * ACROSS + x < QUADS) {
                    dquery[to + c * ACROSS + x] = vec4<Activation>(sums[4u * c + r] * p.root);
                }
            }
        }
    }
}

@compute @workgroup_size(MEMBERS)
fn key_gradient(@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let s0 = w.x * OWN;
    let g = w.y;
    let b = w.z;
    let y = lane / ACROSS;
    let x = lane % ACROSS;
    for (var i = lane; i < OWN * QUADS; i += MEMBERS) {
        let s = min(s0 + i / QUADS, p.tokens - 1u);
        let to = (i / QUADS) * STRIDE + i % QUADS;
        own_first[to] = vec4<f32>(key[key_row(b, s, g) + i % QUADS]);
        own_second[to] = vec4<f32>(value[value_row(b, s, g) + i % QUADS]);
    }
    let own = vec4(s0 + 4u * y) + vec4(0u, 1u, 2u, 3u);
    var key_sums = array<vec4<f32>, 4u * COLUMNS>();
    var value_sums = array<vec4<f32>, 4u * COLUMNS>();
    for (var h = g * p.group; h < (g + 1u) * p.group; h++) {
        for (var first = s0; first < p.tokens; first += OTHERS) {
            for (var i = lane; i < OTHERS * QUADS; i += MEMBERS) {
                let t = min(first + i / QUADS, p.tokens - 1u);
                let to = (i / QUADS) * STRIDE + i % QUADS;
                other_first[to] = vec4<f32>(query[query_row(b, t, h) + i % QUADS]);
                other_second[to] = vec4<f32>(dout[dout_row(b, t, h) + i % QUADS]);
            }
            workgroupBarrier();
            for (var j = 0u; j < EACH; j++) {  // unrolled
                let o = x + ACROSS * j;
                let t = min(first + o, p.tokens - 1u);
                let start = u32(starts[p.starts_at + b * p.tokens + t]);
                let stat = stats[p.stats_at + (b * p.heads + h) * p.tokens + t];
                let inside = vec4<bool>(first + o < p.tokens);
                let seen = inside & (own >= vec4(start)) & (own <= vec4(t));
                let found = capped_scores(first_products(y, o));
                let share = select(vec4<f32>(), exponentials(found[0] - stat.x), seen);
                probabilities[o * OWN_STRIDE + y] = share;
                let pulls = (second_products(y, o) - stat.y) * found[1];
                slopes[o * OWN_STRIDE + y] = share * pulls;
            }
            workgroupBarrier();
            for (var o = 0u; o < OTHERS; o++) {  // unrolled by 4
                let share = probabilities[o * OWN_STRIDE + y];
                let slope = slopes[o * OWN_STRIDE + y];
                for (var c = 0u; c < COLUMNS; c++) {  // unrolled
                    let at = o * STRIDE + min(c * ACROSS + x, QUADS - 1u);
                    let of_query = other_first[at];
                    let of_dout = other_second[at];
                    key_sums[4u * c] = fma(vec4(slope.x), of_query, key_sums[4u * c]);
                    key_sums[4u * c + 1u] = fma(vec4(slope.y), of_query, key_sums[4u * c + 1u]);
                    key_sums[4u * c + 2u] = fma(vec4(slope.z), of_query, key_sums[4u * c + 2u]);
                    key_sums[4u * c + 3u] = fma(vec4(slope.w), of_query, key_sums[4u * c + 3u]);
                    value_sums[4u * c] = fma(vec4(share.x), of_dout, value_sums[4u * c]);
                    value_sums[4u * c + 1u] = fma(vec4(share.y), of_dout, value_sums[4u * c + 1u]);
                    value_sums[4u * c + 2u] = fma(vec4(share.z), of_dout, value_sums[4u * c + 2u]);
                    value_sums[4u * c + 3u] = fma(vec4(share.w), of_dout, value_sums[4u * c + 3u]);
                }
            }
            workgroupBarrier();
        }
    }
    for (var r = 0u; r < 4u; r++) {  // unrolled
        let s = s0 + 4u * y + r;
        if (s < p.tokens) {
            let head = g * HEAD_SIZE;
            let to_key = (p.dkey_at + b * p.dkey_batch + s * p.dkey_row + head) / 4u;
            let to_value = (p.dvalue_at + b * p.dvalue_batch + s * p.dvalue_row + head) / 4u;
            for (var c = 0u; c < COLUMNS; c++) {  // unrolled
                if (c * ACROSS + x < QUADS) {
                    let quad = c * ACROSS + x;
                    dkey[to_key + quad] = vec4<Activation>(key_sums[4u * c + r] * p.root);
                    dvalue[to_value + quad] = vec4<Activation>(value_sums[4u * c + r]);
                }
            }
        }
    }
}
