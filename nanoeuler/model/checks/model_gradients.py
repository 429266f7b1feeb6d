"""Is the backward pass of a whole model the derivative of its forward pass?

Every parameter tensor is compared with complex steps, in models that are small enough to change
each parameter on its own.
"""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.records import Array, LogitRows
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.model.checks.comparison import Comparison, compare, complex_step
from nanoeuler.model.checks.op_gradients import check_ops
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.families import family_of
from nanoeuler.model.flat import FlatBuffer, apart, model_weights
from nanoeuler.model.frozen import Frozen
from nanoeuler.model.spec import trained_table
from nanoeuler.model.transformer import Batch, Transformer

TINY: dict[str, Any] = {
    "vocab_size": 11,
    "dim": 8,
    "layers": 2,
    "heads": 4,
    "kv_heads": 2,
    "ffn": 5,
    "context": 8,
    "mtp_heads": 3,
}
"""Small enough to change every parameter; ffn and vocabulary are odd, so that there is padding."""

YARN = {"type": "yarn", "factor": 4.0, "original_context": 8, "attention_factor": 1.5}

ADAPTERS = {
    "rank": 3,
    "alpha": 4.0,
    "targets": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "dropout": 0.0,
}

CASES: dict[str, tuple[dict[str, Any], int]] = {
    "grouped heads, K = 3, two documents a row": ({}, 7),
    "tied heads, head size apart from dim / heads": (
        {"tied": True, "head_size": 4, "kv_heads": 1},
        5,
    ),
    "K = 1, step size 0.5, full heads": (
        {"mtp_heads": 1, "step_size": 0.5, "kv_heads": 4, "layers": 1},
        3,
    ),
    "K = 4, unequal head weights, a row of one token": (
        {"mtp_heads": 4, "mtp_weights": [1.0, 0.5, 0.25, 0.125], "layers": 1},
        1,
    ),
    "QK-norm without weights": ({"qk_norm": "rms", "mtp_heads": 1, "head_size": 4}, 5),
    "QK-norm with weights, one key/value head": (
        {"qk_norm": "weighted", "mtp_heads": 1, "head_size": 4, "kv_heads": 1},
        5,
    ),
    "ReLU², step size 0.5, two documents a row": (
        {"activation": "relu2", "mtp_heads": 1, "step_size": 0.5},
        5,
    ),
    "YaRN, whose cosines and sines have a factor, two documents a row": (
        {"rope_scaling": YARN, "head_size": 6, "mtp_heads": 1, "layers": 1},
        5,
    ),
    "adapters of all matrices, two documents a row": (
        {"lora": ADAPTERS, "step_size": 0.5, "mtp_heads": 1, "tied": True, "qk_norm": "weighted"},
        5,
    ),
    "adapters of some matrices, whose inputs are dropped": (
        {
            "lora": ADAPTERS | {"targets": ["q_proj", "v_proj", "down_proj"], "dropout": 0.4},
            "layers": 1,
            "mtp_heads": 2,
        },
        7,
    ),
    "adapters of a GPT-2, whose inputs are dropped": (
        {
            "lora": ADAPTERS | {"targets": ["c_attn", "c_proj", "c_fc"], "dropout": 0.3},
            "family": "gpt2",
            "kv_heads": 4,
            "mtp_heads": 1,
            "layers": 1,
        },
        5,
    ),
    "adapters of some matrices whose numbers have 4 bits": (
        {
            "lora": ADAPTERS | {"targets": ["q_proj", "v_proj", "gate_proj", "down_proj"]},
            "dim": 32,
            "layers": 1,
            "mtp_heads": 1,
            "tied": True,
        },
        5,
    ),
    "biases of q, k and v, a window of three tokens in one layer": (
        {"qkv_bias": True, "windows": [0, 3], "mtp_heads": 1},
        7,
    ),
    "a layer without rotation, with a window of two tokens, QK-norm": (
        {"rope_layers": [1, 0], "windows": [0, 2], "qk_norm": "rms", "mtp_heads": 1},
        5,
    ),
    "norms behind blocks, GEGLU, a scaled and tied embedding, another base in a window": (
        {
            "post_norms": True,
            "activation": "geglu",
            "embedding_scale": 1.7,
            "tied": True,
            "windows": [3, 0],
            "window_rope_theta": 3.0,
            "qk_norm": "weighted",
            "head_size": 4,
            "mtp_heads": 1,
        },
        7,
    ),
    "soft caps of scores and logits, scores of another scale, K = 2, two documents a row": (
        {
            "attention_cap": 0.7,
            "logit_cap": 1.1,
            "query_scalar": 3.0,
            "windows": [3, 0],
            "head_size": 4,
            "mtp_heads": 2,
        },
        7,
    ),
    "dropout, two layers, two documents a row": ({"mtp_heads": 1, "step_size": 0.5}, 7),
    "dropout, norms behind blocks, GEGLU": (
        {"post_norms": True, "activation": "geglu", "mtp_heads": 1, "layers": 1},
        5,
    ),
    "dropout, ReLU²": ({"activation": "relu2", "mtp_heads": 1, "layers": 1}, 5),
    "dropout, GPT-2": ({"family": "gpt2", "kv_heads": 4, "mtp_heads": 1, "layers": 1}, 5),
    "GPT-2, two layers, K = 2, tied heads": (
        {"family": "gpt2", "kv_heads": 4, "mtp_heads": 2, "tied": True},
        7,
    ),
    "GPT-2, one layer, step size 0.5, two documents a row": (
        {"family": "gpt2", "kv_heads": 4, "mtp_heads": 1, "step_size": 0.5, "layers": 1},
        5,
    ),
    "one layer, K = 2, step size 0.5, two documents a row": (
        {"mtp_heads": 2, "step_size": 0.5, "layers": 1},
        5,
    ),
}
"""Name → the fields that differ from `TINY`, and the odd length of the rows.

The last two cases are the quick form: they are cheap, and no op of their family idles in them.
"""

