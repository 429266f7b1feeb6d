"""Train a language model on a text file: all of it in one file, to be read from top to bottom.

    python examples/train.py my-novel.txt
    python examples/train.py my-novel.txt --steps 3000 --dim 128 --layers 4

Bytes are the tokens, so that there is no tokenizer. The model is the one that `nanoeuler train`
trains, with one head; its formulas stand in nanoeuler/backend/reference.py, whose NumPy computes
everything here. The weights have the bits that the trainer of the package gives with that engine
(tests/test_examples.py). What the package adds is speed, other engines, checkpoints and data.

With the books of `make demo` (data/corpora/demo/train/gutenberg.txt, 450 kB), the 1,000 steps take
half a minute on one core. Held-out text then costs 1.1 bits per byte, where random weights take 8,
and the sample is of their words. Another novel's text is harder to foretell.
"""

import argparse
import math
import time
from pathlib import Path

import numpy as np

from nanoeuler.backend.records import FlatState, LogitRows, NormGradients, RmsNorm
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.backend.runtime import Arena, in_one_block
from nanoeuler.model.blocks.attention import Attention
from nanoeuler.model.blocks.block import BlockPass, Rows, StreamBuffers
from nanoeuler.model.blocks.swiglu import Swiglu
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters, model_weights
from nanoeuler.training.optimizer.adamw import AdamW

VOCABULARY = 256  # bytes
HELD_OUT = 0.1  # share of the text, at its end
ADAMW = AdamW(beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1, clip_norm=1.0)


class Model:
    """A decoder-only transformer and the arrays of a pass over B rows of T tokens, N = B · T."""

    def __init__(self, config: ModelConfig, parameters_P: np.ndarray, B: int, T: int):
        """`parameters` is a flat buffer of all weights, which models of several shapes may share.

        `weights` and `gradients` are views of it and of a buffer like it.
        """
        self.config, self.ops = config, ReferenceBackend(parameters_P.dtype)
        self.parameters_P, self.gradients_P = parameters_P, np.zeros_like(parameters_P)
        self.weights = model_weights(config, self.parameters_P)
        self.gradients = model_weights(config, self.gradients_P)
        layers = range(config.layers)
        self.blocks = [make(config, layer) for layer in layers for make in (Attention, Swiglu)]

        # what each block keeps from its forward pass for its backward pass
        def lay_out(arena: Arena) -> list:
            kept = {"training": True, "first": None}
            return [block.activations(arena, self.ops, B, T, **kept) for block in self.blocks]

        self.saved = in_one_block(lay_out, self.ops)

        # the residual stream in front of each block and behind the last, each with its norm
        N, D, epsilon, zeros = B * T, config.dim, config.norm_epsilon, self.ops.zeros
        normed_ND, dnormed_ND, delta_ND, dx_ND = (zeros((N, D)) for _ in range(4))
        self.stream = StreamBuffers(normed_ND, dnormed_ND, delta_ND, dx_ND)
        norm_weights = [block.norm for block in self.weights.blocks] + [self.weights.final_norm]
        self.norms = [
            RmsNorm(zeros((N, D)), weight_D, epsilon, normed_ND, zeros((N,)))
            for weight_D in norm_weights
        ]
        self.logits_NV = zeros((N, len(self.weights.heads)))
        self.logprobs_N, self.lse_N = zeros((N,)), zeros((N,))

        # where the tokens stand: every row is a document of its own
        positions_BT = np.tile(np.arange(T, dtype=np.int32), (B, 1))
        self.rows = Rows(
            positions_BT.reshape(-1),
            np.zeros((B, T), np.int32),
            np.zeros((B,), np.int32),
            self.ops.rope_table(T, config.head_size, config.rope_theta),
        )

    def forward(self, ids_BT: np.ndarray) -> np.ndarray:
        """From token ids to logits, (N, V).

            x = E[ids]
            x = x + h · attention(norm(x))      for every layer
            x = x + h · swiglu(norm(x))
            logits = norm(x) Wᵀ

        A block reads the normed stream, adds its step to the stream, and norms it for the next.
        """
        ops, w, norms = self.ops, self.weights, self.norms
        ops.embedding(ids_BT.reshape(-1), w.embedding, norms[0].x_ND)
        ops.norm(norms[0])
        for i, block in enumerate(self.blocks):
            p = BlockPass(self.rows, norms[i], self.stream, norms[i + 1])
            block.forward(ops, w.blocks[i], self.saved[i], p)
        ops.linear(self.stream.normed, w.heads, self.logits_NV)
        return self.logits_NV[:, :VOCABULARY]

    def loss(self, ids_BT: np.ndarray, targets_BT: np.ndarray) -> float:
        """Mean cross-entropy of the next tokens, in nats."""
        logits_NV = self.forward(ids_BT)
        found = self.logprobs_N, self.lse_N
        self.ops.cross_entropy(LogitRows(logits_NV, targets_BT.reshape(-1), *found))
        return -float(self.logprobs_N.mean(dtype=np.float64))

    def backward(self, ids_BT: np.ndarray, targets_BT: np.ndarray) -> None:
        """From the loss of the last `loss` to `gradients`: the same way back, block by block."""
        ops, w, dw, stream = self.ops, self.weights, self.gradients, self.stream
        N = ids_BT.size
        weights_N = np.full(N, 1 / N, self.parameters_P.dtype)  # of the mean
        targets_N, found = targets_BT.reshape(-1), (self.logprobs_N, self.lse_N)
        dlogits_NV = self.logits_NV  # the op puts the gradient in the logits' place
        rows = LogitRows(dlogits_NV[:, :VOCABULARY], targets_N, *found, weights_N)
        ops.cross_entropy_backward(rows)
        ops.linear_backward_weight(dlogits_NV, stream.normed, dw.heads, accumulate=False)
        ops.linear_backward_input(dlogits_NV, w.heads, stream.dnormed)
        into = NormGradients(stream.dx, dw.final_norm)
        ops.norm_backward(stream.dnormed, self.norms[-1], into)
        for i in reversed(range(len(self.blocks))):
            p = BlockPass(self.rows, self.norms[i], stream, self.norms[i + 1])
            self.blocks[i].backward(ops, w.blocks[i], dw.blocks[i], self.saved[i], p)
        ops.embedding_backward(ids_BT.reshape(-1), stream.dx, dw.embedding, accumulate=False)


