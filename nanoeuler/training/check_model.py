"""Does an engine train the model that the specification trains?

Gradients of whole presets, and the logits of reading and decoding, beside the reference in float64.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import Array, LogitRows
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.model.checks.comparison import Comparison, compare
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.decoding.appending import extend
from nanoeuler.model.flat import FlatBuffer, initial_parameters, model_weights
from nanoeuler.model.transformer import Batch, Transformer
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.state import TrainingState
from nanoeuler.training.streams import StepRows, TextStream

PRESET_TOLERANCE = {
    "fp32": {"small": 1e-6, "base": 3e-6},
    "tf32": {"small": 2e-2, "base": 2e-2},
    "bf16": {"small": 1e-1, "base": 1e-1},
}
"""Limits for fresh models, per parameter tensor.

fp32 is near what PyTorch's float32 reaches (4.6e-7 on `small`, 1.7e-6 on `base`). In tf32 and bf16
the roundings of all layers add up in each activation, and a gradient is a sum in which large terms
cancel. Early in training the gradients of queries and keys are next to nothing beside their terms:
NumPy's float32 then errs by 4.6e-5 on `small` (after 30 updates on this text)."""


def source_rows(config: ModelConfig, rows: int, length: int, seed: int) -> TextStream:
    """Rows of this package's own source text, one token a byte: real text that is always there."""
    paths = sorted(Path(__file__).parents[1].rglob("*.py"))
    text = b"".join(path.read_bytes() for path in paths)
    tokens = np.frombuffer(text, np.uint8).astype(np.int32) + 1
    return TextStream(tokens, length, rows * length, config.mtp_weights, 0, False, seed, "source")


def check_device_model(
    engine: Backend, preset: str, rows: int, length: int
) -> Iterator[Comparison]:
    """Log-probabilities, and the gradient of every parameter tensor, of a preset on real text."""
    config = ModelConfig.from_dict({"preset": preset})
    state = TrainingState(config, engine, initial_parameters(config, 1), AdamW())
    batch_rows = source_rows(config, rows, length, seed=6).rows(0)
    state.stage(batch_rows)
    engine.runtime.program(lambda: state.compute_gradients(rows)).run()
    assert state.inputs is not None, "stage made them"
    logprobs = in_float64(engine, state.inputs.logprobs)
    found = FlatBuffer(config, in_float64(engine, state.gradients))

    parameters = in_float64(engine, state.parameters)
    expected_logprobs, gradients = reference_gradients(config, parameters, batch_rows)
    expected = FlatBuffer(config, gradients)
    case = f"{preset}, {rows} × {length}"
    yield compare(case, "log-probabilities", logprobs, expected_logprobs)
    for tensor in expected.table:
        yield compare(case, tensor.name, found[tensor.name], expected[tensor.name])


def reference_gradients(
    config: ModelConfig, parameters: np.ndarray, rows: StepRows
) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities of all targets, and the flat gradient, by the reference in float64."""
    reference = ReferenceBackend(np.float64)
    model = Transformer(config, parameters, reference)
    batch = Batch(rows.ids, rows.positions, rows.starts)
    buffers = model.forward(batch, training=True)
    logits = model.heads.logits(model.weights.heads, buffers)
    targets, weights = rows.targets.reshape(-1), rows.weights.reshape(-1)
    logprobs, lse = np.empty(len(targets)), np.empty(len(targets))
    reference.cross_entropy_with_gradient(LogitRows(logits, targets, logprobs, lse, weights))
    gradients = np.zeros_like(parameters)
    model.backward(batch, buffers, model_weights(config, gradients))
    return logprobs, gradients


def check_reading(engine: Backend, preset: str, length: int) -> Iterator[Comparison]:
    """The logits behind a prompt that is read at once, and behind each token decoded after it.

    `length` is the prompt's, in tokens. The reference reads everything at once.
    """
    config = ModelConfig.from_dict({"preset": preset})
    parameters = initial_parameters(config, 1)
    total = length + 3
    random = np.random.default_rng(7)
    tokens = random.integers(0, config.vocab_size, (1, total)).astype(np.int32)
    reference = Transformer(config, parameters.astype(np.float64), ReferenceBackend(np.float64))
    expected = extend(reference, reference.new_cache(1, total), tokens, every=True)[0]
    model = Transformer(config, engine.from_host(parameters), engine)
    cache = model.new_cache(1, total)
    case = f"{preset}, reading and decoding"
    logits = in_float64(engine, extend(model, cache, tokens[:, :length]))[0]
    yield compare(case, f"logits behind {length} tokens", logits, expected[length - 1])
    for position in range(length, total):
        logits = in_float64(engine, extend(model, cache, tokens[:, position : position + 1]))[0]
        yield compare(case, f"logits behind token {position + 1}", logits, expected[position])


def in_float64(engine: Backend, array: Array) -> np.ndarray:
    """An array of the engine on the host."""
    return np.asarray(engine.to_host(array), np.float64)
