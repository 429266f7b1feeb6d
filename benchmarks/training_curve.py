"""Held-out bits per byte and seconds of one model trained twice, by us and by PyTorch.

    python benchmarks/training_curve.py --config config/base.yaml --steps 2000 --side nanoeuler \\
        --tokens data/corpora/NAME/tokens-4096/manifest.json \\
        --tokenizer data/corpora/NAME/tokenizer-4096/tokenizer.json
    … --side torch.compile

The model, the batch, the optimizer and the schedule are the configuration's `model` and `pretrain`,
changed by `--set` (PyTorch's optimizer is always AdamW); both sides start from the same weights and
take the same rows in the same order. PyTorch runs compiled, with fused AdamW and on a GPU bf16
autocast; the host makes its next rows while the device is at work, as ours does. Every `--every`
steps the weights of either side are measured by our own evaluation, in our own engine, with the
clock stopped. The seconds are those of the steps, without the first three, in which kernels are
compiled and algorithms chosen. Each line is also appended to `--output`, as JSON. Two GPUs take a
side each (CUDA_VISIBLE_DEVICES). Documents of a row see each other on both sides, whatever
`pretrain.document_mask` says.
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nanoeuler.backend import make_backend
from nanoeuler.backend.ops import Backend
from nanoeuler.config import load
from nanoeuler.config.settings import Pretrain
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import FlatBuffer, initial_parameters
from nanoeuler.model.likelihood import bits_per_byte
from nanoeuler.model.spec import head_name
from nanoeuler.model.transformer import Transformer
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.shards import TokenStore
from nanoeuler.training.micro_batches import largest_divisor
from nanoeuler.training.optimizer.choice import optimizer_of
from nanoeuler.training.schedule import Schedule
from nanoeuler.training.state import TrainingState
from nanoeuler.training.streams import TextStream

UNTIMED = 3  # steps in which either side prepares itself


class Ours:
    """A training step as the trainer runs it."""

    def __init__(
        self,
        config: ModelConfig,
        parameters: np.ndarray,
        settings: Pretrain,
        stream: TextStream,
        schedule: Schedule,
        backend: Backend,
    ):
        self.state = TrainingState(config, backend, parameters, optimizer_of(settings))
        self.stream = stream
        self.schedule = schedule
        self.backend = backend
        self.rows = micro_batch_rows(backend, len(parameters), stream)

    def steps(self, total: int) -> Iterator[int]:
        self.state.stage(self.stream.step(0))
        for step in range(total):
            self.state.start(self.rows, self.schedule.rate(step))
            if step + 1 < total:
                self.state.stage(self.stream.step(step + 1))
            self.state.finish()
            yield step + 1

    def finish(self) -> None:
        pass  # a step's loss has come back by now

    def weights(self) -> np.ndarray:
        return self.backend.to_host(self.state.parameters)


def micro_batch_rows(backend: Backend, parameters: int, stream: TextStream) -> int:
    """What the trainer takes: all rows at once on a GPU, slices on a CPU."""
    tokens, shares = backend.slices(parameters)
    return largest_divisor(
        stream.rows_per_step,
        max(1, min(tokens // stream.length, -(-stream.rows_per_step // shares))),
    )


class Theirs:
    """`PyTorchModel` in the loop that one would write around it."""

    def __init__(
        self,
        config: ModelConfig,
        parameters: np.ndarray,
        settings: Pretrain,
        stream: TextStream,
        schedule: Schedule,
        device: str,
    ):
        import torch
        from pytorch_model import PyTorchModel

        torch.set_float32_matmul_precision("high")
        self.torch = torch
        self.device = device
        self.config = config
        self.clip = settings.clip_norm
        self.stream, self.schedule = stream, schedule
        self.model = PyTorchModel(config, parameters).to(device)
        matrices = [p for p in self.model.parameters() if p.ndim > 1]
        norms = [p for p in self.model.parameters() if p.ndim == 1]
        groups = [
            {"params": matrices, "weight_decay": settings.weight_decay},
            {"params": norms, "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(
            groups,
            lr=0.0,
            betas=(settings.beta1, settings.beta2),
            eps=settings.epsilon,
            fused=True,
        )
        self.compiled = torch.compile(self.model)

    def handed_over(self, step: int) -> tuple[Any, Any]:
        rows = self.stream.step(step)
        arrays = [
            self.torch.from_numpy(np.asarray(values, np.int64))
            for values in (rows.ids, rows.targets)
        ]
        return tuple(
            array.pin_memory().to(self.device, non_blocking=True)
            if self.device == "cuda"
            else array
            for array in arrays
        )

    def steps(self, total: int) -> Iterator[int]:
        torch, (ids, targets) = self.torch, self.handed_over(0)
        for step in range(total):
            for group in self.optimizer.param_groups:
                group["lr"] = self.schedule.rate(step)
            self.optimizer.zero_grad(set_to_none=True)
            with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
                loss = self.compiled(ids, targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            self.optimizer.step()
            if step + 1 < total:
                ids, targets = self.handed_over(step + 1)
            yield step + 1

    def finish(self) -> None:
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def weights(self) -> np.ndarray:
        return flat_weights(self.config, self.model)


def flat_weights(config: ModelConfig, model: Any) -> np.ndarray:
    """The weights of a `PyTorchModel` laid out as ours: the inverse of its `take`."""
    from pytorch_model import LayerWeights

    c, parameters = config, np.zeros(FlatBuffer.elements(config), np.float32)
    named = FlatBuffer(config, parameters)

    def host(tensor: Any) -> np.ndarray:
        return tensor.detach().float().cpu().numpy()

    first = "model.embed_tokens.weight" if c.tied else head_name(0)
    heads = [first, *(head_name(head) for head in range(1, c.mtp_heads))]
    weights = np.split(host(model.heads.linears[0].weight), c.mtp_heads)
    for name, weight in zip(heads, weights, strict=True):
        named[name][...] = weight
    named["model.embed_tokens.weight"][...] = host(model.embedding.weight)
    named["model.norm.weight"][...] = host(model.final_norm)
    for index, block in enumerate(model.blocks):
        layer = LayerWeights(named, index)
        ends = np.cumsum([block.query, block.key])
        packed = np.split(host(block.query_key_value.linears[0].weight), ends)
        for part, weight in zip("qkv", packed, strict=True):
            layer[f"self_attn.{part}_proj"][...] = weight
        gate, up = np.split(host(block.gate_up.linears[0].weight), 2)
        layer["mlp.gate_proj"][...], layer["mlp.up_proj"][...] = gate, up
        layer["self_attn.o_proj"][...] = host(block.attention_output.weight)
        layer["mlp.down_proj"][...] = host(block.down.weight)
        layer["input_layernorm"][...] = host(block.attention_norm)
        layer["post_attention_layernorm"][...] = host(block.mlp_norm)
    return parameters


def measured(
    judge: Transformer, store: TokenStore, source: str, tokenizer: Tokenizer, limit: int
) -> float:
    """Bits per byte of a held-out source."""
    tokens, size = store.tokens("validation", source), store.bytes("validation", source)
    return bits_per_byte(
        judge, tokens, size, tokenizer, document_mask=False, limit_tokens=limit
    ).bits_per_byte


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--tokens", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--every", type=int, default=250)
    parser.add_argument("--side", choices=("nanoeuler", "torch.compile"), required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    config = load(options.config, overrides=options.set)
    settings, model = Pretrain.read(config["pretrain"]), ModelConfig.from_dict(config["model"])
    store, tokenizer = TokenStore.open(options.tokens), Tokenizer.load(options.tokenizer)
    sequence = store.tokens("train")
    stream = TextStream(
        sequence,
        model.context,
        settings.batch_tokens,
        model.mtp_weights,
        tokenizer.end_id,
        False,
        config["seed"],
        name="pretrain",
    )
    if options.side != "nanoeuler" and (
        settings.optimizer != "adamw" or settings.embedding_rate != 1
    ):
        parser.error("torch.compile trains with AdamW alone, at one learning rate")
    schedule = Schedule.of(settings, options.steps)
    parameters = initial_parameters(model, config["seed"], settings.embedding_std)
    backend = make_backend(
        options.device, precision=settings.precision, residual=settings.residual_precision
    )
    arguments = model, parameters, settings, stream, schedule
    side = (
        Ours(*arguments, backend)
        if options.side == "nanoeuler"
        else Theirs(*arguments, options.device)
    )
    judge = Transformer(model, backend.from_host(parameters), backend)
    seconds, began = 0.0, time.perf_counter()
    for step in side.steps(options.steps):
        if step != UNTIMED and step % options.every and step != options.steps:
            continue
        side.finish()
        if step > UNTIMED:
            seconds += time.perf_counter() - began
            judge.parameters[...] = backend.from_host(side.weights())
            judge.refresh()
            held_out = {
                source: measured(judge, store, source, tokenizer, settings.validation_tokens)
                for source in store.sources("validation")
            }
            line = {
                "side": options.side,
                "step": step,
                "tokens": step * stream.rows_per_step * stream.length,
                "seconds": seconds,
                "bits_per_byte": held_out,
            }
            print(
                f"{options.side:14} step {step:6}  {seconds:8.1f} s  "
                + "  ".join(f"{name} {value:.4f}" for name, value in held_out.items()),
                flush=True,
            )
            if options.output:
                with options.output.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
        began = time.perf_counter()


if __name__ == "__main__":
    main()