DROPOUT = 0.3
"""The share that is dropped in the cases whose names begin with "dropout"."""
QUANTIZED = {"adapters of some matrices whose numbers have 4 bits": "int4"}
"""The cases whose adapters are trained on such weights."""


def check_all(quick: bool = False) -> Iterator[Comparison]:
    """All ops, and all cases of the model.

    `quick`: of the cases only the last two, one of each family, which take a second.
    """
    yield from check_ops()
    for case in list(CASES)[-2:] if quick else CASES:
        yield from check_model(case)


def check_model(case: str, backend: Backend | None = None) -> Iterator[Comparison]:
    """Every parameter tensor of the model of `CASES[case]` that is trained.

    Some targets are masked, and the heads are weighted as in training.
    """
    found = Example(case, backend or ReferenceBackend(np.float64)).gradients()
    for name, expected in derivatives(case).items():
        yield compare(case, name, found[name], expected)


@functools.cache
def derivatives(case: str) -> dict[str, np.ndarray]:
    """The loss's derivative with respect to every trained tensor, by the reference's forward pass.

    That takes nearly all the time of a check and is the same for every engine. A tensor changes
    nothing before the block that reads it, so that the pass resumes there.
    """
    example = Example(case, ReferenceBackend(np.complex128))
    values = example.parameters
    found = {}
    for tensor in trained_table(example.config):
        example.loss()  # with the parameters as they are
        loss = functools.partial(example.loss, first=example.first_reader(tensor.name))
        found[tensor.name] = complex_step(loss, values[tensor.name])
    return found


