// Functions of single elements: GELU, ReLU^2, SwiGLU, GEGLU, soft caps, sums with biases.
//
// In:   x or gate, up, dout (N, F), bias (F)
// Out:  out, dx or dgate, dup, slope (N, F); of a backward pass dx may be the array of x, dgate
//       that of gate, dup that of up, and out that of dout
// A thread takes an element: bytes = 4 * N * F for each array. What a backward pass writes in the
// place of what it read is written behind a barrier, lest a compiler thinks them apart.

struct Arguments {
    rows: u32, columns: u32, writes_out: u32, writes_slope: u32, cap: f32,
    x_at: u32, x_row: u32, up_at: u32, up_row: u32, out_at: u32, out_row: u32,
    dout_at: u32, dout_row: u32, dx_at: u32, dx_row: u32, dup_at: u32, dup_row: u32,
    bias_at: u32, slope_at: u32, slope_row: u32,
}

@group(0) @binding(0) var<storage, read_write> x: array<Activation>;
@group(0) @binding(1) var<storage, read_write> up: array<Activation>;
@group(0) @binding(2) var<storage, read_write> out: array<Activation>;
@group(0) @binding(3) var<storage, read_write> dout: array<Activation>;
@group(0) @binding(4) var<storage, read_write> dx: array<Activation>;
@group(0) @binding(5) var<storage, read_write> dup: array<Activation>;
@group(0) @binding(6) var<storage, read_write> bias: array<Weight>;
@group(0) @binding(7) var<storage, read_write> slope: array<Activation>;
@group(0) @binding(8) var<uniform> p: Arguments;

const CUBE = 0.044715;
const TWICE_ROOT = 1.5957691216057308;  // 2 sqrt(2 / pi)

/// gelu(x), and its derivative.
fn gelu_and_slope(x: f32) -> vec2<f32> {
    let square = x * x;
    let sigma = sigmoid(TWICE_ROOT * x * fma(CUBE, square, 1.0));
    let inner = TWICE_ROOT * x * (1.0 - sigma) * fma(3.0 * CUBE, square, 1.0);
    return vec2(x * sigma, sigma * (1.0 + inner));
}

/// max(x, 0)^2, and its derivative.
fn relu2_and_slope(x: f32) -> vec2<f32> {
    let positive = max(x, 0.0);
    return vec2(positive * positive, 2.0 * positive);
}

/// silu(x), and its derivative.
fn silu_and_slope(x: f32) -> vec2<f32> {
    let sigma = sigmoid(x);
    let silu = x * sigma;
    return vec2(silu, fma(silu, 1.0 - sigma, sigma));
}

fn is_element(i: u32) -> bool {
    return i < p.rows * p.columns;
}

/// Where element i lies of an array that begins at `at`.
fn place(i: u32, at: u32, row: u32) -> u32 {
    return at + i / p.columns * row + i % p.columns;
}

@compute @workgroup_size(THREADS)
fn gelu(thread: Thread) {
    let i = element(thread);
    if (is_element(i)) {
        let value = f32(x[place(i, p.x_at, p.x_row)]);
        out[place(i, p.out_at, p.out_row)] = Activation(gelu_and_slope(value).x);
    }
}

@compute @workgroup_size(THREADS)
fn relu2(thread: Thread) {
    let i = element(thread);
    if (is_element(i)) {
        let value = f32(x[place(i, p.x_at, p.x_row)]);
        out[place(i, p.out_at, p.out_row)] = Activation(relu2_and_slope(value).x);
    }
}

/// x and dout, read by all threads before one writes.
fn read_pair(i: u32) -> vec2<f32> {
    var read = vec2<f32>();
    if (is_element(i)) {
        let from_x = f32(x[place(i, p.x_at, p.x_row)]);
        read = vec2(from_x, f32(dout[place(i, p.dout_at, p.dout_row)]));
    }
    storageBarrier();
    return read;
}

