"""Does an engine train what the specification trains, in the form that is about to train?

A small model of the same form (heads, sizes, variants) is computed by the engine and by the
reference in float64: losses and the gradient of every tensor, the logits behind decoded tokens, the
losses of the real vocabulary, preferences, and updates. The error of a tensor is ‖a − b‖₂ / ‖b‖₂.
Numbers that a model has by default, and that would show in nothing, are others here.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import LogitRows
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.model.appending import extend
from nanoeuler.model.checks.comparison import NORM_EPSILON, Comparison, Random, compare, in_float64
from nanoeuler.model.checks.engine_ops import OP_TOLERANCE, check_cross_entropy, check_preference
from nanoeuler.model.config import ModelConfig, round_up
from nanoeuler.model.families import family_of
from nanoeuler.model.flat import FlatBuffer, apart, initial_parameters, model_weights
from nanoeuler.model.frozen import Frozen
from nanoeuler.model.in_use import model_in_use
from nanoeuler.model.spec import head_names, parameter_count
from nanoeuler.model.transformer import Batch, Transformer
from nanoeuler.training.check_updates import check_updates
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.optimizer.optimizer import OptimizerSettings
from nanoeuler.training.state import TrainingState
from nanoeuler.training.streams import StepRows, TextStream

LAYERS, VOCABULARY, LENGTH = 2, 2048, 133
"""Limits of the small model. The length is odd, and more than a tile of attention."""
DECODED = (0, 7), (7, 1), (331, 3), (690, 1)
"""Keys in front of decoded tokens, and the number of these."""
ROW_ELEMENTS = 1 << 21
"""Elements of the inner layer in a row of the small model, at most: very wide models take fewer
tokens, as the reference needs a hundred bytes for each."""

MODEL_TOLERANCE = {
    "fp64": 1e-11,
    "fp32": 2e-4,
    "tf32": 2e-2,
    "fp16": 1e-2,
    "bf16": 1e-1,
    "fp8": 1.8e-1,
}
"""Some tens of roundings, each 2⁻²⁴ of its result in fp32, 2⁻¹¹ in tf32 and fp16, 2⁻⁹ in bf16, and
2⁻⁴ of factors in fp8, add up on the way through two layers, most in the gradients of keys, where
large terms cancel. Seen at most in presets and their variants: 1.9e-6, 2.6e-3, 2.0e-3, 2.2e-2 and
1.3e-1, and in fp32 2.5e-5 in models of two dimensions. A wrong term shows at 2e-1."""

LEAST_NORM, LEAST_NORM_IN_FP8 = 1e-3, 3e-3
"""Smallest norm of a gradient that counts, as a share of the largest tensor's. In rows of one token
the gradients of queries and keys are exactly 0, and an engine leaves a rounding. So it does where
no position turns a bias of keys: softmax does not see what all scores have in common, and of terms
that cancel fp8 leaves most."""

ADAMW = AdamW()


def small_form(config: ModelConfig) -> ModelConfig:
    """A model of the form of `config` that takes seconds to check: fewer layers and tokens, but
    layers of every kind, and windows that end within the rows."""
    context = min(config.context, LENGTH, max(2, ROW_ELEMENTS // config.ffn))
    kinds = list(dict.fromkeys(config.layer_kind(layer) for layer in range(config.layers)))
    return replace(
        config,
        layers=min(config.layers, max(LAYERS, len(kinds))),
        vocab_size=min(config.vocab_size, VOCABULARY + config.vocab_size % 8),
        context=context,
        norm_epsilon=NORM_EPSILON,
        windows=tuple(min(window, 1 + context // 3) for window, _ in kinds),
        rope_layers=tuple(int(rotates) for _, rotates in kinds),
        attention_cap=config.attention_cap and 1.5,  # which bends what is computed here
        logit_cap=config.logit_cap and 1.5,
        query_scalar=config.query_scalar and config.head_size / 4,
    )


def check_form(
    engine: Backend,
    config: ModelConfig,
    optimizer: OptimizerSettings = ADAMW,
    *,
    recompute: bool = False,
    scheme: str | None = None,
) -> Iterator[Comparison]:
    """Everything that training on `engine` computes, for a small model of the form of `config`.

    `scheme`: adapters are trained on int8 or int4.
    """
    ops = engine.as_for(parameter_count(config))
    yield from check_small_model(ops, small_form(config), recompute=recompute, scheme=scheme)
    limit = OP_TOLERANCE[engine.precision]
    random = Random(3)
    for row in check_cross_entropy(ops, random, 9, config.vocab_size):
        yield replace(row, limit=limit)
    for row in check_preference(ops, random):
        yield replace(row, limit=limit)
    yield from check_updates(ops, optimizer, config.family)


def check_small_model(
    ops: Backend, config: ModelConfig, *, recompute: bool, scheme: str | None = None
) -> Iterator[Comparison]:
    """Losses and gradients of some rows, and the logits behind decoded tokens."""
    limit = MODEL_TOLERANCE[ops.precision]
    parameters = spread_parameters(config, np.random.default_rng(1))
    frozen, trained = apart(config, parameters)
    base = None
    if config.lora is not None:
        base = Frozen.of(config, frozen, ops, scheme)
        frozen = base.in_floats()
    state = TrainingState(config, ops, trained, ADAMW, base=base, recompute=recompute)
    micro_batch_rows = round_up(-(-ops.check_tokens // config.context), ops.check_multiple)
    rows = form_rows(config, len(state.models) * micro_batch_rows + 1)
    state.stage(rows)
    program = ops.runtime.program(
        lambda: state.compute_gradients(micro_batch_rows), training=True, untimed=True
    )
    for _ in range(3 if ops.precision == "fp8" else 2):  # whose first step is one in bf16
        program.run()  # an engine may record the second run, and replays it
    gradients = FlatBuffer(config, in_float64(ops, state.gradients) / ops.loss_scale)
    host = np.concatenate([frozen, in_float64(ops, state.parameters)])
    logprobs, found = reference_gradients(config, host, rows)
    expected = FlatBuffer(config, found)
    case = f"gradients, dim {config.dim}, {config.heads} / {config.kv_heads} heads"
    nats = -logprobs.reshape(rows.weights.shape) * rows.weights
    losses = np.array([nats.sum(), nats[..., 0].sum()])
    found_losses = in_float64(ops, state.results)[: len(losses)]
    yield compare(case, "losses of all heads and the first", found_losses, losses, limit)
    least = LEAST_NORM_IN_FP8 if ops.precision == "fp8" else LEAST_NORM
    norms = [float(np.linalg.norm(expected[tensor.name])) for tensor in expected.table]
    for tensor in expected.table:
        arrays = gradients[tensor.name], expected[tensor.name]
        yield compare(case, tensor.name, *arrays, limit, least * max(norms))
    reference = Transformer(config, host, ReferenceBackend(np.float64))
    yield from check_decoding(state.model, reference, rows.ids[:1], limit)


def check_decoding(
    model: Transformer, reference: Transformer, ids: np.ndarray, limit: float
) -> Iterator[Comparison]:
    """The logits behind a prompt, behind a token after it, and behind long texts.

    What such a text has left in the caches is random.
    """
    ops, exact, random = model.backend, reference.backend, np.random.default_rng(5)
    capacity = sum(DECODED[-1])
    cache, expected = (each.new_cache(1, capacity) for each in (model, reference))
    for kept, count in DECODED:
        if kept > (held := int(cache.lengths[0])):
            bits, same = (each.memory.all_bits[:, :1, held:kept] for each in (cache, expected))
            values = ops.from_host(random.standard_normal(bits.shape), ops.activation)
            bits[...] = values.view(bits.dtype)
            same[...] = exact.from_host(in_float64(ops, values)).view(same.dtype)
            cache.lengths[0] = expected.lengths[0] = kept
        tokens = np.resize(ids, (1, count))
        read = in_float64(ops, extend(model, cache, tokens))[0]
        name = f"logits behind token {kept + count}"
        yield compare("decoding", name, read, extend(reference, expected, tokens)[0], limit)


def spread_parameters(config: ModelConfig, random: np.random.Generator) -> np.ndarray:
    """A flat float32 buffer of weights as wide as a trained model's; padding 0.

    With fresh weights, gates and scores are close to 0, where mistakes in curved functions hide.
    Biases are around 0: large ones would make the tokens alike, and hide which is which. Embeddings
    have mean squares of 1. Where one is a head, too, all heads are as wide, and the last norm makes
    up for it.
    """
    family = family_of(config)
    wide = {family.embedding, family.positions, *(head_names(config) if config.tied else ())}
    parameters = np.zeros(FlatBuffer.elements(config), np.float32)
    buffer = FlatBuffer(config, parameters)
    for tensor in buffer.table:
        values = random.standard_normal(tensor.shape)
        if len(tensor.shape) == 1:
            values = (tensor.initial_std is None) + values / 5
        elif tensor.name not in wide:
            values /= math.sqrt(tensor.shape[1])
        if config.tied and tensor.name in family.final_norm:
            values /= math.sqrt(config.dim)
        buffer[tensor.name][...] = values
    return parameters


def form_rows(config: ModelConfig, rows: int) -> StepRows:
    """Rows of one document and of several; in the last one most tokens have no target, as in
    fine-tuning. Weights differ."""
    random = np.random.default_rng(2)
    T = config.context
    tokens = random.integers(0, config.vocab_size, rows * T).astype(np.int32)
    tokens[:: T + T // 3] = 0  # where documents end
    tokens[len(tokens) // 2 :: T // 3 + 2] = 0
    weights = config.mtp_weights
    step = TextStream(tokens, T, rows * T, weights, 0, True, 1, "check").rows(0)
    step.targets[-1, : T * 2 // 3] = -1
    step.weights[step.targets < 0] = 0
    step.weights *= random.uniform(0.5, 1.5, step.weights.shape)
    return step


# ---- whole presets, beside the reference in float64


PRESET_TOLERANCE = {
    "fp32": {"small": 1e-6, "base": 3e-6},
    "tf32": {"small": 2e-2, "base": 2e-2},
    "fp16": {"small": 1e-2, "base": 1e-2},
    "bf16": {"small": 1e-1, "base": 1e-1},
}
"""Limits for fresh models, per parameter tensor.

fp32 is near what PyTorch's float32 reaches (4.6e-7 on `small`, 1.7e-6 on `base`). In the others
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
    found = FlatBuffer(config, in_float64(engine, state.gradients) / engine.loss_scale)

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
    gradients = np.zeros(FlatBuffer.trained_elements(config))
    model.backward(batch, buffers, model_weights(config, gradients))
    return logprobs, gradients


READING_IN_FLOAT16 = 2e-3
"""Limit for logits of weights in float16: each is rounded by 2⁻¹² of itself on average, and the
roundings of all layers add up. Seen on `small`: 4.3e-4, and 6.0e-4 where activations and cache are
in it, too. A wrong term shows at 2e-1."""


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
    model = model_in_use(config, parameters, engine)
    cache = model.new_cache(1, total)
    case = f"{preset}, reading and decoding"
    logits = in_float64(engine, extend(model, cache, tokens[:, :length]))[0]
    yield compare(case, f"logits behind {length} tokens", logits, expected[length - 1])
    for position in range(length, total):
        logits = in_float64(engine, extend(model, cache, tokens[:, position : position + 1]))[0]
        yield compare(case, f"logits behind token {position + 1}", logits, expected[position])
