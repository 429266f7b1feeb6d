"""Decoding and reading a prompt on one GPU beside PyTorch: milliseconds per token, ratio, spread.

    python benchmarks/cuda_decode.py --preset base --rows 1 8 64

Both sides run in one process, in bf16, with the same weights. Each round reads a prompt of half the
context and writes tokens until the context is full, a token of every row at a time, until its ids
are on the host. Ours samples on the device (temperature 0.7, top-p 0.95). PyTorch takes the
likeliest token, which costs it less: compiled layers (torch.compile) over a static cache, one CUDA
graph a token, the chosen ids fed back on the device. Reading a prompt ends with a token on the
host, too; ours is also read as the first of its length, before anything is recorded. Printed are
medians over the rounds with their range. Takes about a minute and a half, most of it for
torch.compile.
"""

import argparse
import time
from collections.abc import Callable

import cupy
import numpy as np
import torch
from peers import spread
from pytorch_model import PyTorchModel, rotated
from torch.nn import functional as F

from nanoeuler.backend.cuda.engine import CudaBackend
from nanoeuler.inference.sampling import GREEDY, Sampling
from nanoeuler.inference.window import ContextWindow
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters
from nanoeuler.model.spec import parameter_count
from nanoeuler.model.transformer import Transformer

Reader = Callable[[], np.ndarray]
WARM_UP = 4  # tokens before the clock runs: graphs are recorded


class Ours:
    def __init__(self, config: ModelConfig, parameters: np.ndarray):
        backend = CudaBackend("bf16")
        self.model = Transformer(config, backend.from_host(parameters), backend)
        self.allowed_V = np.ones(config.vocab_size, bool)

    def write(
        self, prompts_BT: np.ndarray, count: int, sampling: Sampling
    ) -> tuple[float, np.ndarray]:
        """Seconds per token, and the tokens, (B, count)."""
        window = ContextWindow(self.model, len(prompts_BT), self.model.config.context)
        new = prompts_BT.tolist()
        positions, tokens = np.full(len(prompts_BT), prompts_BT.shape[1]), []
        for index in range(count):
            if index == WARM_UP:
                began = time.perf_counter()
            tokens.append(window.choose(new, sampling, positions, self.allowed_V))
            new, positions = tokens[-1][:, None].tolist(), positions + 1
        return (time.perf_counter() - began) / (count - WARM_UP), np.stack(tokens, axis=1)

    def readers(self, prompt_BT: np.ndarray) -> tuple[Reader, Reader]:
        """Reads a prompt; and the same as the first of its length."""
        window = ContextWindow(self.model, 1, self.model.config.context)

        def read() -> np.ndarray:
            window.cache.truncate(0, 0)
            window.tokens[0].clear()
            return window.choose(prompt_BT.tolist(), GREEDY, np.zeros(1, int), self.allowed_V)

        def first() -> np.ndarray:
            window.cache.memory.steps.clear()
            self.model.buffers.kept.clear()
            return read()

        return read, first


class Peer:
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
        self.caches, self.indices = (
            caches,
            (steps, slots),
        )  # what the graph reads has to outlive this call
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

    def reader(self, prompt_BT: np.ndarray) -> Reader:
        graph, ids, position, chosen = self.recorded(*prompt_BT.shape)
        with torch.inference_mode():
            ids.copy_(torch.from_numpy(prompt_BT))
            position.zero_()

        def read() -> np.ndarray:
            graph.replay()
            return chosen.cpu().numpy()

        return read


def seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="base")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--alone", action="store_true", help="without the peer")
    options = parser.parse_args()
    config = ModelConfig.from_dict({"preset": options.preset})
    parameters, random = initial_parameters(config, 1), np.random.default_rng(1)
    ours, peer = Ours(config, parameters), None if options.alone else Peer(config, parameters)
    half = config.context // 2
    device = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    print(
        f"{device}, torch {torch.__version__}, CuPy {cupy.__version__};"
        f" {options.preset}, {parameter_count(config):,} parameters, bf16"
    )
    print(
        f"ms per token behind {half} to {config.context} cached tokens,"
        f" {options.rounds} rounds: median (least … most)"
    )
    for rows in options.rows:
        prompts = random.integers(1, config.vocab_size, (rows, half))
        ours.write(prompts, half, Sampling())
        theirs = peer and peer.writer(prompts, half)
        times = np.array(
            [
                [ours.write(prompts, half, Sampling())[0], theirs() if theirs else np.nan]
                for _ in range(options.rounds)
            ]
        )
        report(f"batch {rows}", times)
    prompt = random.integers(1, config.vocab_size, (1, config.context))
    recorded, first = ours.readers(prompt)
    readers = [recorded, *([peer.reader(prompt)] if peer else [])]
    for _ in range(3):
        tokens = [read() for read in readers]
    times = np.array(
        [
            [seconds(read) for read in readers] + [np.nan] * (2 - len(readers))
            for _ in range(3 * options.rounds)
        ]
    )
    report(f"a prompt of {config.context}", times)
    times = np.array([[seconds(first), np.nan] for _ in range(3 * options.rounds)])
    report("its first time", times)
    print(f"first token of each: {[int(each[0]) for each in tokens]}")


def report(what: str, times: np.ndarray) -> None:
    line = f"  {what:<16} nanoeuler {spread(1e3 * times[:, 0], '.4f')}"
    if not np.isnan(times[0, 1]):
        line += f"; PyTorch {spread(1e3 * times[:, 1], '.4f')}"
        line += f"; ratio {spread(times[:, 1] / times[:, 0], '.2f')}"
    print(line, flush=True)


if __name__ == "__main__":
    main()
