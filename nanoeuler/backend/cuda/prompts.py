"""Layers for the tokens of prompts: the launches of prompt_layer.cu, on Hopper in bfloat16."""

from __future__ import annotations

import ctypes

import numpy as np

from nanoeuler.backend.cuda.attention import KEY, VALUE, Attention, prompt_tiles
from nanoeuler.backend.cuda.decoding_sizes import PROMPT_BOX, DecodingSizes, prompt_products
from nanoeuler.backend.cuda.fused_linear import MAP_BYTES, tensor_map
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

    def read(self, step: DecodeStep, s: DecodingSizes) -> None:
        """x ← the output of all layers, each of sizes `s`; keys and values go to their slots."""
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
        normed, mixed, gated = (tensor_map(a, PROMPT_BOX) for a in (scaled, attended, hidden))
        source, attention = self.sources.prompt_layer(s), self.attention(s)
        products = prompt_products(s)

        def prepare(
            kernel: str, columns: int, left: bytes, weight: Array, **arguments: Argument
        ) -> LayerLaunch:
            product = products[kernel]
            maps = ByValue(left + tensor_map(weight, PROMPT_BOX))
            form = source, kernel, (columns, blocks(N, product.tokens)), product.threads
            given = maps, *arguments.values()
            launch = self.kernels.prepare(*form, *given, shared=product.shared_bytes)
            return LayerLaunch(launch, list(arguments))

        grid, scaling = blocks(N * chunks, SCALING_WARPS), (x, a.norm, scaled, squares, N)
        self.kernels.launch(source, "scale_rows", grid, SCALING_WARPS * 32, *scaling, early=True)
        cosine, sine = step.rope_table
        project = prepare(
            "project",
            s.heads + 2 * s.kv_heads,
            normed,
            a.query_key_value,
            squares=squares,
            epsilon=0.0,
            lengths=lengths_B,
            cosine=cosine,
            sine=sine,
            query_norm=a.query_norm,
            key_norm=a.key_norm,
            query=query,
            keys=keys,
            values=values,
            rows=N,
            tokens=T,
            capacity=keys.shape[1],
            cache_batch=np.int64(keys.strides[0] // keys.itemsize),
        )
        attend = attention.prepare_forward(
            query, keys, values, starts_BT, lengths_B, attended_BTHE, lse
        )
        to = {"step_size": 0.0, "x": x, "norm": m.norm}
        to |= {"scaled": scaled, "squares": squares, "rows": N}
        output = prepare("output", chunks, mixed, a.output, **to)
        columns, inputs = s.ffn // PROMPT_BOX, {"squares": squares, "epsilon": 0.0}
        gate_up = prepare("gate_up", columns, normed, m.gate_up, **inputs, hidden=hidden, rows=N)
        down = prepare("down", chunks, gated, m.down, **to)
        following = [*(a.norm for a in attentions[1:]), None]
        forms = step.forms[::2], step.forms[1::2]
        layers = zip(*forms, attentions, mlps, caches, following, strict=True)
        for attention_form, mlp_form, a, m, (keys, values), norm in layers:
            norms = {"query_norm": a.query_norm, "key_norm": a.key_norm}
            epsilon = float(attention_form.epsilon)
            project(a.query_key_value, epsilon=epsilon, keys=keys, values=values, **norms)
            attend.numbers[KEY], attend.numbers[VALUE] = keys.data.ptr, values.data.ptr
            attend.launch()
            output(a.output, step_size=float(attention_form.step_size), norm=m.norm)
            gate_up(m.gate_up, epsilon=float(mlp_form.epsilon))
            down(m.down, step_size=float(mlp_form.step_size), norm=norm)


class LayerLaunch:
    """A product that is launched for each layer, with its weight and what else changes."""

    def __init__(self, prepared: PreparedLaunch, names: list[str]):
        """`names` of the arguments behind the maps of tokens and weight."""
        assert prepared.structure is not None  # the maps
        self.prepared = prepared
        self.weight_map = ctypes.addressof(prepared.structure) + MAP_BYTES  # behind the tokens' one
        self.places = {name: 1 + index for index, name in enumerate(names)}

    def __call__(self, weight: Array, **changed: Array | float | None) -> None:
        numbers = self.prepared.numbers
        ctypes.memmove(self.weight_map, tensor_map(weight, PROMPT_BOX), MAP_BYTES)
        for name, value in changed.items():
            if value is None:
                numbers[self.places[name]] = 0  # a null pointer
            else:
                number = value if isinstance(value, float) else value.data.ptr
                numbers[self.places[name]] = number
        self.prepared.launch()
