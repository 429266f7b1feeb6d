"""A novel learned by nanoGPT's character-level recipe, for as many seconds as wanted.

    nanoeuler train my-novel.txt --minutes 10
    python benchmarks/novel.py data/corpora/my-novel --seconds 600
    python benchmarks/novel.py data/corpora/my-novel --seconds 600 --dim 192 --rate 2e-3 …

Needs the extra `torch` and gcc. The text is what `nanoeuler train` has learned from, held-out part
included, so that both sides have the same. Defaults are those that nanoGPT gives for a laptop's
CPU: 4 layers of 128, 64 characters, 12 rows, AdamW from 1e-3 to 1e-4. Time is that of training a
compiled model on all cores (or --threads); compiling and scoring are free. As with `keep: best`,
the weights with the best held-out score count. Each held-out character is predicted from at least
half a row.
"""

import argparse
import math
import os
import sys
import time
from pathlib import Path

import torch
from pytorch_gpt2 import PyTorchGpt2

from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters

WARMUP_STEPS, LEAST_SHARE = 100, 0.1
MEASUREMENTS = 10


def characters(corpus: Path) -> tuple[str, str]:
    """The training text and the held-out one."""
    texts = []
    for split in ("train", "validation"):
        paths = sorted(corpus.glob(f"{split}/*.txt"))
        texts.append("".join(path.read_text("utf-8") for path in paths))
    return texts[0], texts[1]


@torch.no_grad()
def bits_per_byte(model: PyTorchGpt2, ids: torch.Tensor, size_in_bytes: int) -> float:
    """Rows overlap by a half, whose second half alone counts; the first row counts whole."""
    model.eval()
    length = model.config.context
    half = length // 2
    padding = -(len(ids) - 1) % half
    inputs = torch.cat([ids[:-1], ids.new_zeros(padding)]).unfold(0, length, half)
    targets = torch.cat([ids[1:], ids.new_full((padding,), -1)]).unfold(0, length, half).clone()
    targets[1:, :half] = -1
    nats = sum(
        model(x, y).item() * int((y != -1).sum())
        for x, y in zip(inputs.split(64), targets.split(64), strict=True)
    )
    model.train()
    return nats / math.log(2) / size_in_bytes


@torch.no_grad()
def sample(model: PyTorchGpt2, ids: list[int], count: int, temperature: float) -> list[int]:
    model.eval()
    for _ in range(count):
        logits = model.logits(torch.tensor([ids[-model.config.context :]]))[0, -1]
        ids = [*ids, int(torch.multinomial(torch.softmax(logits / temperature, 0), 1))]
    return ids


def train(options: argparse.Namespace) -> None:
    text, held_out = characters(options.corpus)
    letters = sorted(set(text + held_out))
    ids = {letter: index for index, letter in enumerate(letters)}
    train_ids, held_out_ids = (
        torch.tensor([ids[letter] for letter in part]) for part in (text, held_out)
    )
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    config = ModelConfig.from_dict(
        {
            "family": "gpt2",
            "vocab_size": len(letters),
            "dim": options.dim,
            "layers": options.layers,
            "heads": options.heads,
            "kv_heads": options.heads,
            "ffn": 4 * options.dim,
            "context": options.context,
            "mtp_heads": 1,
        }
    )
    parameters = initial_parameters(config, options.seed)
    model = PyTorchGpt2(config, parameters, options.dropout)
    forward = torch.compile(model)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": options.decay},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=options.rate, betas=(0.9, 0.99), fused=True)

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(len(train_ids) - options.context, (options.rows, 1))
        rows = train_ids[starts + torch.arange(options.context + 1)]
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    forward(*batch()).backward()  # compiles
    spent, step, best, kept = 0.0, 0, math.inf, None
    while spent < options.seconds:
        before, share = time.monotonic(), spent / options.seconds
        cosine = LEAST_SHARE + (1 - LEAST_SHARE) * (1 + math.cos(math.pi * share)) / 2
        for group in optimizer.param_groups:
            group["lr"] = options.rate * min(cosine, (step + 1) / WARMUP_STEPS)
        optimizer.zero_grad(set_to_none=True)
        loss = forward(*batch())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step, spent = step + 1, spent + time.monotonic() - before
        if int(MEASUREMENTS * spent / options.seconds) > int(MEASUREMENTS * share):
            score = bits_per_byte(model, held_out_ids, len(held_out.encode()))
            if score < best:
                best = score
                kept = {name: value.clone() for name, value in model.state_dict().items()}
            readings = step * options.rows * options.context / len(train_ids)
            print(
                f"{spent:.0f} s, {step} steps, {readings:.1f} readings: "
                f"loss {loss.item():.3f}, {score:.3f} bits per byte",
                file=sys.stderr,
                flush=True,
            )
    model.load_state_dict(kept)
    print(f"{len(parameters):,} parameters, {step} steps, best {best:.4f} bits per byte")
    for prompt in options.prompt or []:
        written = sample(model, [ids[c] for c in prompt], 1500, options.temperature)
        print("".join(letters[index] for index in written) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n\n")[0])
    parser.add_argument("corpus", type=Path, help="folder with train/ and validation/")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    for name, default in {"layers": 4, "heads": 4, "dim": 128, "context": 64, "rows": 12}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--decay", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--prompt", action="append", help="write 1,500 characters that go on")
    parser.add_argument("--temperature", type=float, default=0.7)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
