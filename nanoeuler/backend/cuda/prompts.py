"""Layers for the tokens of prompts: the launches of prompt_layer.cu, on Hopper in bfloat16."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from nanoeuler.backend.cuda.attention import Attention, prompt_tiles
from nanoeuler.backend.cuda.decoding_sizes import PROMPT_BOX, DecodingSizes, prompt_products
from nanoeuler.backend.cuda.fused_linear import tensor_map
from nanoeuler.backend.cuda.kernel_sources import KernelSources
from nanoeuler.backend.cuda.kernels import Argument, ByValue, Kernels, blocks
from nanoeuler.backend.cuda.scratch import Scratch
from nanoeuler.backend.records import Array, SwigluWeights

if TYPE_CHECKING:
    from nanoeuler.backend.cuda.decoding import LayerStep

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

    def read(self, layers: Sequence[LayerStep], starts_BT: Array) -> None:
        """x ← the output of all layers; keys and values go to their slots."""
        first, (B, T) = layers[0], starts_BT.shape
        s, x, N = first.sizes, first.x_BD, B * T
        activation, chunks = first.slots.keys_BSGE.dtype, s.dim // PROMPT_BOX
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
        normed, mixed, gated = (tensor_map(a, PROMPT_BOX) for a in (scaled, attended, hidden))
        source, attention = self.sources.prompt_layer(s), self.attention(s)
        forms = {
            kernel: (blocks(N, product.tokens), product.threads, product.shared_bytes)
            for kernel, product in prompt_products(s).items()
        }

        def launch(
            kernel: str, columns: int, left: bytes, weight: Array, *arguments: Argument
        ) -> None:
            tiles, threads, shared = forms[kernel]
            maps, grid = ByValue(left + tensor_map(weight, PROMPT_BOX)), (columns, tiles)
            self.kernels.launch(
                source, kernel, grid, threads, maps, *arguments, shared=shared, early=True
            )

        grid, scaling = blocks(N * chunks, SCALING_WARPS), (x, first.a.norm, scaled, squares, N)
        self.kernels.launch(source, "scale_rows", grid, SCALING_WARPS * 32, *scaling, early=True)
        for layer, following in zip(layers, [*layers[1:], None], strict=True):
            a, m = layer.a, layer.m
            assert isinstance(m, SwigluWeights)
            epsilon = float(layer.attention.epsilon)
            place = layer.lengths, *layer.table, a.query_norm, a.key_norm
            sizes = N, T, layer.capacity, layer.cache_stride
            outputs, heads = (query, *layer.slots), s.heads + 2 * s.kv_heads
            inputs = squares, epsilon, *place
            launch("project", heads, normed, a.query_key_value, *inputs, *outputs, *sizes)
            keys = *layer.slots, starts_BT, layer.lengths
            attention.forward(query, *keys, attended_BTHE, lse, early=True)
            step_size, to = float(layer.attention.step_size), (scaled, squares, N)
            launch("output", chunks, mixed, a.output, step_size, x, m.norm, *to)
            columns, epsilon = s.ffn // PROMPT_BOX, float(layer.mlp.epsilon)
            launch("gate_up", columns, normed, m.gate_up, squares, epsilon, hidden, N)
            norm = following.a.norm if following else None
            launch("down", chunks, gated, m.down, float(layer.mlp.step_size), x, norm, *to)
