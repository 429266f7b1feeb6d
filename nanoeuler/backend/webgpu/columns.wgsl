// Sums over the rows: the gradients of biases, and of the weights of norms.
//
// In:   dout (N, D); x (N, D), inverse (N) and means (N) of a norm, u = (x - mean) * inverse
// Out:  partial (parts, D), the sums of dout or of dout * u over `slice` rows each; out (D), their
//       sum times scale, added to what is there with `accumulate`
// A thread takes a column: bytes = 4 * N * D, twice for a norm's weight.

struct Arguments {
    rows: u32, columns: u32, slice: u32, parts: u32, accumulate: u32, has_means: u32, scale: f32,
    dout_at: u32, dout_row: u32, x_at: u32, x_row: u32, inverse_at: u32, means_at: u32,
    partial_at: u32, out_at: u32,
}

@group(0) @binding(0) var<storage, read_write> dout: array<Activation>;
@group(0) @binding(1) var<storage, read_write> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> inverse: array<f32>;
@group(0) @binding(3) var<storage, read_write> means: array<f32>;
@group(0) @binding(4) var<storage, read_write> partial: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;
@group(0) @binding(6) var<uniform> p: Arguments;

@compute @workgroup_size(THREADS)
fn sums(@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let d = w.x * THREADS + lane;
    if (d >= p.columns) {
        return;
    }
    var sum = 0.0;
    for (var n = w.y * p.slice; n < min(p.rows, (w.y + 1u) * p.slice); n++) {
        sum += f32(dout[p.dout_at + n * p.dout_row + d]);
    }
    partial[p.partial_at + w.y * p.columns + d] = sum;
}

@compute @workgroup_size(THREADS)
fn products(@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let d = w.x * THREADS + lane;
    if (d >= p.columns) {
        return;
    }
    var sum = 0.0;
    for (var n = w.y * p.slice; n < min(p.rows, (w.y + 1u) * p.slice); n++) {
        var centred = x[p.x_at + n * p.x_row + d];
        if (p.has_means != 0u) {
            centred -= means[p.means_at + n];
        }
        let unit = centred * inverse[p.inverse_at + n];
        sum = fma(f32(dout[p.dout_at + n * p.dout_row + d]), unit, sum);
    }
    partial[p.partial_at + w.y * p.columns + d] = sum;
}

@compute @workgroup_size(THREADS)
fn finish(@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let d = w.x * THREADS + lane;
    if (d >= p.columns) {
        return;
    }
    var sum = 0.0;
    for (var part = 0u; part < p.parts; part++) {
        sum += partial[p.partial_at + part * p.columns + d];
    }
    sum *= p.scale;
    if (p.accumulate != 0u) {
        sum += out[p.out_at + d];
    }
    out[p.out_at + d] = sum;
}