class Example:
    """The model of a case on an engine, and a batch for it."""

    def __init__(self, case: str, ops: Backend):
        fields, length = CASES[case]
        self.ops, self.config = ops, ModelConfig.from_dict(TINY | fields)
        random = np.random.default_rng(1)
        frozen, trained = apart(self.config, random_parameters(self.config, random))
        base = None
        if self.config.lora is not None:
            base = Frozen.of(self.config, frozen.astype(np.float32), ops, QUANTIZED.get(case))
        self.parameters = FlatBuffer(self.config, trained.astype(ops.dtype))
        dropout = DROPOUT if case.startswith("dropout") else 0.0
        array = self.parameters.array
        self.model = Transformer(self.config, array, ops, base=base, dropout=dropout)
        self.batch, targets_BTK = random_rows(self.config, length, random)
        if dropout or (self.config.lora is not None and self.config.lora.dropout):
            self.batch.seeds = random.integers(0, 2**31, self.batch.ids.shape).astype(np.int32)
        tokens, self.targets_R = self.batch.ids.size, targets_BTK.reshape(-1)
        weights_K = np.asarray(self.config.mtp_weights) / sum(self.config.mtp_weights) / tokens
        self.weights_R = np.tile(weights_K, tokens)
        self.logprobs_R = np.empty(len(self.targets_R), ops.dtype)
        self.lse_R = np.empty(len(self.targets_R), ops.dtype)

    def first_reader(self, name: str) -> int | None:
        """The first block that reads the tensor `name`.

        None for embeddings, which are read before all blocks. The number of blocks for what is read
        behind them.
        """
        family = family_of(self.config)
        if name in (family.embedding, family.positions):
            return None
        blocks = self.model.blocks
        readers = (i for i, block in enumerate(blocks) if name in {t.name for t in block.tensors()})
        return next(readers, len(blocks))

    def loss(self, first: int | None = None) -> Any:
        """The loss; from block `first` on, if nothing before it has changed since the last call."""
        model = self.model
        buffers = model.buffers(*self.batch.ids.shape, training=True)
        if first is None:
            model.forward(self.batch, training=True)
        else:
            rows = model.rows(self.batch, buffers)
            model.run_blocks(rows, buffers, model.training_weights, first=first)
        logits = self.model.heads.logits(self.model.weights.heads, buffers)
        self.ops.cross_entropy(self.logit_rows(logits))
        return -(self.logprobs_R * self.weights_R).sum()

    def logit_rows(self, logits: Array) -> LogitRows:
        return LogitRows(logits, self.targets_R, self.logprobs_R, self.lse_R, self.weights_R)

    def gradients(self) -> FlatBuffer:
        """The loss's gradient by the backward pass."""
        self.loss()
        buffers = self.model.buffers(*self.batch.ids.shape, training=True)
        self.ops.cross_entropy_backward(self.logit_rows(self.model.heads.logit_rows(buffers)))
        size = FlatBuffer.trained_elements(self.config)
        gradients = np.zeros(size, self.parameters.array.dtype)
        self.model.backward(self.batch, buffers, model_weights(self.config, gradients))
        return FlatBuffer(self.config, gradients)


def random_parameters(config: ModelConfig, random: np.random.Generator) -> np.ndarray:
    """A flat float64 buffer: normal with spread 0.4, norms around 1, padding 0.

    The spread is wider than at the start of training, so that no nonlinearity is close to its
    linear part.
    """
    parameters = np.zeros(FlatBuffer.elements(config))
    buffer = FlatBuffer(config, parameters)
    for tensor in buffer.table:
        center = 1.0 if tensor.initial_std is None else 0.0
        buffer[tensor.name][...] = random.standard_normal(tensor.shape) * 0.4 + center
    return parameters


def random_rows(
    config: ModelConfig, length: int, random: np.random.Generator
) -> tuple[Batch, np.ndarray]:
    """A batch of two rows, and its targets (2, length, K) with two of them masked.

    The second row holds two documents, where it is long enough.
    """
    ids = random.integers(0, config.vocab_size, (2, length)).astype(np.int32)
    positions = np.tile(np.arange(length, dtype=np.int32), (2, 1))
    starts = np.zeros((2, length), np.int32)
    if length > 3:
        cut = length // 2 + 1
        starts[1, cut:] = cut
        positions[1, cut:] = np.arange(length - cut)
    shape = 2, length, config.mtp_heads
    targets = random.integers(0, config.vocab_size, shape).astype(np.int32)
    targets[0, -1, -1] = -1
    targets[1, 0, 0] = -1
    return Batch(ids, positions, starts), targets