/// From `activation`, that of x and its slope, to the gradient of x.
fn store(i: u32, activation: vec2<f32>, gradient: f32) {
    if (is_element(i)) {
        dx[place(i, p.dx_at, p.dx_row)] = Activation(gradient * activation.y);
        if (p.writes_out != 0u) {
            out[place(i, p.out_at, p.out_row)] = Activation(activation.x);
        }
    }
}

@compute @workgroup_size(THREADS)
fn gelu_backward(thread: Thread) {
    let read = read_pair(element(thread));
    store(element(thread), gelu_and_slope(read.x), read.y);
}

@compute @workgroup_size(THREADS)
fn relu2_backward(thread: Thread) {
    let read = read_pair(element(thread));
    store(element(thread), relu2_and_slope(read.x), read.y);
}

@compute @workgroup_size(THREADS)
fn swiglu(thread: Thread) {
    let i = element(thread);
    if (is_element(i)) {
        let silu = silu_and_slope(f32(x[place(i, p.x_at, p.x_row)])).x;
        let factor = f32(up[place(i, p.up_at, p.up_row)]);
        out[place(i, p.out_at, p.out_row)] = Activation(silu * factor);
    }
}

@compute @workgroup_size(THREADS)
fn geglu(thread: Thread) {
    let i = element(thread);
    if (is_element(i)) {
        let gelu = gelu_and_slope(f32(x[place(i, p.x_at, p.x_row)])).x;
        let factor = f32(up[place(i, p.up_at, p.up_row)]);
        out[place(i, p.out_at, p.out_row)] = Activation(gelu * factor);
    }
}

/// Gate, up and dout, read like a pair.
fn read_gated(i: u32) -> vec3<f32> {
    var factor = 0.0;
    if (is_element(i)) {
        factor = f32(up[place(i, p.up_at, p.up_row)]);
    }
    let pair = read_pair(i);
    return vec3(pair.x, factor, pair.y);
}

/// From `activation`, that of the gate and its slope, to the gradients of gate and up.
fn store_gated(i: u32, activation: vec2<f32>, factor: f32, gradient: f32) {
    if (is_element(i)) {
        dx[place(i, p.dx_at, p.dx_row)] = Activation(gradient * factor * activation.y);
        dup[place(i, p.dup_at, p.dup_row)] = Activation(gradient * activation.x);
        if (p.writes_out != 0u) {
            out[place(i, p.out_at, p.out_row)] = Activation(activation.x * factor);
        }
    }
}

@compute @workgroup_size(THREADS)
fn swiglu_backward(thread: Thread) {
    let read = read_gated(element(thread));
    store_gated(element(thread), silu_and_slope(read.x), read.y, read.z);
}

@compute @workgroup_size(THREADS)
fn geglu_backward(thread: Thread) {
    let read = read_gated(element(thread));
    store_gated(element(thread), gelu_and_slope(read.x), read.y, read.z);
}

@compute @workgroup_size(THREADS)
fn soft_cap(thread: Thread) {
    let i = element(thread);
    if (is_element(i)) {
        let at = place(i, p.x_at, p.x_row);
        let bent = hyperbolic_tangent(f32(x[at]) / p.cap);
        if (p.writes_slope != 0u) {
            slope[place(i, p.slope_at, p.slope_row)] = Activation(fma(-bent, bent, 1.0));
        }
        x[at] = Activation(p.cap * bent);
    }
}

@compute @workgroup_size(THREADS)
fn multiply(thread: Thread) {
    let i = element(thread);
    if (is_element(i)) {
        let at = place(i, p.x_at, p.x_row);
        x[at] = Activation(f32(x[at]) * f32(slope[place(i, p.slope_at, p.slope_row)]));
    }
}

@compute @workgroup_size(THREADS)
fn add_bias(thread: Thread) {
    let i = element(thread);
    if (is_element(i)) {
        let at = place(i, p.x_at, p.x_row);
        x[at] = Activation(f32(x[at]) + f32(bias[p.bias_at + i % p.columns]));
    }
}
