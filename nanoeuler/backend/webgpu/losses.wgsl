// Cross-entropy, the sum of a step's losses, the preference loss, and the likeliest token.
//
// In:   logits (R, V), targets (R) int32, weights (R); of pairs: logprobs (R, T, K), spans (R, P,
//       3) int32, reference (R, P, 2), scales (R, P, 2), shares (R, P)
// Out:  logprobs, lse (R); the logits' gradient in their place; losses (2) and pair_losses (R, P)
//       as pairs of float32 whose sum counts; weights (R, T, K); likeliest (R) int32
// A workgroup takes a row, or a pair: bytes = 4 * R * V for each time that logits are read or
// written: twice for the loss, and twice for the gradient.

struct Arguments {
    rows: u32, columns: u32, count: u32, heads: u32, tokens: u32, margin: f32, smoothing: f32,
    loss_scale: f32,
    logits_at: u32, logits_row: u32, targets_at: u32, logprobs_at: u32, lse_at: u32,
    weights_at: u32, losses_at: u32, likeliest_at: u32,
    spans_at: u32, reference_at: u32, scales_at: u32, shares_at: u32, pair_losses_at: u32,
}

@group(0) @binding(0) var<storage, read_write> logits: array<Activation>;
@group(0) @binding(1) var<storage, read_write> targets: array<i32>;
@group(0) @binding(2) var<storage, read_write> logprobs: array<f32>;
@group(0) @binding(3) var<storage, read_write> lse: array<f32>;
@group(0) @binding(4) var<storage, read_write> weights: array<f32>;
@group(0) @binding(5) var<storage, read_write> losses: array<vec2<f32>>;
@group(0) @binding(6) var<storage, read_write> likeliest: array<i32>;
@group(0) @binding(7) var<storage, read_write> spans: array<i32>;
@group(0) @binding(8) var<storage, read_write> reference: array<vec2<f32>>;
@group(0) @binding(9) var<storage, read_write> scales: array<f32>;
@group(0) @binding(10) var<storage, read_write> shares: array<f32>;
@group(0) @binding(11) var<storage, read_write> pair_losses: array<vec2<f32>>;
@group(0) @binding(12) var<uniform> p: Arguments;

@compute @workgroup_size(THREADS)
fn cross_entropy(workgroup: Workgroup, @builtin(local_invocation_index) lane: u32) {
    let row = number_of(workgroup);
    if (row >= p.rows) {
        return;
    }
    let base = p.logits_at + row * p.logits_row;
    var top = -HUGE;
    for (var v = lane; v < p.columns; v += THREADS) {
        top = max(top, f32(logits[base + v]));
    }
    top = workgroup_max(top, lane);
    var total = 0.0;
    for (var v = lane; v < p.columns; v += THREADS) {
        total += exponential(f32(logits[base + v]) - top);
    }
    total = workgroup_sum(total, lane);
    if (lane == 0u) {
        let found = top + logarithm(total);
        lse[p.lse_at + row] = found;
        let target_id = targets[p.targets_at + row];
        var logprob = 0.0;
        if (target_id >= 0) {
            logprob = f32(logits[base + u32(target_id)]) - found;
        }
        logprobs[p.logprobs_at + row] = logprob;
    }
}

@compute @workgroup_size(THREADS)
fn cross_entropy_backward(workgroup: Workgroup, @builtin(local_invocation_index) lane: u32) {
    let row = number_of(workgroup);
    if (row >= p.rows) {
        return;
    }
    let base = p.logits_at + row * p.logits_row;
    let target_id = targets[p.targets_at + row];
    let weight = select(p.loss_scale * weights[p.weights_at + row], 0.0, target_id < 0);
    let found = lse[p.lse_at + row];
    for (var v = lane; v < p.columns; v += THREADS) {
        let probability = exponential(f32(logits[base + v]) - found);
        let slope = probability - select(0.0, 1.0, i32(v) == target_id);
        logits[base + v] = Activation(weight * slope);
    }
}

var<workgroup> places: array<u32, THREADS>;

