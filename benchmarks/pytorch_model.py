"""The peer: the same architecture in PyTorch, written with the library's own fused pieces.

Packed q/k/v, gate/up and heads (or, to see the effect, a product for each),
`scaled_dot_product_attention` with grouped heads, `rms_norm`, fused AdamW. It takes its weights
from a flat buffer of ours, so that both sides start from the same model and their losses can be
compared.
"""

from collections.abc import Iterable

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from nanoeuler.model.config import LATER, ModelConfig
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.model.spec import head_name


class ScaledProduct(torch.autograd.Function):
    """x Wᵀ by torch._scaled_mm: e4m3 forward, e5m2 gradients, each tensor scaled by its largest
    magnitude of the moment. The second factor of a product has to be column-major."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        x8, w8 = (quantized(tensor, torch.float8_e4m3fn) for tensor in (x, weight))
        ctx.save_for_backward(*x8, *w8)
        return scaled_mm(x8, (w8[0].t(), w8[1]))

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x8, x_inverse, w8, w_inverse = ctx.saved_tensors
        g8, g_inverse = quantized(gradient, torch.float8_e5m2)
        dx = scaled_mm((g8, g_inverse), (w8.t().contiguous().t(), w_inverse))
        turned = (g8.t().contiguous(), g_inverse), (x8.t().contiguous().t(), x_inverse)
        return dx, scaled_mm(*turned).float()


def quantized(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """`x` in 8 bits, and what they are to be multiplied by."""
    scale = torch.finfo(dtype).max / x.abs().amax().float().clamp(min=1e-30)
    return (x.float() * scale).to(dtype), 1 / scale


def scaled_mm(
    left: tuple[torch.Tensor, torch.Tensor], right: tuple[torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    scales = {"scale_a": left[1], "scale_b": right[1]}
    return torch._scaled_mm(left[0], right[0], **scales, out_dtype=torch.bfloat16)


class ScaledLinear(nn.Linear):
    """A linear layer whose three products are in fp8."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, self.in_features).bfloat16()
        return ScaledProduct.apply(rows, self.weight).view(*x.shape[:-1], self.out_features)


def use_fp8(model: nn.Module) -> None:
    """Compute all linear layers of a model in fp8, the heads too."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = ScaledLinear


class LayerWeights:
    """Views of one layer's tensors in a flat buffer."""

    def __init__(self, named: FlatBuffer, layer: int):
        self.named, self.prefix = named, f"model.layers.{layer}"

    def __getitem__(self, name: str) -> np.ndarray:
        return self.named[f"{self.prefix}.{name}.weight"]

    def side_by_side(self, block: str, parts: Iterable[str]) -> np.ndarray:
        """The weights of a packed product, copied without padding."""
        return np.concatenate([self[f"{block}.{part}_proj"] for part in parts])


