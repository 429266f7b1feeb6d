// RMSNorm and LayerNorm, with the Euler step in front: reference.py has the formulas.
//
// In:   x, delta (N, D); step_bias, weight, bias (D); of the backward pass dout (N, D), inverse (N)
// Out:  total = x + step_size * (delta + step_bias), out (N, D), inverse (N); dx, means (N)
// A workgroup takes a row and reads it two or three times, mostly from cache: bytes = 4 * N * D
// times 4 forward (x, delta, total, out), 3 to 5 backward.

struct Arguments {
    rows: u32, columns: u32, layer: u32, adds_bias: u32,
    step_size: f32, epsilon: f32, add_to_dx: u32, writes_out: u32, out_is_dout: u32,
    x_at: u32, x_row: u32, delta_at: u32, delta_row: u32, step_bias_at: u32,
    total_at: u32, total_row: u32, weight_at: u32, bias_at: u32,
    out_at: u32, out_row: u32, inverse_at: u32,
    dout_at: u32, dout_row: u32, dx_at: u32, dx_row: u32, means_at: u32,
}

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> weight: array<f32>;
@group(0) @binding(2) var<storage, read_write> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<Activation>;
@group(0) @binding(4) var<storage, read_write> inverse: array<f32>;
@group(0) @binding(5) var<storage, read_write> delta: array<Activation>;
@group(0) @binding(6) var<storage, read_write> step_bias: array<Weight>;
@group(0) @binding(7) var<storage, read_write> total: array<f32>;
@group(0) @binding(8) var<storage, read_write> dout: array<Activation>;
@group(0) @binding(9) var<storage, read_write> dx: array<Activation>;
@group(0) @binding(10) var<storage, read_write> means: array<f32>;
@group(0) @binding(11) var<uniform> p: Arguments;

/// The mean of a row of x, or 0 for RMSNorm.
fn mean_of_row(row: u32, lane: u32) -> f32 {
    if (p.layer == 0u) {
        return 0.0;
    }
    var sum = 0.0;
    for (var d = lane; d < p.columns; d += THREADS) {
        sum += x[p.x_at + row * p.x_row + d];
    }
    return workgroup_sum(sum, lane) / f32(p.columns);
}

@compute @workgroup_size(THREADS)
fn add(workgroup: Workgroup, @builtin(local_invocation_index) lane: u32) {
    // the norm of the sum is the next kernel's
    let row = number_of(workgroup);
    if (row >= p.rows) {
        return;
    }
    for (var d = lane; d < p.columns; d += THREADS) {
        var step = f32(delta[p.delta_at + row * p.delta_row + d]);
        if (p.adds_bias != 0u) {
            step += f32(step_bias[p.step_bias_at + d]);
        }
        let from_x = x[p.x_at + row * p.x_row + d];
        total[p.total_at + row * p.total_row + d] = fma(p.step_size, step, from_x);
    }
}

@compute @workgroup_size(THREADS)
fn forward(workgroup: Workgroup, @builtin(local_invocation_index) lane: u32) {
    let row = number_of(workgroup);
    if (row >= p.rows) {
        return;
    }
    let mean = mean_of_row(row, lane);
    var squares = 0.0;
    for (var d = lane; d < p.columns; d += THREADS) {
        let centred = x[p.x_at + row * p.x_row + d] - mean;
        squares = fma(centred, centred, squares);
    }
    let factor = 1.0 / sqrt(workgroup_sum(squares, lane) / f32(p.columns) + p.epsilon);
    for (var d = lane; d < p.columns; d += THREADS) {
        var value = (x[p.x_at + row * p.x_row + d] - mean) * factor * weight[p.weight_at + d];
        if (p.layer != 0u) {
            value += bias[p.bias_at + d];
        }
        out[p.out_at + row * p.out_row + d] = Activation(value);
    }
    if (lane == 0u) {
        inverse[p.inverse_at + row] = factor;
    }
}

@compute @workgroup_size(THREADS)
fn row_means(workgroup: Workgroup, @builtin(local_invocation_index) lane: u32) {
    let row = number_of(workgroup);
    if (row >= p.rows) {
        return;
    }
    let mean = mean_of_row(row, lane);
    if (lane == 0u) {
        means[p.means_at + row] = mean;
    }
}

@compute @workgroup_size(THREADS)
fn backward(workgroup: Workgroup, @builtin(local_invocation_index) lane: u32) {
    let row = number_of(workgroup);
    if (row >= p.rows) {
        return;
    }
    let mean = mean_of_row(row, lane);
    let factor = inverse[p.inverse_at + row];
    var slopes = 0.0;
    var gradients = 0.0;
    for (var d = lane; d < p.columns; d += THREADS) {
        let unit = (x[p.x_at + row * p.x_row + d] - mean) * factor;
        let gradient = f32(dout[p.dout_at + row * p.dout_row + d]) * weight[p.weight_at + d];
        slopes = fma(gradient, unit, slopes);
        gradients += gradient;
    }
    let slope = workgroup_sum(slopes, lane) / f32(p.columns);
    var gradient_mean = 0.0;
    if (p.layer != 0u) {
        gradient_mean = workgroup_sum(gradients, lane) / f32(p.columns);
    }
    for (var d = lane; d < p.columns; d += THREADS) {
        let unit = (x[p.x_at + row * p.x_row + d] - mean) * factor;
        let at = p.dout_at + row * p.dout_row + d;
        let gradient = f32(dout[at]) * weight[p.weight_at + d];
        var value = (gradient - gradient_mean - unit * slope) * factor;
        let to = p.dx_at + row * p.dx_row + d;
        if (p.add_to_dx != 0u) {
            value += f32(dx[to]);
        }
        dx[to] = Activation(value);
        if (p.writes_out != 0u) {
            var again = unit * weight[p.weight_at + d];
            if (p.layer != 0u) {
                again += bias[p.bias_at + d];
            }
            if (p.out_is_dout != 0u) {
                dout[at] = Activation(again);
            } else {
                out[p.out_at + row * p.out_row + d] = Activation(again);
            }
        }
    }
}
