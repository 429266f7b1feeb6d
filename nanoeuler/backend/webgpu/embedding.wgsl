// Rows of tables: embeddings and their gradients.
//
// A launch takes `count` rows of a table from `first` on: a kernel may not see all of a large one.
//
// In:   ids, positions (N) int32; table (V, D), position_table (P, D), dout (N, D)
// Out:  out (N, D); dtable (V, D)
// Forward, a thread takes an element: bytes = 8 * N * D. Backward, a workgroup takes THREADS
// columns of one row of the table, looks for its id among all ids, IDS at a time, and adds in the
// order of n: bytes = 4 * (N * D + V * N * D / THREADS + V * D), those of the ids from cache.

struct Arguments {
    rows: u32, columns: u32, vocabulary: u32, first: u32, count: u32, positions_count: u32,
    accumulate: u32, factor: f32,
    ids_at: u32, table_at: u32, table_row: u32, positions_at: u32,
    position_table_at: u32, position_table_row: u32, out_at: u32, out_row: u32,
    dout_at: u32, dout_row: u32, dtable_at: u32, dtable_row: u32,
}

@group(0) @binding(0) var<storage, read_write> ids: array<i32>;
@group(0) @binding(1) var<storage, read_write> table: array<Weight>;
@group(0) @binding(2) var<storage, read_write> positions: array<i32>;
@group(0) @binding(3) var<storage, read_write> position_table: array<Weight>;
@group(0) @binding(4) var<storage, read_write> out: array<Out>;
@group(0) @binding(5) var<storage, read_write> dout: array<Activation>;
@group(0) @binding(6) var<storage, read_write> dtable: array<f32>;
@group(0) @binding(7) var<uniform> p: Arguments;

@compute @workgroup_size(THREADS)
fn embed(thread: Thread) {
    let i = element(thread);
    if (i >= p.rows * p.columns) {
        return;
    }
    let n = i / p.columns;
    let d = i % p.columns;
    let id = u32(clamp(ids[p.ids_at + n], 0, i32(p.vocabulary) - 1));
    if (id >= p.first && id < p.first + p.count) {
        let row = p.table_at + (id - p.first) * p.table_row;
        out[p.out_at + n * p.out_row + d] = Out(table[row + d]);
    }
}

@compute @workgroup_size(THREADS)
fn add_positions(thread: Thread) {
    let i = element(thread);
    if (i >= p.rows * p.columns) {
        return;
    }
    let n = i / p.columns;
    let d = i % p.columns;
    let position = u32(clamp(positions[p.positions_at + n], 0, i32(p.positions_count) - 1));
    let row = p.position_table_at + position * p.position_table_row;
    let to = p.out_at + n * p.out_row + d;
    out[to] = Out(f32(out[to]) + f32(position_table[row + d]));
}

@compute @workgroup_size(THREADS)
fn scale(thread: Thread) {
    let i = element(thread);
    if (i < p.rows * p.columns) {
        let at = p.out_at + (i / p.columns) * p.out_row + i % p.columns;
        out[at] = Out(f32(out[at]) * p.factor);
    }
}

const IDS = 1024u;

// a bit for each of the ids at hand: is it the one that is looked for?
var<workgroup> found: array<atomic<u32>, IDS / 32u>;

@compute @workgroup_size(THREADS)
fn backward(@builtin(workgroup_id) w: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = w.x + MOST_WORKGROUPS * w.z;
    let id = i32(p.first + row);
    let d = w.y * THREADS + lane;
    var sum = vec2<f32>();
    for (var first = 0u; first < p.rows; first += IDS) {
        if (lane < IDS / 32u) {
            atomicStore(&found[lane], 0u);
        }
        workgroupBarrier();
        for (var i = lane; i < min(IDS, p.rows - first); i += THREADS) {
            if (ids[p.ids_at + first + i] == id) {
                atomicOr(&found[i / 32u], 1u << (i % 32u));
            }
        }
        workgroupBarrier();
        if (d < p.columns) {
            for (var word = 0u; word < IDS / 32u; word++) {
                var bits = atomicLoad(&found[word]);
                while (bits != 0u) {
                    let n = first + 32u * word + firstTrailingBit(bits);
                    sum = add_to_pair(sum, f32(dout[p.dout_at + n * p.dout_row + d]));
                    bits &= bits - 1u;
                }
            }
        }
        workgroupBarrier();
    }
    if (d < p.columns && row < p.count) {
        let to = p.dtable_at + row * p.dtable_row + d;
        var value = normal_pair(sum).x;
        if (p.accumulate != 0u) {
            value += dtable[to];
        }
        dtable[to] = value;
    }
}
