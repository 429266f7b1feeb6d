"""Decoding in PyTorch, for `cuda_decode.py`."""

import time
from collections.abc import Callable

import numpy as np
import torch
from pytorch_model import PyTorchModel, rotated
from torch.nn import functional as F

from nanoeuler.model.config import ModelConfig


class Decoder:
    """`PyTorchModel` over a cache of fixed size: layers are compiled, a step is a CUDA graph."""

    def __init__(self, config: ModelConfig, parameters: np.ndarray):
        self.config = config
        self.model = PyTorchModel(config, parameters).cuda().bfloat16()
        self.layer = torch.compile(self.step_layer, dynamic=False)

    def step_layer(self, block, x_BTD, cos, sin, positions_T, mask_TS, keys_BGSE, values_BGSE):
        c, (B, T, _) = self.config, x_BTD.shape
        parts = block.query_key_value(
            F.rms_norm(x_BTD, (c.dim,), block.attention_norm, c.norm_epsilon)
        )
        query, key, value = (part.view(B, T, -1, c.head_size) for part in parts)
        query = rotated(query, cos, sin).to(value.dtype)
        key = rotated(key, cos, sin).to(value.dtype)
        keys_BGSE.index_copy_(2, positions_T, key.transpose(1, 2))
        values_BGSE.index_copy_(2, positions_T, value.transpose(1, 2))
        out = F.scaled_dot_product_attention(
            query.transpose(1, 2), keys_BGSE, values_BGSE, attn_mask=mask_TS, enable_gqa=True
        )
        x_BTD = x_BTD + c.step_size * block.attention_output(out.transpose(1, 2).reshape(B, T, -1))
        gate, up = block.gate_up(F.rms_norm(x_BTD, (c.dim,), block.mlp_norm, c.norm_epsilon))
        return x_BTD + c.step_size * block.down(F.silu(gate) * up)

    @torch.inference_mode()
    def recorded(
        self, rows: int, tokens: int
    ) -> tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor, torch.Tensor]:
        """A graph that reads `ids` (rows, tokens) from `position` on.

        It leaves the likeliest next ids in `chosen` and, for one token, in `ids`.
        """
        c, model = self.config, self.model
        shape = rows, c.kv_heads, c.context, c.head_size
        caches = [
            [torch.zeros(shape, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
            for _ in range(c.layers)
        ]
        ids = torch.zeros(rows, tokens, dtype=torch.long, device="cuda")
        position = torch.zeros(1, dtype=torch.long, device="cuda")
        chosen = torch.zeros(rows, dtype=torch.long, device="cuda")
        steps = torch.arange(tokens, device="cuda")
        slots = torch.arange(c.context, device="cuda")

        def step() -> None:
            positions = position + steps
            x, mask = model.embedding(ids), slots[None, :] <= positions[:, None]
            for block, (keys, values) in zip(model.blocks, caches, strict=True):
                x = self.layer(
                    block,
                    x,
                    model.cos[positions],
                    model.sin[positions],
                    positions,
                    mask,
                    keys,
                    values,
                )
            hidden = F.rms_norm(x[:, -1], (c.dim,), model.final_norm, c.norm_epsilon)
            chosen.copy_(
                F.linear(hidden, model.heads.linears[0].weight[: c.vocab_size]).argmax(dim=1)
            )
            if tokens == 1:
                ids.copy_(chosen[:, None])
                position.add_(1)

        for _ in range(3):
            step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        # what the graph reads has to outlive this call
        self.caches, self.indices = caches, (steps, slots)
        return graph, ids, position, chosen

    @torch.inference_mode()
    def writer(self, prompts_BT: np.ndarray, count: int) -> Callable[[], float]:
        (rows, length), prompts = prompts_BT.shape, torch.from_numpy(prompts_BT).cuda()
        graph, ids, position, chosen = self.recorded(rows, 1)
        stored = [
            torch.zeros(
                rows,
                length,
                self.config.kv_heads,
                self.config.head_size,
                dtype=torch.bfloat16,
                device="cuda",
            )
            for _ in range(2)
        ]
        caches = [tuple(part.clone() for part in stored) for _ in range(self.config.layers)]
        logits = self.model.extend(caches, prompts, 0)
        for static, filled in zip(self.caches, caches, strict=True):
            for target, source in zip(static, filled, strict=True):
                target[:, :, :length] = source.transpose(1, 2)
        first = logits.argmax(dim=1)

        @torch.inference_mode()
        def write() -> float:
            ids.copy_(first[:, None])
            position.fill_(length)
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(count):
                graph.replay()
                chosen.tolist()
            return (time.perf_counter() - began) / count

        return write

    def reader(self, prompt_BT: np.ndarray) -> Callable[[], np.ndarray]:
        graph, ids, position, chosen = self.recorded(*prompt_BT.shape)
        with torch.inference_mode():
            ids.copy_(torch.from_numpy(prompt_BT))
            position.zero_()

        def read() -> np.ndarray:
            graph.replay()
            return chosen.cpu().numpy()

        return read
