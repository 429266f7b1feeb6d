"""The page that trains, in a real headless Chromium."""

import re

import numpy as np
import pytest

from nanoeuler.backend.cpu.engine import CpuBackend
from nanoeuler.lessons.training_page import training_page
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import FlatBuffer, initial_parameters
from nanoeuler.model.spec import parameter_count
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.state import TrainingState
from nanoeuler.training.streams import StepRows
from tests.chromium import browser, browsers, gpu_browser, open_page, sync_api

__all__ = ["browser", "browsers", "gpu_browser", "open_page"]

expect = sync_api.expect
TEXT = "The ferry came to the quay on a day of the long winter, and nobody was on it.\n" * 20
B, T, STEPS, RATE = 2, 16, 20, 3e-3
CONFIG = ModelConfig(
    *(256, 32, 1, 2, 1, 85, T),
    mtp_heads=1,
    tied=True,
    step_size=0.5,
    qk_norm="weighted",
    windows=(9,),
)
"""Some 20 thousand parameters, and every op that the page knows the gradient of."""


@pytest.fixture
def address(tmp_path):
    path = tmp_path / "lesson.html"
    path.write_text(training_page([(CONFIG, B)]), encoding="utf-8")
    return f"file://{path}"


def trained_on_the_cpu():
    """Weights to begin with, rows, and the losses of the CPU engine."""
    weights, text = initial_parameters(CONFIG, 1), np.frombuffer(TEXT.encode(), np.uint8)
    views = FlatBuffer(CONFIG, weights)
    values = {tensor.name: views[tensor.name].reshape(-1).tolist() for tensor in views.table}
    adamw = AdamW(beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1, clip_norm=1.0)
    state = TrainingState(CONFIG, CpuBackend(), weights.copy(), adamw)
    positions = np.tile(np.arange(T, dtype=np.int32), (B, 1))
    shares = np.full((B, T, 1), 1 / (B * T), np.float32)
    steps, losses, random = [], [], np.random.default_rng(3)
    for _ in range(STEPS):
        starts = random.integers(0, len(text) - T, (B, 1))
        ids, targets = (text[starts + first + np.arange(T)].astype(np.int32) for first in (0, 1))
        rows = StepRows(ids, positions, np.zeros_like(ids), targets[..., None], shares)
        losses.append(state.train_step(rows, B, RATE).first_head_loss)
        steps.append([ids.reshape(-1).tolist(), targets.reshape(-1).tolist(), T, RATE])
    return values, steps, losses


def test_it_trains_as_the_cpu_engine_does_and_shows_it(open_page, gpu_browser, address):
    """1e-4: in float32 the losses part by some 1e-6, a wrong gradient by 1e-2."""
    page = open_page(gpu_browser, address)
    values, steps, losses = trained_on_the_cpu()
    assert 19_000 < parameter_count(CONFIG) < 21_000
    found = page.evaluate(
        """async ([values, steps]) => {
            const { sizes: [{ config, tensors }], kernels } =
                embedded(document.getElementById("train"));
            globalThis.opened = await Device.open(kernels);
            const [trainer, losses] = [new Trainer(opened, config, tensors, values), []];
            for (const step of steps) losses.push(await trainer.step(...step));
            return losses;
        }""",
        [values, steps],
    )
    assert losses[0] - losses[-1] > 1
    assert np.abs(np.array(found) - losses).max() < 1e-4

    page.evaluate("Device.open = async () => opened")  # whose kernels are compiled
    status = page.locator("#train output")
    page.fill("[name=text]", "too short")
    page.click("#train .main")
    expect(status).to_have_text("The text has 9 bytes; it needs at least 320.")
    page.fill("[name=text]", TEXT)
    page.fill("[name=steps]", "2")
    page.click("#train .main")
    expect(status).to_contain_text("step 2 of 2")
    expect(page.locator("#train .main")).to_be_enabled()
    expect(page.locator("#samples article")).to_have_count(2)
    expect(page.locator("#samples h3").first).to_have_text("step 2")
    training, held_out = map(float, page.locator("#loss .legend b").all_text_contents())
    assert 7 < held_out < 8
    assert 7 < training < 8.2
    page.fill("[name=steps]", "1000")
    page.click("#train .main")
    expect(status).to_have_text(re.compile(r"step \d+ of 1000, .*/s"))
    page.click("#train [name=stop]")
    expect(status).to_contain_text("stopped")
    page.click("#train .main")
    expect(status).to_have_text(re.compile(r"step \d+ of 1000, .*/s"))
    page.evaluate("opened.opened.destroy()")
    expect(status).to_contain_text("WebGPU ended (")
    expect(page.locator("#train .main")).to_be_enabled()


def test_a_browser_without_webgpu_says_so(open_page, browser, address):
    page = open_page(browser, address)
    page.click("#train .main")
    expect(page.locator("#train output")).to_have_text(
        "Your browser cannot train it: it offers no WebGPU here."
    )
