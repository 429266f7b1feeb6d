// The optimizer: the gradient's norm, AdamW and Lion by element, and Muon around its products.
//
// In:   gradients, parameters and moments, flat; rates (blocks of RATE_BLOCK, 2): multiples of the
//       learning rate and of its product with the weight decay; of Muon offsets (matrices) int32
// Out:  parameters, moments; squares (parts), scalars (4): whether to move at all, the factor of
//       the gradient, the learning rate, the number of the update. These and schedule, losses and
//       report (2) are pairs of float32 whose sum counts.
// bytes = 4 for each element of the norm, 28 of AdamW (p, m, v twice, g once), 20 of Lion.

struct Arguments {
    count: u32, parts: u32, clip_norm: f32, log_beta1: f32, log_beta2: f32,
    beta1: f32, beta2: f32, rest1: f32, rest2: f32, epsilon: f32, weight_decay: f32, scale: f32,
    loss_scale: f32,
    size: u32, values_at: u32, squares_at: u32, scalars_at: u32, schedule_at: u32, losses_at: u32,
    report_at: u32, parameters_at: u32, gradients_at: u32, first_at: u32, second_at: u32,
    rates_at: u32, offsets_at: u32, x_at: u32, partial_at: u32,
}

@group(0) @binding(0) var<storage, read_write> values: array<f32>;
@group(0) @binding(1) var<storage, read_write> squares: array<vec2<f32>>;
@group(0) @binding(2) var<storage, read_write> scalars: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read_write> schedule: array<vec2<f32>>;
@group(0) @binding(4) var<storage, read_write> losses: array<vec2<f32>>;
@group(0) @binding(5) var<storage, read_write> report: array<vec2<f32>>;
@group(0) @binding(6) var<storage, read_write> parameters: array<f32>;
@group(0) @binding(7) var<storage, read_write> gradients: array<f32>;
@group(0) @binding(8) var<storage, read_write> first: array<f32>;
@group(0) @binding(9) var<storage, read_write> second: array<f32>;
@group(0) @binding(10) var<storage, read_write> rates: array<f32>;
@group(0) @binding(11) var<storage, read_write> offsets: array<i32>;
@group(0) @binding(12) var<storage, read_write> x: array<f32>;
@group(0) @binding(13) var<storage, read_write> partial: array<vec2<f32>>;
@group(0) @binding(14) var<uniform> p: Arguments;

/// Each of `parts` workgroups sums the squares of every parts-th run of THREADS values.
@compute @workgroup_size(THREADS)
fn squared_norm(@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    var sum = vec2<f32>();
    for (var i = w.x * THREADS + lane; i < p.count; i += p.parts * THREADS) {
        let value = values[p.values_at + i];
        sum = add_to_pair(sum, value * value);
    }
    let whole = workgroup_pair_sum(sum, lane);
    if (lane == 0u) {
        squares[p.squares_at + w.x] = whole;
    }
}

@compute @workgroup_size(THREADS)
fn prepare(@builtin(local_invocation_index) lane: u32) {
    var sum = vec2<f32>();
    for (var i = lane; i < p.parts; i += THREADS) {
        sum = add_pairs(sum, squares[p.squares_at + i]);
    }
    let total = workgroup_pair_sum(sum, lane);
    if (lane == 0u) {
        let norm = sqrt(total.x + total.y) / p.loss_scale;
        let loss = losses[p.losses_at].x;
        let finite = is_finite(total.x) && is_finite(loss);
        report[p.report_at] = vec2(select(total.x, norm, is_finite(total.x)), 0.0);
        let left_out = report[p.report_at + 1u].x + select(1.0, 0.0, finite);
        report[p.report_at + 1u] = vec2(left_out, 0.0);
        let rate = schedule[p.schedule_at];
        let done = schedule[p.schedule_at + 1u];
        scalars[p.scalars_at] = vec2(select(0.0, 1.0, finite), 0.0);
        let factor = min(1.0, p.clip_norm / (norm + 1e-6)) / p.loss_scale;
        scalars[p.scalars_at + 1u] = vec2(factor, 0.0);
        scalars[p.scalars_at + 2u] = rate;
        scalars[p.scalars_at + 3u] = vec2(done.x + 1.0, done.y);
    }
}