@compute @workgroup_size(THREADS)
fn argmax(workgroup: Workgroup, @builtin(local_invocation_index) lane: u32) {
    let row = number_of(workgroup);
    if (row >= p.rows) {
        return;
    }
    var top = -HUGE;
    var place = lane;
    for (var v = lane; v < p.columns; v += THREADS) {
        let value = f32(logits[p.logits_at + row * p.logits_row + v]);
        if (value > top) {
            top = value;
            place = v;
        }
    }
    let best = workgroup_max(top, lane);
    places[lane] = select(0xffffffffu, place, top == best);
    workgroupBarrier();
    if (lane == 0u) {
        var first = places[0];
        for (var i = 1u; i < THREADS; i++) {
            first = min(first, places[i]);
        }
        likeliest[p.likeliest_at + row] = i32(min(first, p.columns - 1u));
    }
}

/// losses -= sum of weights * logprobs, of all `heads` and of the first.
@compute @workgroup_size(THREADS)
fn add_losses(@builtin(local_invocation_index) lane: u32) {
    var every = vec2<f32>();
    var first = vec2<f32>();
    for (var i = lane; i < p.count; i += THREADS) {
        let nats = logprobs[p.logprobs_at + i] * weights[p.weights_at + i];
        every = add_to_pair(every, -nats);
        if (i % p.heads == 0u) {
            first = add_to_pair(first, -nats);
        }
    }
    every = workgroup_pair_sum(every, lane);
    workgroupBarrier();
    first = workgroup_pair_sum(first, lane);
    if (lane == 0u) {
        losses[p.losses_at] = normal_pair(add_pairs(losses[p.losses_at], every));
        losses[p.losses_at + 1u] = normal_pair(add_pairs(losses[p.losses_at + 1u], first));
    }
}

/// The sum of head 0's log-probabilities over some tokens of a row, less that of the reference.
fn log_ratio(row: u32, first: u32, end: u32, reference: vec2<f32>, lane: u32) -> f32 {
    var sum = vec2<f32>();
    for (var t = first + lane; t < end; t += THREADS) {
        sum = add_to_pair(sum, logprobs[p.logprobs_at + (row * p.tokens + t) * p.heads]);
    }
    let whole = workgroup_pair_sum(sum, lane);
    workgroupBarrier();
    return normal_pair(add_pairs(whole, -reference)).x;
}

/// log(1 + e^x)
fn softplus(x: f32) -> f32 {
    let small = exponential(-abs(x));
    let log_of_rest = select(logarithm(1.0 + small), small * (1.0 - 0.5 * small), small < 1e-3);
    return max(x, 0.0) + log_of_rest;
}

var<workgroup> span: vec3<u32>;

@compute @workgroup_size(THREADS)
fn preference(@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = w.y;
    let pair = row * p.count + w.x;
    if (lane == 0u) {
        let at = p.spans_at + 3u * pair;
        span = vec3(u32(spans[at]), u32(spans[at + 1u]), u32(spans[at + 2u]));
    }
    let tokens = workgroupUniformLoad(&span);
    let of_side = p.reference_at + 2u * pair;
    let chosen = log_ratio(row, tokens.x, tokens.y, reference[of_side], lane);
    let rejected = log_ratio(row, tokens.y, tokens.z, reference[of_side + 1u], lane);
    let scale = vec2(scales[p.scales_at + 2u * pair], scales[p.scales_at + 2u * pair + 1u]);
    let share = shares[p.shares_at + pair];
    let z = scale.x * chosen - scale.y * rejected - p.margin;
    let pull = sigmoid(-z) - p.smoothing;
    if (share != 0.0) {
        for (var t = tokens.x + lane; t < tokens.z; t += THREADS) {
            let weight = select(-share * scale.y * pull, share * scale.x * pull, t < tokens.y);
            weights[p.weights_at + (row * p.tokens + t) * p.heads] = weight;
        }
    }
    if (lane == 0u) {
        let loss = (1.0 - p.smoothing) * softplus(-z) + p.smoothing * softplus(z);
        pair_losses[p.pair_losses_at + pair] = vec2(select(share * loss, 0.0, share == 0.0), 0.0);
    }
}

@compute @workgroup_size(1)
fn add_pair_losses() {
    var sum = vec2<f32>();
    for (var i = 0u; i < p.count; i++) {
        sum = add_pairs(sum, pair_losses[p.pair_losses_at + i]);
    }
    losses[p.losses_at] = normal_pair(add_pairs(losses[p.losses_at], sum));
    losses[p.losses_at + 1u] = normal_pair(add_pairs(losses[p.losses_at + 1u], sum));
}