class Products(nn.Module):
    """Products of one input, of these sizes: as one whose result is split, or each by itself."""

    def __init__(self, dim: int, sizes: list[int], packed: bool):
        super().__init__()
        self.sizes = sizes
        self.linears = nn.ModuleList(
            nn.Linear(dim, size, bias=False) for size in ([sum(sizes)] if packed else sizes)
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parts = tuple(linear(x) for linear in self.linears)
        return parts if len(parts) > 1 else parts[0].split(self.sizes, dim=-1)

    def take(self, weights: np.ndarray) -> None:
        for linear, part in zip(
            self.linears,
            torch.from_numpy(weights).split([linear.out_features for linear in self.linears]),
            strict=True,
        ):
            linear.weight.copy_(part)


class Block(nn.Module):
    """Attention and SwiGLU, each behind an RMSNorm and added to the residual stream."""

    def __init__(self, c: ModelConfig, packed: bool):
        super().__init__()
        self.c = c
        self.query, self.key = c.heads * c.head_size, c.kv_heads * c.head_size
        self.attention_norm, self.mlp_norm = (nn.Parameter(torch.ones(c.dim)) for _ in range(2))
        self.query_key_value = Products(c.dim, [self.query, self.key, self.key], packed)
        self.attention_output = nn.Linear(self.query, c.dim, bias=False)
        self.gate_up = Products(c.dim, [c.ffn, c.ffn], packed)
        self.down = nn.Linear(c.ffn, c.dim, bias=False)

    def forward(
        self,
        x_BTD: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        cache: tuple[torch.Tensor, torch.Tensor] | None,
        position: int,
    ) -> torch.Tensor:
        """`cache` holds keys and values, (B, capacity, G, E) each; new tokens go to `position`."""
        c, (B, T, _) = self.c, x_BTD.shape
        parts = self.query_key_value(
            F.rms_norm(x_BTD, (c.dim,), self.attention_norm, c.norm_epsilon)
        )
        query, key, value = (part.view(B, T, -1, c.head_size) for part in parts)
        query, key = rotated(query, cos, sin), rotated(key, cos, sin)
        if cache is not None:
            for stored, new in zip(cache, (key, value), strict=True):
                stored[:, position : position + T] = new
            key, value = (stored[:, : position + T] for stored in cache)
        heads_first = (part.transpose(1, 2) for part in (query, key, value))
        attended = F.scaled_dot_product_attention(*heads_first, is_causal=T > 1, enable_gqa=True)
        x_BTD = x_BTD + c.step_size * self.attention_output(
            attended.transpose(1, 2).reshape(B, T, -1)
        )
        gate, up = self.gate_up(F.rms_norm(x_BTD, (c.dim,), self.mlp_norm, c.norm_epsilon))
        return x_BTD + c.step_size * self.down(F.silu(gate) * up)


def rotated(x_BTHE: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x_BTHE.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class PyTorchModel(nn.Module):
    """The decoder with K heads on its last hidden state, one document a row."""

    def __init__(self, config: ModelConfig, parameters: np.ndarray, packed: bool = True):
        """`parameters` is a flat buffer of ours, laid out by `tensor_table(config)`."""
        super().__init__()
        c = self.config = config
        self.embedding = nn.Embedding(c.vocab_size, c.dim)
        self.blocks = nn.ModuleList(Block(c, packed) for _ in range(c.layers))
        self.final_norm = nn.Parameter(torch.ones(c.dim))
        self.heads = Products(c.dim, [c.vocab_size] * c.mtp_heads, packed)
        if c.tied:  # one head only
            self.heads.linears[0].weight = self.embedding.weight
        angles = np.arange(c.context)[:, None] * c.rope_theta ** (
            -np.arange(0, c.head_size, 2) / c.head_size
        )
        for name, table in (("cos", np.cos(angles)), ("sin", np.sin(angles))):
            part = torch.from_numpy(table.astype(np.float32))  # (context, E / 2)
            self.register_buffer(name, part[:, None, :])
        self.take(parameters)

    @torch.no_grad()
    def take(self, parameters: np.ndarray) -> None:
        c, named = self.config, FlatBuffer(self.config, parameters)
        first = "model.embed_tokens.weight" if c.tied else head_name(0)
        heads = [first, *(head_name(head) for head in range(1, c.mtp_heads))]
        self.heads.take(np.concatenate([named[name] for name in heads]))
        self.embedding.weight.copy_(torch.from_numpy(named["model.embed_tokens.weight"]))
        self.final_norm.copy_(torch.from_numpy(named["model.norm.weight"]))
        for index, block in enumerate(self.blocks):
            layer = LayerWeights(named, index)
            block.query_key_value.take(layer.side_by_side("self_attn", "qkv"))
            block.gate_up.take(layer.side_by_side("mlp", ("gate", "up")))
            block.attention_output.weight.copy_(torch.from_numpy(layer["self_attn.o_proj"]))
            block.down.weight.copy_(torch.from_numpy(layer["mlp.down_proj"].copy()))
            block.attention_norm.copy_(torch.from_numpy(layer["input_layernorm"]))
            block.mlp_norm.copy_(torch.from_numpy(layer["post_attention_layernorm"]))

    def hidden(
        self, ids_BT: torch.Tensor, caches: list | None = None, position: int = 0
    ) -> torch.Tensor:
        x_BTD, T = self.embedding(ids_BT), ids_BT.shape[1]
        cos, sin = self.cos[position : position + T], self.sin[position : position + T]
        for index, block in enumerate(self.blocks):
            x_BTD = block(x_BTD, cos, sin, None if caches is None else caches[index], position)
        return F.rms_norm(x_BTD, (self.config.dim,), self.final_norm, self.config.norm_epsilon)

    def forward(self, ids_BT: torch.Tensor, targets_BTK: torch.Tensor) -> torch.Tensor:
        """Mean nats over all targets of all heads, which weigh the same; −1 has none."""
        hidden, linears = self.hidden(ids_BT), self.heads.linears
        if len(linears) == 1:
            return F.cross_entropy(
                linears[0](hidden).view(-1, self.config.vocab_size),
                targets_BTK.reshape(-1),
                ignore_index=-1,
            )
        losses = [
            F.cross_entropy(
                linear(hidden).flatten(0, 1),
                targets_BTK[..., k].reshape(-1),
                ignore_index=-1,
                reduction="sum",
            )
            for k, linear in enumerate(linears)
        ]
        return sum(losses) / (targets_BTK != -1).sum()

    def new_caches(self, rows: int, capacity: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        c = self.config
        return [
            tuple(torch.zeros(rows, capacity, c.kv_heads, c.head_size) for _ in range(2))
            for _ in range(c.layers)
        ]

    @torch.inference_mode()
    def extend(self, caches: list, ids_BT: torch.Tensor, position: int) -> torch.Tensor:
        """Head 0's logits behind the last new token, (B, V), with `position` tokens cached."""
        hidden_BD = self.hidden(ids_BT, caches, position)[:, -1]
        return F.linear(hidden_BD, self.heads.linears[0].weight[: self.config.vocab_size])


def make_model(config: ModelConfig, parameters: np.ndarray, packed: bool = True) -> nn.Module:
    """The peer of a model of `config`, which must have none of the later fields."""
    if later := sorted(set(LATER) & config.to_dict().keys()):
        raise SystemExit(f"the peer in PyTorch does not compute model.{', model.'.join(later)}")
    if config.family == "gpt2":
        from pytorch_gpt2 import PyTorchGpt2

        return PyTorchGpt2(config, parameters)
    return PyTorchModel(config, parameters, packed)


def make_step(model: nn.Module, forward, learning_rate: float):
    """One optimizer step as a function of (ids, targets): `forward` (the model or its compiled
    form), backward, clipping, fused AdamW."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    norms = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95), eps=1e-8, fused=True)

    def step(ids_BT: torch.Tensor, targets_BTK: torch.Tensor) -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = forward(ids_BT, targets_BTK)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step