@compute @workgroup_size(THREADS)
fn adamw(thread: Thread) {
    let i = element(thread);
    if (i >= p.count || scalars[p.scalars_at].x == 0.0) {
        return;
    }
    let of_block = p.rates_at + 2u * (i / RATE_BLOCK);
    let rate = scalars[p.scalars_at + 2u].x * rates[of_block];
    if (rates[of_block] < 0.0) {  // no run covers it
        return;
    }
    let step = scalars[p.scalars_at + 3u].x;
    let decay = scalars[p.scalars_at + 2u].x * rates[of_block + 1u] * p.weight_decay;
    let gradient = gradients[p.gradients_at + i] * scalars[p.scalars_at + 1u].x;
    let m = fma(p.beta1, first[p.first_at + i], p.rest1 * gradient);
    let v = fma(p.beta2, second[p.second_at + i], p.rest2 * gradient * gradient);
    first[p.first_at + i] = m;
    second[p.second_at + i] = v;
    // 1 - beta^step
    let corrected1 = -exponential_less_one(step * p.log_beta1);
    let corrected2 = -exponential_less_one(step * p.log_beta2);
    let update = m / (sqrt(v / corrected2) + p.epsilon) * (rate / corrected1);
    let parameter = parameters[p.parameters_at + i];
    parameters[p.parameters_at + i] = fma(-decay, parameter, parameter) - update;
}

@compute @workgroup_size(THREADS)
fn lion(thread: Thread) {
    let i = element(thread);
    if (i >= p.count || scalars[p.scalars_at].x == 0.0) {
        return;
    }
    let of_block = p.rates_at + 2u * (i / RATE_BLOCK);
    if (rates[of_block] < 0.0) {  // no run covers it
        return;
    }
    let rate = scalars[p.scalars_at + 2u].x * rates[of_block];
    let decay = scalars[p.scalars_at + 2u].x * rates[of_block + 1u] * p.weight_decay;
    let gradient = gradients[p.gradients_at + i] * scalars[p.scalars_at + 1u].x;
    let moment = first[p.first_at + i];
    let update = rate * sign(fma(p.beta1, moment, p.rest1 * gradient));
    let parameter = parameters[p.parameters_at + i];
    parameters[p.parameters_at + i] = fma(-decay, parameter, parameter) - update;
    first[p.first_at + i] = fma(p.beta2, moment, p.rest2 * gradient);
}

/// Of matrix w.y: the momentum, and in x what is to be made orthogonal, with its squares by part.
@compute @workgroup_size(THREADS)
fn momentum(@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let factor = scalars[p.scalars_at + 1u].x;
    let moves = scalars[p.scalars_at].x != 0.0;
    let base = u32(offsets[p.offsets_at + w.y]);
    var sum = vec2<f32>();
    for (var i = w.x * THREADS + lane; i < p.size; i += p.parts * THREADS) {
        let gradient = p.rest1 * factor * gradients[p.gradients_at + base + i];
        var moment = first[p.first_at + base + i];
        var value = 0.0;
        if (moves) {
            moment = fma(p.beta1, moment, gradient);
            first[p.first_at + base + i] = moment;
            value = fma(p.beta1, moment, gradient);
        }
        x[p.x_at + w.y * p.size + i] = value;
        sum = add_to_pair(sum, value * value);
    }
    let whole = workgroup_pair_sum(sum, lane);
    if (lane == 0u) {
        partial[p.partial_at + w.y * p.parts + w.x] = whole;
    }
}

@compute @workgroup_size(THREADS)
fn normalize(@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    var sum = vec2<f32>();
    for (var i = lane; i < p.parts; i += THREADS) {
        sum = add_pairs(sum, partial[p.partial_at + w.y * p.parts + i]);
    }
    let norm = sqrt(workgroup_pair_sum(sum, lane).x) + 1e-20;
    for (var i = w.x * THREADS + lane; i < p.size; i += p.parts * THREADS) {
        x[p.x_at + w.y * p.size + i] /= norm;
    }
}

@compute @workgroup_size(THREADS)
fn apply(@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    if (scalars[p.scalars_at].x == 0.0) {
        return;
    }
    let rate = scalars[p.scalars_at + 2u].x;
    let base = u32(offsets[p.offsets_at + w.y]);
    for (var i = w.x * THREADS + lane; i < p.size; i += p.parts * THREADS) {
        let parameter = parameters[p.parameters_at + base + i];
        let decayed = fma(-rate * p.weight_decay, parameter, parameter);
        let update = rate * p.scale * x[p.x_at + w.y * p.size + i];
        parameters[p.parameters_at + base + i] = decayed - update;
    }
}
