"""Layers for the tokens of prompts: the launches of prompt_layer.cu, on Hopper in bfloat16."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from nanoeuler.backend.cuda.attention import Attention, prompt_tiles, view
from nanoeuler.backend.cuda.decoding_sizes import PROMPT_BOX, DecodingSizes, prompt_products
from nanoeuler.backend.cuda.fused_linear import tensor_map, tensor_maps
from nanoeuler.backend.cuda.kernel_sources import KernelSources
from nanoeuler.backend.cuda.kernels import WARP, Argument, ByValue, Kernels, PreparedLaunch, blocks
from nanoeuler.backend.cuda.scratch import Scratch
from nanoeuler.backend.records import Array, AttentionArrays, DecodeStep

SCALING_WARPS = 8
MOST_TOKENS = 2048
"""Most prompt tokens (of all sequences) for these kernels; beyond, cuBLASLt is as fast."""


class Prompts:
    """Reads prompts, through all layers at once."""

    def __init__(self, kernels: Kernels, sources: KernelSources, scratch: Scratch):
        self.kernels, self.sources, self.scratch = kernels, sources, scratch
        self.attentions: dict[tuple[int, int, int], Attention] = {}

    def attention(self, sizes: DecodingSizes) -> Attention:
        heads = sizes.heads, sizes.kv_heads, sizes.head_size
        if heads not in self.attentions:
            tiles = prompt_tiles(sizes.head_size)
            self.attentions[heads] = Attention(self.kernels, *heads, "bf16", tiles=tiles)
        return self.attentions[heads]

    def arrays(self, s: DecodingSizes, activation: np.dtype) -> list[Array]:
        """Between the kernels, for `MOST_TOKENS`: at the same place whatever the prompt."""
        N, heads = MOST_TOKENS, (s.heads, s.head_size)
        return self.scratch.take(
            "prompts",
            ((N, s.dim), activation),
            ((N, s.dim // PROMPT_BOX), np.float32),
            ((N, *heads), activation),
            ((N, s.width), activation),
            ((N, s.ffn), activation),
            ((N, s.heads), np.float32),
        )

    def read(self, step: DecodeStep, s: DecodingSizes) -> Array | None:
        """x ← the output of all layers, each of sizes `s`; keys and values go to their slots.

        With `last_BD` the last layer is left at its queries, of the last tokens alone, (B, H, E):
        they are returned, and its inputs for those tokens are in `last_BD`.
        """
        x, starts_BT, lengths_B = step.x_ND, step.starts_BT, step.lengths_B
        attentions, mlps = step.weights[::2], step.weights[1::2]
        a, m, caches = attentions[0], mlps[0], [slots for slots in step.slots if slots is not None]
        keys, values = caches[0]
        (B, T), N, activation, chunks = starts_BT.shape, len(x), keys.dtype, s.dim // PROMPT_BOX
        if step.prepared is None:
            step.prepared = self.arrays(s, activation), {}
        (scaled, squares, query, attended, hidden, lse), kept = step.prepared
        queries, attended_BTHE = (
            array[:N].reshape(B, T, s.heads, s.head_size) for array in (query, attended)
        )
        last, ends, sequences = step.last_BD, step.ends_B, (lengths_B, step.ends_B, T)
        source, attention = self.sources.prompt_layer(s), self.attention(s)
        forms = prompt_products(s)
        capacity, stride = keys.shape[1], np.int64(keys.strides[0] // keys.itemsize)
        rotation, added = (lengths_B, *step.rope_table), (x, scaled, squares, N)
        products = {
            "project": Product(
                s.heads + 2 * s.kv_heads,
                scaled,
                (each.query_key_value for each in attentions),
                (keys, values, a.query_norm, a.key_norm, 0.0, ends),
                (squares, *rotation, query, N, T, capacity, stride),
            ),
            "output": Product(
                chunks, attended, (each.output for each in attentions), (0.0, m.norm), added
            ),
            "gate_up": Product(
                s.ffn // PROMPT_BOX,
                scaled,
                (each.gate_up for each in mlps),
                (0.0,),
                (squares, hidden, N),
            ),
            "down": Product(
                chunks,
                hidden,
                (each.down for each in mlps),
                (0.0, m.norm, last),
                (*added, *sequences),
            ),
        }

        def prepare(kernel: str) -> PreparedLaunch:
            if kernel == "attend":
                heads = AttentionArrays(queries, keys, values, attended_BTHE)
                return attention.prepare_forward(heads, starts_BT, lengths_B, lse, kept.get(kernel))
            product, form = products[kernel], forms[kernel]
            grid = product.columns, blocks(N, form.tokens)
            arguments = *product.changing, *product.others
            if kernel in kept:
                kept[kernel].refill(grid, *arguments)
                return kept[kernel]
            like = tensor_map(product.left, PROMPT_BOX)
            rights = tensor_maps(list(product.weights), PROMPT_BOX)
            maps = ByValue(b"".join(like + right for right in rights), len(rights))
            return self.kernels.prepare(
                source,
                kernel,
                grid,
                form.threads,
                maps,
                *arguments,
                shared=form.shared_bytes,
                changing=slice(1, 1 + len(product.changing)),
            )

        ready = OnDemand(prepare)
        only = last if len(caches) == 1 else None
        grid, scaling = blocks(N * chunks, SCALING_WARPS), (x, a.norm, only, scaled, squares, N)
        threads = SCALING_WARPS * WARP
        self.kernels.launch(source, "scale_rows", grid, threads, *scaling, *sequences, early=True)
        strides, following = view(keys)[1:], [*(each.norm for each in attentions[1:]), None]
        layers = zip(
            *(step.forms[::2], step.forms[1::2]), attentions, mlps, caches, following, strict=True
        )
        for i, (attention_form, mlp_form, a, m, (keys, values), norm) in enumerate(layers):
            to_keys, to_values = address(keys), address(values)
            norms = address(a.query_norm), address(a.key_norm)
            ending = last is not None and norm is None
            own = *norms, attention_form.epsilon, address(ends if ending else None)
            ready["project"].launch(to_keys, to_values, *own, structure=i)
            if ending:
                break
            ready["attend"].launch(to_keys, *strides, to_values)
            ready["output"].launch(attention_form.step_size, address(m.norm), structure=i)
            ready["gate_up"].launch(mlp_form.epsilon, structure=i)
            only = last if i == len(caches) - 2 else None
            ready["down"].launch(mlp_form.step_size, address(norm), address(only), structure=i)
        kept.update(ready)
        return None if last is None else query[:B]


class Product(NamedTuple):
    """A product of each layer, with a weight and a few arguments of its own."""

    columns: int  # of blocks
    left: Array
    weights: Iterable[Array]
    changing: tuple[Argument, ...]
    others: tuple[Argument, ...]


class OnDemand(dict[str, PreparedLaunch]):
    """Launches that are prepared when they are first wanted: by then the device is at work on those
    in front."""

    def __init__(self, prepare: Callable[[str], PreparedLaunch]):
        super().__init__()
        self.prepare = prepare

    def __missing__(self, kernel: str) -> PreparedLaunch:
        self[kernel] = self.prepare(kernel)
        return self[kernel]


def most_tokens(sizes: DecodingSizes) -> int:
    """Most prompt tokens (of all sequences) that the kernels take for these sizes; 0: none."""
    whole = all(size % PROMPT_BOX == 0 for size in (sizes.dim, sizes.ffn, sizes.head_size))
    return MOST_TOKENS if whole and not sizes.gpt2 else 0


def address(array: Array | None) -> int:
    return 0 if array is None else array.data.ptr
