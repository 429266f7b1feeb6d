// WebGPU for the pages: arrays in a GPU's memory, and launches of the kernels that
// nanoeuler/backend/webgpu has. Arrays and numbers are given by their names in the .wgsl files, as
// in kernel_sources.py there.
"use strict";

const WINDOW = 256; // bytes: what a kernel sees of a buffer begins on a multiple
const KEPT = 1 << 14; // launches that are kept for the next with the same arrays and numbers
const LIMITS = ["maxBufferSize", "maxStorageBufferBindingSize"];

// Rows of numbers within a buffer. Strides and places are in elements: of 4 bytes, or with two
// `words`, pairs of float32 whose sum counts. `batches` such matrices lie `batch` apart.
class GpuArray {
  constructor(buffer, rows, columns, given = {}) {
    Object.assign(this, { buffer, rows, columns, at: 0, row: columns, inner: 1, words: 1 });
    Object.assign(this, { batches: 1, batch: 0 }, given);
  }

  like(changes) {
    return Object.assign(Object.create(GpuArray.prototype), this, changes);
  }

  get size() {
    return this.rows * this.columns;
  }

  get T() {
    const { rows, columns, row, inner } = this;
    return this.like({ rows: columns, columns: rows, row: inner, inner: row });
  }

  // The same numbers in rows of another size; they lie without gaps.
  reshape(columns) {
    return this.like({ rows: this.size / columns, columns, row: columns });
  }

  // Bytes from the first number to the end of the last.
  get extent() {
    const { rows, columns, row, inner, batches, batch, words } = this;
    const last = (batches - 1) * batch + (rows - 1) * row + (columns - 1) * inner;
    return 4 * words * (last + 1);
  }
}

class Device {
  // Raises an error that says, as a part of a sentence, why there is none.
  static async open(kernels) {
    const adapter = await navigator.gpu?.requestAdapter();
    if (!adapter) throw new Error("it offers no WebGPU here");
    const requiredLimits = Object.fromEntries(LIMITS.map((name) => [name, adapter.limits[name]]));
    return new Device(adapter.info, await adapter.requestDevice({ requiredLimits }), kernels);
  }

  constructor({ vendor, architecture, description } = {}, opened, kernels) {
    const named = [vendor, architecture].filter(Boolean).join(" ");
    this.name = description || named || "a GPU without a name";
    Object.assign(this, { opened, kernels, sizes: kernels.sizes });
    this.most = opened.limits.maxStorageBufferBindingSize - WINDOW;
    this.free = new Map(); // bytes → buffers that nobody has
    this.lent = [];
    this.pipelines = new Map();
    this.groups = new Map();
    this.numbers = new Map();
    this.made = 0;
    opened.addEventListener("uncapturederror", ({ error }) => (this.problem ??= error.message));
    opened.lost.then(({ message }) => (this.problem = message || "it was taken away"));
    this.spares = [0, 1, 2].map(() => this.array(1, 4)); // for arrays that a launch does not read
  }

  // ---- arrays

  buffer(size, usage = GPUBufferUsage.STORAGE) {
    const { COPY_SRC, COPY_DST } = GPUBufferUsage;
    const label = String(this.made++); // by which launches are told apart
    return this.opened.createBuffer({ label, size, usage: usage | COPY_SRC | COPY_DST });
  }

  // A new array of zeros.
  array(rows, columns, words = 1) {
    return new GpuArray(this.buffer(Math.max(16, 4 * words * rows * columns)), rows, columns, {
      words,
    });
  }

  // An array of no value for what follows until `recycle`.
  take(rows, columns, words = 1) {
    const bytes = 4 * words * rows * columns;
    const size = 2 ** Math.max(8, Math.ceil(Math.log2(bytes)));
    const buffer = this.free.get(size)?.pop() ?? this.buffer(size);
    this.lent.push(buffer);
    return new GpuArray(buffer, rows, columns, { words });
  }

  // Backwards, so that the same work gets the same buffers again.
  recycle() {
    for (const buffer of this.lent.reverse()) {
      if (!this.free.has(buffer.size)) this.free.set(buffer.size, []);
      this.free.get(buffer.size).push(buffer);
    }
    this.lent = [];
    this.flush(); // or what is written next would come before what was launched
  }

  // Raises an error for more than a kernel can see at once.
  hold(values, name) {
    const size = (bytes) => `${(bytes / 1e6).toFixed(0)} MB`;
    if (values.byteLength > this.most) {
      const most = `its WebGPU lets a kernel see ${size(this.most)} at once`;
      throw new Error(`${most}, and ${name} has ${size(values.byteLength)}`);
    }
    const array = this.array(1, values.length);
    this.write(array, values);
    return array;
  }

  write(array, values) {
    this.flush();
    this.opened.queue.writeBuffer(array.buffer, 4 * array.words * array.at, values);
  }

