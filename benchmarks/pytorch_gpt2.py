"""The peer of the GPT-2 family: nanoGPT's architecture in PyTorch, for `pytorch_model.make_step`.

Like `PyTorchModel` it takes its weights from a flat buffer of ours. One tied head, one document a
row.
"""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import FlatBuffer


class Block(nn.Module):
    """Attention and MLP, each behind a LayerNorm and added to the residual stream."""

    def __init__(self, c: ModelConfig, dropout: float):
        super().__init__()
        self.c, self.dropout = c, dropout
        self.ln_1, self.ln_2 = (nn.LayerNorm(c.dim, c.norm_epsilon) for _ in range(2))
        self.attn = nn.ModuleDict(
            {"c_attn": nn.Linear(c.dim, 3 * c.dim), "c_proj": nn.Linear(c.dim, c.dim)}
        )
        self.mlp = nn.ModuleDict(
            {"c_fc": nn.Linear(c.dim, c.ffn), "c_proj": nn.Linear(c.ffn, c.dim)}
        )

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        B, T, D = x_BTD.shape
        packed = self.attn["c_attn"](self.ln_1(x_BTD)).view(B, T, 3, self.c.heads, -1)
        heads = packed.permute(2, 0, 3, 1, 4).unbind()
        dropout = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(*heads, is_causal=True, dropout_p=dropout)
        added = self.attn["c_proj"](attended.transpose(1, 2).reshape(B, T, D))
        x_BTD = x_BTD + F.dropout(added, dropout)
        inner = F.gelu(self.mlp["c_fc"](self.ln_2(x_BTD)), approximate="tanh")
        return x_BTD + F.dropout(self.mlp["c_proj"](inner), dropout)


class PyTorchGpt2(nn.Module):
    """The decoder with its tied head."""

    def __init__(self, config: ModelConfig, parameters: np.ndarray, dropout: float = 0.0):
        """`parameters` is a flat buffer of ours, laid out by `tensor_table(config)`."""
        super().__init__()
        c = self.config = config
        self.dropout = dropout
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(c.vocab_size, c.dim),
                "wpe": nn.Embedding(c.context, c.dim),
                "h": nn.ModuleList(Block(c, dropout) for _ in range(c.layers)),
                "ln_f": nn.LayerNorm(c.dim, c.norm_epsilon),
            }
        )
        named = FlatBuffer(c, parameters)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(torch.from_numpy(named[name]))

    def logits(self, ids_BT: torch.Tensor) -> torch.Tensor:
        t = self.transformer
        x_BTD = t["wte"](ids_BT) + t["wpe"](torch.arange(ids_BT.shape[1], device=ids_BT.device))
        x_BTD = F.dropout(x_BTD, self.dropout, self.training)
        for block in t["h"]:
            x_BTD = block(x_BTD)
        return F.linear(t["ln_f"](x_BTD), t["wte"].weight)

    def forward(self, ids_BT: torch.Tensor, targets_BTK: torch.Tensor) -> torch.Tensor:
        """Mean nats over all targets; −1 has none."""
        logits = self.logits(ids_BT)
        return F.cross_entropy(logits.flatten(0, 1), targets_BTK.reshape(-1), ignore_index=-1)
