"""Layers for the tokens of prompts: the launches of prompt_layer.cu, on Hopper in bfloat16."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from nanoeuler.backend.cuda.attention import Attention, prompt_tiles, view
from nanoeuler.backend.cuda.chip import WARP
from nanoeuler.backend.cuda.decoding_sizes import PROMPT_BOX, DecodingSizes, prompt_products
from nanoeuler.backend.cuda.fused_linear import tensor_map, tensor_maps
from nanoeuler.backend.cuda.kernel_sources import KernelSources
from nanoeuler.backend.cuda.kernels import Argument, ByValue, Kernels, PreparedLaunch, blocks
from nanoeuler.backend.cuda.scratch import Scratch
from nanoeuler.backend.records import Array, DecodeStep

SCALING_WARPS = 8
MOST_TOKENS = 2048
"""Of all sequences: for more, cuBLASLt's larger tiles are as fast."""


class Prompts:
    """Reads prompts, through all layers at once."""

    def __init__(self, kernels: Kernels, sources: KernelSources, scratch: Scratch):
        self.kernels, self.sources, self.scratch = kernels, sources, scratch
        self.attentions: dict[tuple[int, int, int], Attention] = {}

    def fits(self, sizes: DecodingSizes, tokens: int) -> bool:
        """Are the kernels made for these sizes and so many tokens of all sequences?"""
        whole = all(size % PROMPT_BOX == 0 for size in (sizes.dim, sizes.ffn, sizes.head_size))
        return whole and not sizes.gpt2 and tokens <= MOST_TOKENS

    def attention(self, sizes: DecodingSizes) -> Attention:
        heads = sizes.heads, sizes.kv_heads, sizes.head_size
        if heads not in self.attentions:
            tiles = prompt_tiles(sizes.head_size)
            self.attentions[heads] = Attention(self.kernels, *heads, "bf16", tiles=tiles)
        return self.attentions[heads]

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
        scaled, squares, query, attended, hidden, lse = self.scratch.take(
            "prompts",
            ((N, s.dim), activation),
            ((N, chunks), np.float32),
            ((B, T, s.heads, s.head_size), activation),
            ((N, s.width), activation),
            ((N, s.ffn), activation),
            ((B, s.heads, T), np.float32),
        )
        attended_BTHE = attended.reshape(query.shape)
        last, ends, sequences = step.last_BD, step.ends_B, (lengths_B, step.ends_B, T)
        source, attention = self.sources.prompt_layer(s), self.attention(s)
        products = prompt_products(s)

        def prepare(
            kernel: str,
            columns: int,
            left: Array,
            weights: list[Array],
            changing: tuple[Argument, ...],
            *others: Argument,
        ) -> PreparedLaunch:
            """A product of each layer, with a weight and a few arguments of its own."""
            product, like = products[kernel], tensor_map(left, PROMPT_BOX)
            maps = (like + right for right in tensor_maps(weights, PROMPT_BOX))
            form = source, kernel, (columns, blocks(N, product.tokens)), product.threads
            arguments = ByValue(b"".join(maps), len(weights)), *changing, *others
            own, shared = slice(1, 1 + len(changing)), product.shared_bytes
            return self.kernels.prepare(*form, *arguments, shared=shared, changing=own)

        only = last if len(caches) == 1 else None
        grid, scaling = blocks(N * chunks, SCALING_WARPS), (x, a.norm, only, scaled, squares, N)
        threads = SCALING_WARPS * WARP
        self.kernels.launch(source, "scale_rows", grid, threads, *scaling, *sequences, early=True)
        added = x, scaled, squares, N
        project = once(
            prepare,
            "project",
            s.heads + 2 * s.kv_heads,
            scaled,
            [each.query_key_value for each in attentions],
            (keys, values, a.query_norm, a.key_norm, 0.0, ends),
            *(squares, lengths_B, *step.rope_table, query, N, T, keys.shape[1]),
            np.int64(keys.strides[0] // keys.itemsize),
        )
        arrays = query, keys, values, starts_BT, lengths_B, attended_BTHE, lse
        attend, strides = once(attention.prepare_forward, *arrays), view(keys)[1:]
        weights = [each.output for each in attentions]
        output = once(prepare, "output", chunks, attended, weights, (0.0, m.norm), *added)
        weights, columns = [each.gate_up for each in mlps], s.ffn // PROMPT_BOX
        gate_up = once(prepare, "gate_up", columns, scaled, weights, (0.0,), squares, hidden, N)
        weights, changing = [m.down for m in mlps], (0.0, m.norm, last)
        down = once(prepare, "down", chunks, hidden, weights, changing, *added, *sequences)
        following = [*(a.norm for a in attentions[1:]), None]
        forms = step.forms[::2], step.forms[1::2]
        layers = zip(*forms, attentions, mlps, caches, following, strict=True)
        for i, (attention_form, mlp_form, a, m, (keys, values), norm) in enumerate(layers):
            to_keys, to_values = address(keys), address(values)
            norms = address(a.query_norm), address(a.key_norm)
            ending = last is not None and norm is None
            own = *norms, attention_form.epsilon, address(ends if ending else None)
            project().launch(to_keys, to_values, *own, structure=i)
            if ending:
                return query.reshape(N, s.heads, s.head_size)[:B]
            attend().launch(to_keys, *strides, to_values)
            output().launch(attention_form.step_size, address(m.norm), structure=i)
            gate_up().launch(mlp_form.epsilon, structure=i)
            only = last if i == len(caches) - 2 else None
            down().launch(mlp_form.step_size, address(norm), address(only), structure=i)
        return None


def once(
    prepare: Callable[..., PreparedLaunch], *arguments: object
) -> Callable[[], PreparedLaunch]:
    """A launch that is prepared when it is first wanted: by then the device is at work on those in
    front."""
    return functools.cache(lambda: prepare(*arguments))


def address(array: Array | None) -> int:
    return 0 if array is None else array.data.ptr