  // Numbers of the host, until `recycle`.
  give(values) {
    const array = this.take(1, values.length);
    this.opened.queue.writeBuffer(array.buffer, 0, values);
    return array;
  }

  // The numbers of arrays that have no gaps, as Float32Array, once all that was launched is done.
  async read(arrays) {
    const bytes = ({ size, words }) => 4 * words * size;
    const total = arrays.reduce((sum, array) => sum + bytes(array), 0);
    const { MAP_READ, COPY_DST } = GPUBufferUsage;
    const buffer = this.opened.createBuffer({ size: total, usage: MAP_READ | COPY_DST });
    const encoder = this.end();
    let to = 0;
    for (const array of arrays) {
      const from = 4 * array.words * array.at;
      encoder.copyBufferToBuffer(array.buffer, from, buffer, to, bytes(array));
      to += bytes(array);
    }
    this.flush();
    await buffer.mapAsync(GPUMapMode.READ);
    if (this.problem) throw new Error(this.problem);
    const found = new Float32Array(buffer.getMappedRange().slice(0));
    buffer.destroy();
    let at = 0;
    return arrays.map(({ size, words }) => found.subarray(at, (at += size * words)));
  }

  // ---- launches

  // `constants` stand in front of the file's code.
  launch(file, kernel, grid, given, constants = "") {
    const { bindings, fields } = this.kernels.files[file];
    const windows = [];
    const values = {};
    for (const [name, value] of Object.entries(given)) {
      if (!(value instanceof GpuArray)) {
        values[name] = Number(value);
        continue;
      }
      const at = 4 * value.words * value.at;
      const offset = Math.floor(at / WINDOW) * WINDOW;
      windows.push([bindings[name][0], value.buffer, offset, at + value.extent - offset]);
      values[`${name}_at`] = (at - offset) / (4 * value.words);
      values[`${name}_row`] = values[`${name}_outer`] = value.row;
      values[`${name}_inner`] = value.inner;
      values[`${name}_batch`] = value.batch;
    }
    const packed = new DataView(new ArrayBuffer(16 * Math.ceil(fields.length / 4)));
    const setters = { u: "setUint32", i: "setInt32", f: "setFloat32" };
    fields.forEach(([name, kind], i) => packed[setters[kind]](4 * i, values[name] ?? 0, true));
    const numbers = this.uniform(packed.buffer);
    windows.push([bindings.p[0], numbers, 0, numbers.size]);
    const key = [file, kernel, constants, ...windows.map(([, buffer, offset, size]) =>
      `${buffer.label}+${offset}:${size}`)].join();
    const pipeline = this.pipeline(file, kernel, constants);
    const group = this.keep(this.groups, key, () => this.opened.createBindGroup({
      layout: pipeline.getBindGroupLayout(0),
      entries: windows.map(([binding, buffer, offset, size]) =>
        ({ binding, resource: { buffer, offset, size } })),
    }));
    this.encoder ??= this.opened.createCommandEncoder();
    this.pass ??= this.encoder.beginComputePass();
    this.pass.setPipeline(pipeline);
    this.pass.setBindGroup(0, group);
    this.pass.dispatchWorkgroups(...grid);
  }

  // Launch a thread for each element.
  launchOn(file, kernel, elements, given) {
    this.launch(file, kernel, this.flat(Math.ceil(elements / this.sizes.THREADS)), given);
  }

  // As many workgroups in rows, as one dimension may not hold them.
  flat(workgroups) {
    const across = Math.min(workgroups, this.sizes.MOST_WORKGROUPS);
    return [across, Math.ceil(workgroups / across)];
  }

  keep(kept, key, make) {
    if (kept.size > KEPT) kept.clear();
    if (!kept.has(key)) kept.set(key, make());
    return kept.get(key);
  }

  pipeline(file, kernel, constants) {
    return this.keep(this.pipelines, [file, kernel, constants].join(), () => {
      const code = [constants, this.kernels.prelude, this.kernels.files[file].code].join("\n");
      const module = this.opened.createShaderModule({ code });
      const compute = { module, entryPoint: kernel };
      return this.opened.createComputePipeline({ layout: "auto", compute });
    });
  }

  // A buffer with these numbers.
  uniform(packed) {
    return this.keep(this.numbers, new Uint32Array(packed).join(), () => {
      const buffer = this.buffer(packed.byteLength, GPUBufferUsage.UNIFORM);
      this.opened.queue.writeBuffer(buffer, 0, packed);
      return buffer;
    });
  }

  // The encoder of what was launched so far, which goes on behind the last launch.
  end() {
    this.encoder ??= this.opened.createCommandEncoder();
    this.pass?.end();
    this.pass = undefined;
    return this.encoder;
  }

  // Hand over what was launched.
  flush() {
    if (!this.encoder) return;
    const commands = this.end().finish();
    this.encoder = undefined;
    this.opened.queue.submit([commands]);
  }
}
