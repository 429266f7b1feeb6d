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

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> up: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@group(0) @binding(3) var<storage, read_write> dout: array<f32>;
@group(0) @binding(4) var<storage, read_write> dx: array<f32>;
@group(0) @binding(5) var<storage, read_write> dup: array<f32>;
@group(0) @binding(6) var<storage, read_write> bias: array<Weight>;
@group(0) @binding(7) var<storage, read_write> slope: array<f32>;
@group(0) @binding(8) var<uniform> p: Arguments;

const CUBE = 0.044715;
const TWICE_ROOT = 1.5957691216057308;  // 2 sqrt(2 / pi)

/// gelu(x) / x, and the derivative of gelu.
fn gelu_factor_and_slope(x: f32) -> vec2<f32> {
    let square = x * x;
    let sigma = sigmoid(TWICE_ROOT * x * fma(CUBE, square, 1.0));
    let inner = TWICE_ROOT * x * (1.0 - sigma) * fma(3.0 * CUBE, square, 1.0);
    return vec2(sigma, sigma * (1.0 + inner));
}

/// silu(x), and its derivative.
fn silu_and_slope(x: f32) -> vec2<f32> {
    let sigma = sigmoid(x);
    let silu = x * sigma;
    return vec2(silu, fma(silu, 1.0 - sigma, sigma));
}

@compute @workgroup_size(THREADS)
fn gelu(thread: Thread) {
    let i = element(thread);
    if (i >= p.rows * p.columns) {
        return;
    }
    let n = i / p.columns;
    let f = i % p.columns;
    let value = x[p.x_at + n * p.x_row + f];
    out[p.out_at + n * p.out_row + f] = value * gelu_factor_and_slope(value).x;
}

@compute @workgroup_size(THREADS)
fn gelu_backward(thread: Thread) {
    let i = element(thread);
    let n = i / p.columns;
    let f = i % p.columns;
    let inside = n < p.rows;
    var value = 0.0;
    var gradient = 0.0;
    if (inside) {
        value = x[p.x_at + n * p.x_row + f];
        gradient = dout[p.dout_at + n * p.dout_row + f];
    }
    storageBarrier();
    if (inside) {
        let found = gelu_factor_and_slope(value);
        dx[p.dx_at + n * p.dx_row + f] = gradient * found.y;
        if (p.writes_out != 0u) {
            out[p.out_at + n * p.out_row + f] = value * found.x;
        }
    }
}

@compute @workgroup_size(THREADS)
fn relu2(thread: Thread) {
    let i = element(thread);
    if (i >= p.rows * p.columns) {
        return;
    }
    let n = i / p.columns;
    let f = i % p.columns;
    let positive = max(x[p.x_at + n * p.x_row + f], 0.0);
    out[p.out_at + n * p.out_row + f] = positive * positive;
}

@compute @workgroup_size(THREADS)
fn relu2_backward(thread: Thread) {
    let i = element(thread);
    let n = i / p.columns;
    let f = i % p.columns;
    let inside = n < p.rows;
    var positive = 0.0;
    var gradient = 0.0;
    if (inside) {
        positive = max(x[p.x_at + n * p.x_row + f], 0.0);
        gradient = dout[p.dout_at + n * p.dout_row + f];
    }
    storageBarrier();
    if (inside) {
        dx[p.dx_at + n * p.dx_row + f] = 2.0 * positive * gradient;
        if (p.writes_out != 0u) {
            out[p.out_at + n * p.out_row + f] = positive * positive;
        }
    }
}

@compute @workgroup_size(THREADS)
fn swiglu(thread: Thread) {
    let i = element(thread);
    if (i >= p.rows * p.columns) {
        return;
    }
    let n = i / p.columns;
    let f = i % p.columns;
    let silu = silu_and_slope(x[p.x_at + n * p.x_row + f]).x;
    out[p.out_at + n * p.out_row + f] = silu * up[p.up_at + n * p.up_row + f];
}

@compute @workgroup_size(THREADS)
fn geglu(thread: Thread) {
    let i = element(thread);
    if (i >= p.rows * p.columns) {
        return;
    }
    let n = i / p.columns;
    let f = i % p.columns;
    let gate = x[p.x_at + n * p.x_row + f];
    let gelu = gate * gelu_factor_and_slope(gate).x;
    out[p.out_at + n * p.out_row + f] = gelu * up[p.up_at + n * p.up_row + f];
}

/// From `activation`, that of the gate and its slope, to the gradients of gate and up.
fn store_gated(n: u32, f: u32, activation: vec2<f32>, factor: f32, gradient: f32) {
    dx[p.dx_at + n * p.dx_row + f] = gradient * factor * activation.y;
    dup[p.dup_at + n * p.dup_row + f] = gradient * activation.x;
    if (p.writes_out != 0u) {
        out[p.out_at + n * p.out_row + f] = activation.x * factor;
    }
}

@compute @workgroup_size(THREADS)
fn swiglu_backward(thread: Thread) {
    let i = element(thread);
    let n = i / p.columns;
    let f = i % p.columns;
    let inside = n < p.rows;
    var read = vec3<f32>();  // gate, up, dout
    if (inside) {
        read.x = x[p.x_at + n * p.x_row + f];
        read.y = up[p.up_at + n * p.up_row + f];
        read.z = dout[p.dout_at + n * p.dout_row + f];
    }
    storageBarrier();
    if (inside) {
        store_gated(n, f, silu_and_slope(read.x), read.y, read.z);
    }
}

@compute @workgroup_size(THREADS)
fn geglu_backward(thread: Thread) {
    let i = element(thread);
    let n = i / p.columns;
    let f = i % p.columns;
    let inside = n < p.rows;
    var read = vec3<f32>();
    if (inside) {
        read.x = x[p.x_at + n * p.x_row + f];
        read.y = up[p.up_at + n * p.up_row + f];
        read.z = dout[p.dout_at + n * p.dout_row + f];
    }
    storageBarrier();
    if (inside) {
        let found = gelu_factor_and_slope(read.x);
        store_gated(n, f, vec2(read.x * found.x, found.y), read.y, read.z);
    }
}

@compute @workgroup_size(THREADS)
fn soft_cap(thread: Thread) {
    let i = element(thread);
    if (i >= p.rows * p.columns) {
        return;
    }
    let n = i / p.columns;
    let f = i % p.columns;
    let at = p.x_at + n * p.x_row + f;
    let bent = hyperbolic_tangent(x[at] / p.cap);
    if (p.writes_slope != 0u) {
        slope[p.slope_at + n * p.slope_row + f] = fma(-bent, bent, 1.0);
    }
    x[at] = p.cap * bent;
}

@compute @workgroup_size(THREADS)
fn multiply(thread: Thread) {
    let i = element(thread);
    if (i >= p.rows * p.columns) {
        return;
    }
    let n = i / p.columns;
    let f = i % p.columns;
    x[p.x_at + n * p.x_row + f] *= slope[p.slope_at + n * p.slope_row + f];
}

@compute @workgroup_size(THREADS)
fn add_bias(thread: Thread) {
    let i = element(thread);
    if (i >= p.rows * p.columns) {
        return;
    }
    let f = i % p.columns;
    x[p.x_at + (i / p.columns) * p.x_row + f] += f32(bias[p.bias_at + f]);
}
