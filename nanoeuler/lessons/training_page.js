// Train a model on the text of the page: rows of bytes, steps, a curve, and what the model writes.
// The loop is that of examples/train.py.
"use strict";

const HELD_OUT = 0.1; // share of the text, at its end
const PEAK = 3e-3; // of the learning rate
const SHOWN = 20; // times that held-out text is measured, and a sample is written
const MEASURED = 4; // batches of held-out text
const WRITTEN = 160; // bytes of a sample

// Normal numbers of each tensor's spread (Box and Muller 1958), and ones.
function freshWeights(tensors, random) {
  const normal = () =>
    Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
  return Object.fromEntries(tensors.map(([name, size, spread]) =>
    [name, Float32Array.from({ length: size }, () => (spread === null ? 1 : spread * normal()))]));
}

// Linear warm-up over a tenth of the steps, then a cosine down to a tenth of the peak.
function learningRateAt(step, steps) {
  const warmUp = Math.max(1, Math.floor(steps / 10));
  if (step < warmUp) return (PEAK * (step + 1)) / warmUp;
  const done = (step - warmUp) / Math.max(1, steps - warmUp);
  return PEAK * (0.1 + (0.9 * (1 + Math.cos(Math.PI * done))) / 2);
}

// Random stretches of T bytes one after another, and for each byte the next one.
function rowsOf(bytes, rows, T, random) {
  const [ids, targets] = [[], []];
  for (let row = 0; row < rows; row++) {
    const start = Math.floor(random() * (bytes.length - T));
    ids.push(...bytes.subarray(start, start + T));
    targets.push(...bytes.subarray(start + 1, start + T + 1));
  }
  return [ids, targets];
}

class Lesson {
  constructor(section) {
    this.form = section.querySelector("form");
    this.status = section.querySelector("output");
    this.computedBy = section.querySelector(".computed");
    ({ sizes: this.sizes, kernels: this.kernels } = embedded(section));
    this.figure = document.querySelector("#loss figure");
    this.samples = document.querySelector("#samples .samples");
    const option = ({ name }, value) => make("option", { value, textContent: name });
    this.form.size.append(...this.sizes.map(option));
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.train();
    });
    this.form.stop.addEventListener("click", () => (this.run = undefined));
  }

  async train() {
    const { form } = this;
    const run = (this.run = {});
    this.chosen = this.sizes[form.size.value];
    const T = this.chosen.config.context;
    const bytes = new TextEncoder().encode(form.text.value);
    const border = Math.floor(bytes.length * (1 - HELD_OUT));
    if (bytes.length - border <= T + 1) {
      const least = shownNumber(20 * T);
      this.status.textContent = `The text has ${bytes.length} bytes; it needs at least ${least}.`;
      return;
    }
    const controls = [form.size, form.steps, form.text, form.querySelector(".main")];
    const busy = (is) => {
      for (const control of controls) control.disabled = is;
      form.stop.hidden = !is;
    };
    busy(true);
    try {
      await this.learn(run, bytes.subarray(0, border), bytes.subarray(border));
    } catch (error) {
      const [said] = error.message.split("\n");
      this.status.textContent = this.trainer
        ? `WebGPU ended (${said}); begin again.` : `Your browser cannot train it: ${said}.`;
    } finally {
      busy(false);
    }
  }

  async learn(run, learned, heldOut) {
    this.trainer = undefined;
    const { config, rows, tensors } = this.chosen;
    const [T, steps, random] = [config.context, Number(this.form.steps.value), dice(1)];
    const device = await Device.open(this.kernels);
    this.computedBy.textContent = `Your browser trains it with WebGPU (${device.name}).`;
    this.trainer = new Trainer(device, config, tensors, freshWeights(tensors, random));
    const writer = this.trainer.writer;
    this.samples.replaceChildren();
    this.lines = [[[0], [8]], [[0], [8]]];
    const began = performance.now();
    const every = Math.ceil(steps / SHOWN);
    for (let step = 0; step < steps && this.run === run; step++) {
      const batch = rowsOf(learned, rows, T, random);
      const loss = await this.trainer.step(...batch, T, learningRateAt(step, steps));
      this.note(0, step + 1, loss);
      if ((step + 1) % every === 0 || step + 1 === steps) {
        this.note(1, step + 1, await this.measure(heldOut));
        await this.write(writer, step + 1, random);
      }
      this.draw(steps);
      const speed = ((step + 1) * rows * T * 1000) / (performance.now() - began);
      this.status.textContent =
        `step ${step + 1} of ${steps}, ${shownNumber(Math.round(speed))} bytes/s`;
      if (!Number.isFinite(loss)) throw new Error("the loss is not finite");
    }
    if (this.run !== run) this.status.textContent += ", stopped";
  }

  // The mean loss of held-out text, always of the same stretches.
  async measure(heldOut) {
    const { config: { context: T }, rows } = this.chosen;
    const random = dice(2);
    let sum = 0;
    for (let i = 0; i < MEASURED; i++) {
      sum += await this.trainer.loss(...rowsOf(heldOut, rows, T, random), T);
    }
    return sum / MEASURED;
  }

  // Continue the prompt by bytes that are drawn from the model's distribution.
  async write(writer, step, random) {
    const { context } = this.chosen.config;
    const prompt = [...new TextEncoder().encode(this.form.prompt.value || "\n")];
    const text = prompt.slice(-context / 2);
    writer.rewind(0);
    let logits;
    for (const id of text) logits = await writer.append(id);
    while (text.length < Math.min(context, prompt.length + WRITTEN)) {
      let left = random();
      const id = softmax(logits).findIndex((share) => (left -= share) <= 0);
      text.push(Math.max(0, id));
      logits = await writer.append(text.at(-1));
    }
    const written = new TextDecoder().decode(Uint8Array.from(text));
    this.samples.prepend(make("article", {}, make("h3", { textContent: `step ${step}` }),
      make("p", { className: "written", textContent: written })));
  }

  // ---- the curve

  note(line, step, loss) {
    this.lines[line][0].push(step);
    this.lines[line][1].push(loss / Math.LN2);
  }

  draw(steps) {
    const { chart } = this.figure;
    const last = this.figure.querySelectorAll(".legend b");
    this.lines.forEach(([x, y], line) => {
      Object.assign(chart.series[line], { x, y });
      last[line].textContent = y.at(-1).toFixed(2);
    });
    const isWhole = chart.wholeButton.hidden;
    chart.whole = [0, steps];
    chart.show(isWhole ? chart.whole : chart.x);
  }
}

new Lesson(document.getElementById("train"));