class Trainer:
    """A model and its optimizer."""

    def __init__(self, model: Model):
        self.model, self.steps = model, 0
        everything = slice(0, len(model.parameters_P))
        self.optimizer = ADAMW.make(model.config, model.ops, everything)

    def step(self, ids_BT: np.ndarray, targets_BT: np.ndarray, learning_rate: float) -> float:
        """Rows → loss → gradients → update; returns the loss before the update."""
        model = self.model
        loss = model.loss(ids_BT, targets_BT)
        model.backward(ids_BT, targets_BT)
        parameters_P = model.parameters_P
        flat = FlatState(parameters_P, parameters_P, model.gradients_P)
        schedule_2, losses_2 = np.array([learning_rate, self.steps]), np.array([loss, loss])
        squares, report_2 = model.ops.squares(model.gradients_P), np.zeros(2)
        told = squares, schedule_2, losses_2, report_2
        self.optimizer.update(flat, model.ops.begin_update(*told, ADAMW.clip_norm))
        self.steps += 1
        return loss


def learning_rate_at(step: int, steps: int, peak: float) -> float:
    """Linear warm-up over a tenth of the steps, then a cosine down to a tenth of the peak."""
    warm_up = max(1, steps // 10)
    if step < warm_up:
        return peak * (step + 1) / warm_up
    done = (step - warm_up) / max(1, steps - warm_up)
    return peak * (0.1 + 0.9 * (1 + math.cos(math.pi * done)) / 2)


def windows(
    text: np.ndarray, B: int, T: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """B random stretches of T bytes, and for each byte the next one: int32 (B, T) both."""
    starts = random.integers(0, len(text) - T, B)
    rows = np.stack([text[start : start + T + 1] for start in starts]).astype(np.int32)
    return rows[:, :-1].copy(), rows[:, 1:].copy()


def bits_per_byte(model: Model, text: np.ndarray, B: int, T: int, passes: int = 4) -> float:
    """Of random stretches of a text: always the same ones."""
    random = np.random.default_rng(0)
    losses = [model.loss(*windows(text, B, T, random)) for _ in range(passes)]
    return sum(losses) / passes / math.log(2)


def sample(model: Model, prompt: bytes, count: int, T: int, random: np.random.Generator) -> str:
    """Continue a text by `count` bytes, each drawn from the model's distribution.

    Every byte takes a whole pass over the last T bytes: see inference/ for a cache.
    """
    text = list(prompt)
    for _ in range(count):
        seen = text[-T:]
        ids_BT = np.zeros((1, T), np.int32)
        ids_BT[0, : len(seen)] = seen  # no token sees the zeros behind it
        logits_V = model.forward(ids_BT)[len(seen) - 1].astype(np.float64)
        shares_V = np.exp(logits_V - logits_V.max())
        text.append(int(random.choice(VOCABULARY, p=shares_V / shares_V.sum())))
    return bytes(text).decode("utf-8", "replace")


def train(
    data: bytes,
    *,
    steps: int = 1000,
    dim: int = 64,
    layers: int = 2,
    B: int = 16,
    T: int = 64,
    peak: float = 3e-3,
    seed: int = 1,
) -> tuple[Model, float]:
    """Train on a text and tell how it goes; returns the model and its held-out bits per byte."""
    text = np.frombuffer(data, np.uint8)
    border = int(len(text) * (1 - HELD_OUT))
    if len(text) - border <= T + 1:
        raise SystemExit(f"the text has {len(text):,} bytes; it needs at least {20 * T:,}")
    heads = max(1, dim // 32) * 2
    config = ModelConfig(
        vocab_size=VOCABULARY,
        dim=dim,
        layers=layers,
        heads=heads,
        kv_heads=heads // 2,  # two query heads share keys and values
        ffn=dim * 8 // 3,
        context=T,
        mtp_heads=1,
    )
    model = Model(config, initial_parameters(config, seed), B, T)
    trainer, random = Trainer(model), np.random.default_rng(seed)
    print(f"{len(model.parameters_P):,} numbers, {border:,} bytes to learn from")
    began = time.monotonic()
    for step in range(steps):
        rows = windows(text[:border], B, T, random)
        loss = trainer.step(*rows, learning_rate_at(step, steps, peak))
        if (step + 1) % max(1, steps // 10) == 0:
            held_out = bits_per_byte(model, text[border:], B, T)
            seconds = time.monotonic() - began
            print(
                f"step {step + 1:5} of {steps}: loss {loss:.3f}, held-out {held_out:.3f} bits "
                f"per byte, {seconds:.0f} s"
            )
    alone = Model(config, model.parameters_P, 1, T)
    print(sample(alone, data[border : border + 20], 200, T, random))
    return model, held_out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("text", type=Path, help="a text file of some 100 kB or more")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--dim", type=int, default=64, help="a multiple of 32")
    parser.add_argument("--layers", type=int, default=2)
    options = parser.parse_args()
    train(options.text.read_bytes(), steps=options.steps, dim=options.dim, layers=options.layers)


if __name__ == "__main__":
    main()
