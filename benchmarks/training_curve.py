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

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from experiment import Experiment, append, parser

from nanoeuler.config.settings import Pretrain
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import FlatBuffer, initial_parameters
from nanoeuler.model.spec import head_name
from nanoeuler.model.transformer import Transformer
from nanoeuler.training.schedule import Schedule
from nanoeuler.training.streams import TextStream

UNTIMED = 3  # steps in which either side prepares itself


class Ours:
    """A training step as the trainer runs it."""

    def __init__(self, experiment: Experiment, parameters: np.ndarray, schedule: Schedule):
        self.state = experiment.state(experiment.model, parameters)
        self.stream, self.schedule = experiment.stream(experiment.seed), schedule
        self.rows = experiment.micro_batch_rows(self.stream)
        self.backend = experiment.backend

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


class Theirs:
    """PyTorch's model in the loop that one would write around it."""

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
        from pytorch_model import make_model

        torch.set_float32_matmul_precision("high")
        self.torch = torch
        self.device = device
        self.config = config
        self.clip = settings.clip_norm
        self.stream, self.schedule = stream, schedule
        self.model = make_model(config, parameters).to(device)
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
    """The weights of PyTorch's model laid out as ours."""
    from pytorch_model import LayerWeights

    c, parameters = config, np.zeros(FlatBuffer.elements(config), np.float32)
    named = FlatBuffer(config, parameters)

    def host(tensor: Any) -> np.ndarray:
        return tensor.detach().float().cpu().numpy()

    if c.family == "gpt2":
        for name, parameter in model.named_parameters():
            named[name][...] = host(parameter)
        return parameters
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


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--steps", type=int, required=True)
    arguments.add_argument("--every", type=int, default=250)
    arguments.add_argument("--side", choices=("nanoeuler", "torch.compile"), required=True)
    options = arguments.parse_args()
    options.set.append("pretrain.document_mask=false")
    experiment = Experiment(options)
    settings, model, backend = experiment.settings, experiment.model, experiment.backend
    schedule = Schedule.of(settings, options.steps)
    parameters = initial_parameters(model, experiment.seed, settings.embedding_std)
    side: Ours | Theirs
    if options.side == "nanoeuler":
        side = Ours(experiment, parameters, schedule)
    elif settings.optimizer == "adamw" and settings.embedding_rate == 1:
        stream = experiment.stream(experiment.seed)
        side = Theirs(model, parameters, settings, stream, schedule, options.device)
    else:
        arguments.error("torch.compile trains with AdamW alone, at one learning rate")
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
            held_out = experiment.measured(judge)
            print(
                f"{options.side:14} step {step:6}  {seconds:8.1f} s  "
                + "  ".join(f"{name} {value:.4f}" for name, value in held_out.items()),
                flush=True,
            )
            line = {
                "side": options.side,
                "step": step,
                "tokens": step * settings.batch_tokens,
                "seconds": seconds,
                "bits_per_byte": held_out,
            }
            append(options.output, line)
        began = time.perf_counter()


if __name__ == "__main__":
    main()
