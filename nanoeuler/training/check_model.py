"""Does an engine train the model that the specification trains? Gradients of whole presets beside the reference in float64."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

import nanoeuler
from nanoeuler.backend.ops import Backend
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.model.check import Comparison, compare
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import FlatBuffer, model_weights
from nanoeuler.model.transformer import Batch, Transformer, initial_parameters
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.state import TrainingState
from nanoeuler.training.streams import TextStream

MODEL_TOLERANCE = {
    "fp32": {"small": 1e-6, "base": 3e-6},
    "tf32": {"small": 2e-2, "base": 2e-2},
    "bf16": {"small": 1e-1, "base": 1e-1},
}
"""Fresh models, per parameter tensor: fp32 near what PyTorch's float32 reaches (4.6e-7 on `small`, 1.7e-6 on `base`). In tf32 and bf16 the
roundings of all layers add up in each activation, and a gradient is a sum in which large terms cancel. Early in training the gradients of
queries and keys are next to nothing beside their terms: NumPy's float32 then errs by 4.6e-5 on `small` (after 30 updates on this text)."""


def source_rows(config: ModelConfig, rows: int, length: int, seed: int) -> TextStream:
    """Rows of this package's own source text, a token a byte: real text that is always at hand."""
    text = b"".join(
        path.read_bytes() for path in sorted(Path(nanoeuler.__file__).parent.rglob("*.py"))
    )
    tokens = np.frombuffer(text, np.uint8).astype(np.int32) + 1
    return TextStream(tokens, length, rows * length, config.mtp_weights, 0, False, seed, "source")


def check_device_model(
    engine: Backend, preset: str, rows: int, length: int, steps: int
) -> Iterator[Comparison]:
    """Every parameter tensor's gradient of a preset after `steps` updates on real text, and its log-probabilities, beside float64."""
    config = ModelConfig.from_dict({"preset": preset})
    state = TrainingState(
        config, engine, initial_parameters(config, 1), AdamW(0.9, 0.95, 1e-8, 0.1, 1.0)
    )
    stream = source_rows(config, 8 * rows, length, seed=5)
    for step in range(steps):
        state.train_step(stream.step(step), 8 * rows, 5e-4 * min(1, (step + 1) / 50))
    batch_rows = source_rows(config, rows, length, seed=6).step(0)
    state.stage(batch_rows)
    engine.program(lambda: state.compute_gradients(rows)).run()
    found = FlatBuffer(config, np.asarray(engine.to_host(state.gradients), np.float64))

    reference = ReferenceBackend(np.float64)
    parameters = np.asarray(engine.to_host(state.parameters), np.float64)
    model = Transformer(config, parameters, reference)
    batch = Batch(batch_rows.ids, batch_rows.positions, batch_rows.starts)
    buffers = model.forward(batch, training=True)
    targets, weights = batch_rows.targets.reshape(-1), batch_rows.weights.reshape(-1)
    logprobs, lse = np.empty(len(targets)), np.empty(len(targets))
    reference.cross_entropy_with_gradient(
        model.heads.logits(model.weights.heads, buffers), targets, weights, logprobs, lse
    )
    gradients = np.zeros_like(parameters)
    model.backward(batch, buffers, model_weights(config, gradients))
    expected = FlatBuffer(config, gradients)
    case = f"{preset}, {rows} × {length}, after {steps} steps"
    yield compare(
        case,
        "log-probabilities",
        np.asarray(engine.to_host(state.inputs.logprobs), np.float64),
        logprobs,
    )
    for tensor in expected.table:
        yield compare(case, tensor.name, found[tensor.name], expected[tensor.name])


def check_reading(engine: Backend, preset: str, length: int) -> Iterator[Comparison]:
    """The logits behind a prompt of `length` tokens read at once, and behind further ones read one at a time, beside float64 reading all at once."""
    config = ModelConfig.from_dict({"preset": preset})
    parameters, new = initial_parameters(config, 1), 3
    tokens = (
        np.random.default_rng(7).integers(0, config.vocab_size, (1, length + new)).astype(np.int32)
    )
    reference = Transformer(config, parameters.astype(np.float64), ReferenceBackend(np.float64))
    expected = reference.extend(reference.new_cache(1, length + new), tokens, every=True)[0]
    model = Transformer(config, engine.from_host(parameters), engine)
    cache = model.new_cache(1, length + new)
    case = f"{preset}, reading and decoding"
    yield compare(
        case,
        f"logits behind {length} tokens",
        np.asarray(engine.to_host(model.extend(cache, tokens[:, :length])), np.float64)[0],
        expected[length - 1],
    )
    for place in range(length, length + new):
        logits = engine.to_host(model.extend(cache, tokens[:, place : place + 1]))
        yield compare(
            case,
            f"logits behind token {place + 1}",
            np.asarray(logits, np.float64)[0],
            expected[place],
        )
