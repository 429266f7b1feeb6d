// What every kernel may use: it is put in front of each file, behind its constants.
//
// A variable in a loop is set to zero by name: left to the compiler, that happens once in all.
// THREADS of a workgroup, unless a file says otherwise. WGSL lets a device err by several units in
// the last place in exp, log and tanh, and assume that no number is infinite: these do not.

const HUGE = 3.0e38;

/// Where a thread is: its workgroup, their number, and its number within it.
struct Thread {
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
}

/// Where a workgroup is, and their number.
struct Workgroup {
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
}

/// The number of a workgroup: they lie in rows of `groups.x`.
fn number_of(workgroup: Workgroup) -> u32 {
    return workgroup.id.y * workgroup.groups.x + workgroup.id.x;
}

/// The element that a thread takes: workgroups lie in rows of `groups.x`.
fn element(thread: Thread) -> u32 {
    return (thread.group.y * thread.groups.x + thread.group.x) * THREADS + thread.lane;
}

fn is_finite(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u;
}

/// e^x = 2^n e^r with |r| at most ln 2 / 2, by Taylor's series; x is clamped to -87 and 88.
fn exponential(x: f32) -> f32 {
    let y = clamp(x, -87.0, 88.0);
    let n = round(y * 1.4426950408889634);
    let r = fma(n, -1.428606765330187e-6, fma(n, -0.693145751953125, y));
    var series = fma(r, 1.0 / 5040.0, 1.0 / 720.0);
    series = fma(series, r, 1.0 / 120.0);
    series = fma(series, r, 1.0 / 24.0);
    series = fma(series, r, 1.0 / 6.0);
    series = fma(series, r, 0.5);
    series = fma(series * r, r, r) + 1.0;
    return bitcast<f32>(bitcast<i32>(series) + (i32(n) << 23u));
}

/// e^x - 1
fn exponential_less_one(x: f32) -> f32 {
    var series = fma(x, 1.0 / 40320.0, 1.0 / 5040.0);
    series = fma(series, x, 1.0 / 720.0);
    series = fma(series, x, 1.0 / 120.0);
    series = fma(series, x, 1.0 / 24.0);
    series = fma(series, x, 1.0 / 6.0);
    series = fma(series, x, 0.5);
    return select(exponential(x) - 1.0, fma(series * x, x, x), abs(x) < 0.4);
}

/// ln x = k ln 2 + ln m, m from 2/3 to 4/3, by the series of 2 artanh((m - 1) / (m + 1)).
fn logarithm(x: f32) -> f32 {
    let bits = bitcast<i32>(x);
    let k = (bits - 0x3f2aaaab) >> 23u;
    let f = bitcast<f32>(bits - (k << 23u)) - 1.0;
    let s = f / (2.0 + f);
    let z = s * s;
    var series = fma(z, 2.0 / 11.0, 2.0 / 9.0);
    series = fma(series, z, 2.0 / 7.0);
    series = fma(series, z, 0.4);
    series = fma(series, z, 2.0 / 3.0);
    let tail = s * z * series;
    return fma(f32(k), 0.693145751953125, fma(f32(k), 1.428606765330187e-6, fma(2.0, s, tail)));
}

fn sigmoid(x: f32) -> f32 {
    return 1.0 / (1.0 + exponential(-x));
}

fn hyperbolic_tangent(x: f32) -> f32 {
    let z = x * x;
    var series = fma(z, -1382.0 / 155925.0, 62.0 / 2835.0);
    series = fma(series, z, -17.0 / 315.0);
    series = fma(series, z, 2.0 / 15.0);
    series = fma(series, z, -1.0 / 3.0);
    let large = sign(x) * (1.0 - 2.0 / (exponential(2.0 * abs(x)) + 1.0));
    return select(large, fma(series * z, x, x), abs(x) < 0.35);
}

/// An unevaluated sum of two numbers, `pair` + x: their roundings are kept (Knuth 1969).
fn add_to_pair(pair: vec2<f32>, x: f32) -> vec2<f32> {
    let total = pair.x + x;
    let back = total - pair.x;
    return vec2(total, pair.y + ((pair.x - (total - back)) + (x - back)));
}

/// The pair with its parts apart by more than the rounding of the first.
fn normal_pair(pair: vec2<f32>) -> vec2<f32> {
    let total = pair.x + pair.y;
    return vec2(total, select(0.0, pair.y - (total - pair.x), is_finite(total)));
}

fn add_pairs(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
    return add_to_pair(vec2(a.x, a.y + b.y), b.x);
}

var<workgroup> shared_values: array<f32, THREADS>;

/// The sum of a number of each thread; all of them get it.
fn workgroup_sum(value: f32, lane: u32) -> f32 {
    shared_values[lane] = value;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if (lane < half) {
            shared_values[lane] += shared_values[lane + half];
        }
        workgroupBarrier();
    }
    return workgroupUniformLoad(&shared_values[0]);
}

fn workgroup_max(value: f32, lane: u32) -> f32 {
    shared_values[lane] = value;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if (lane < half) {
            shared_values[lane] = max(shared_values[lane], shared_values[lane + half]);
        }
        workgroupBarrier();
    }
    return workgroupUniformLoad(&shared_values[0]);
}

var<workgroup> shared_pairs: array<vec2<f32>, THREADS>;

/// The sum of a pair of each thread; all of them get it.
fn workgroup_pair_sum(value: vec2<f32>, lane: u32) -> vec2<f32> {
    shared_pairs[lane] = value;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        if (lane < half) {
            shared_pairs[lane] = add_pairs(shared_pairs[lane], shared_pairs[lane + half]);
        }
        workgroupBarrier();
    }
    return normal_pair(workgroupUniformLoad(&shared_pairs[0]));
}
