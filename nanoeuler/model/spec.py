"""The table of a model's tensors, and the operations that a token costs.

Everything that needs to know a tensor's name, shape or offset (buffers, model files, optimizer,
gradient checks, memory estimates, the parameter count) reads `tensor_table`. Nothing writes an
offset or a shape a second time.
"""

import functools
from dataclasses import replace

from nanoeuler.model.config import ModelConfig, round_up
from nanoeuler.model.families import family_of, make_blocks
from nanoeuler.model.tensors import (
    ALIGNMENT,
    Tensor,
    TensorSpec,
    lay_out,
    norm_tensors,
    packed_rows,
)


def head_name(index: int) -> str:
    """Name of prediction head `index` when it is a tensor of its own."""
    return "lm_head.weight" if index == 0 else f"mtp_heads.{index}.weight"


def head_names(config: ModelConfig) -> list[str]:
    """Names of all prediction heads; a tied embedding is the first."""
    first = family_of(config).embedding if config.tied else head_name(0)
    return [first, *map(head_name, range(1, config.mtp_heads))]


def head_rows(config: ModelConfig) -> int:
    """Rows of one head's weight, padding included."""
    return packed_rows(config.vocab_storage, config.dim)


def head_columns(config: ModelConfig) -> int:
    """Columns of the logits of all heads, padding included."""
    return config.mtp_heads * head_rows(config)


@functools.lru_cache
def tensor_table(config: ModelConfig) -> tuple[Tensor, ...]:
    """Every parameter in the order of the flat buffers: embeddings, layers, final norm, heads.

    A tied embedding is the first head. Parts of a packed product (q, k, v; gate, up; the heads)
    are neighbours, so that the product's weight is one view.
    """
    c = config
    shape, storage = (c.vocab_size, c.dim), (c.vocab_storage, c.dim)
    specs: list[TensorSpec] = []
    family = family_of(config)
    if not c.tied:
        specs.append(TensorSpec(family.embedding, shape, storage_shape=storage))
    if family.positions:
        specs.append(TensorSpec(family.positions, (c.context, c.dim)))
    for block in make_blocks(config):
        specs += block.tensors()
    specs += norm_tensors(c, *family.final_norm)
    heads = (TensorSpec(n, shape, storage_shape=storage, packed=True) for n in head_names(c))
    specs += heads
    return lay_out(specs)


@functools.lru_cache
def trained_table(config: ModelConfig) -> tuple[Tensor, ...]:
    """The tensors that are trained, as they lie in flat buffers of these alone: gradients, moments
    and checkpoints."""
    start = trained_part(config).start
    return tuple(
        replace(tensor, offset=tensor.offset - start)
        for tensor in tensor_table(config)
        if tensor.trained
    )


def trained_part(config: ModelConfig) -> slice:
    """Where they lie in the flat buffer of all parameters."""
    table = tensor_table(config)
    return slice(next(each.offset for each in table if each.trained), storage_elements(table))


def block_matrices(config: ModelConfig) -> list[Tensor]:
    """The rows of `trained_table` that are matrices of blocks."""
    specs = (spec for block in make_blocks(config) for spec in block.tensors())
    names = {spec.name for spec in specs if len(spec.shape) > 1}
    return [tensor for tensor in trained_table(config) if tensor.name in names]


def storage_elements(table: tuple[Tensor, ...]) -> int:
    """Length of a flat buffer for `table`, in elements."""
    return round_up(table[-1].stop, ALIGNMENT)


def parameter_count(config: ModelConfig) -> int:
    """Number of parameters, frozen ones included, padding not counted."""
    return sum(tensor.size for tensor in tensor_table(config))


def parameters_by_kind(config: ModelConfig) -> dict[str, int]:
    """Number of parameters of each kind; a tied embedding counts as embedding."""
    marks = {
        "embedding": ("embed_tokens", ".wte.", ".wpe."),
        "attention": ("self_attn", ".attn."),
        "mlp": (".mlp.",),
        "norms": ("norm", ".ln_"),
        "heads": ("lm_head", "mtp_heads"),
    }
    counts = dict.fromkeys(marks, 0)
    for tensor in tensor_table(config):
        kinds = (kind for kind, parts in marks.items() if any(x in tensor.name for x in parts))
        counts[next(kinds)] += tensor.size
    return counts


def forward_flops(config: ModelConfig, tokens: float, seen: float, predicted: float) -> float:
    """Floating-point operations of a forward pass; a multiply-add counts as two.

    Counted are the matrix products of `tokens` tokens, all K heads for `predicted` of them, and
    causal attention, where `seen` is the sum over tokens of the keys that each sees. Elementwise
    ops are not counted.
    """
    per_token, per_key = block_flops(config)
    heads = 2 * config.mtp_heads * config.vocab_size * config.dim
    return tokens * per_token + predicted * heads + seen * per_key


@functools.lru_cache
def block_flops(config: ModelConfig) -> tuple[int, int]:
    """Operations of all blocks: see `Block.flops`."""
    blocks = [block.flops() for block in make_blocks(config)]
    return sum(token for token, _ in blocks), sum(key for _, key in blocks)


def training_flops(config: ModelConfig, tokens: float, seen: float, predicted: float) -> float:
    """Operations of a forward and a backward pass, which costs twice as much (Kaplan et al. 2020),
    but for the gradients of frozen matrices.

    Recomputation is not counted, as usual for MFU.
    """
    frozen = 0.0
    if config.lora is not None:
        base = replace(config, lora=None)
        matrices = sum(tensor.size for tensor in block_matrices(base))
        heads = config.mtp_heads * config.vocab_size * config.dim
        frozen = 2 * (tokens * matrices + predicted * heads)
    return 3 * forward_flops(config, tokens, seen, predicted) - frozen


def forward_flops_per_token(config: ModelConfig, length: int) -> float:
    """`forward_flops` in rows of `length` tokens that are one document each.

    Every token predicts, and sees (length + 1) / 2 keys on average.
    """
    return forward_flops(config, 1, (length + 1) / 2, 1)


def training_flops_per_token(config: ModelConfig, length: int) -> float:
    """`training_flops` in the same rows."""
    return training_flops(config, 1, (length + 1) / 2, 1)
