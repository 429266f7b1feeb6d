"""Jobs for a batch, and what comes of them."""

import time

import numpy as np

from nanoeuler.inference.sampling import GREEDY
from nanoeuler.serving.batch import Job
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.tokenizer import StreamDecoder


class Asked:
    """A job and what was delivered for it."""

    tokenizer: Tokenizer  # see conftest

    def __init__(self, prompt, sampling=GREEDY, max_tokens=20, **fields):
        samplings = sampling if isinstance(sampling, list) else [sampling]
        self.pieces = []
        self.job = Job(prompt, samplings, max_tokens, self.pieces.append, **fields)

    def text(self, choice=0):
        """As the server makes it of the pieces."""
        text = StreamDecoder(self.tokenizer, self.job.stops)
        parts = [text.push(*piece.ids) for piece in self.pieces if piece.choice == choice]
        return "".join(parts) + text.flush()

    def finish(self, choice=0):
        (finish,) = {p.finish for p in self.pieces if p.choice == choice and p.finish}
        return finish

    def tokens(self, choice=0):
        return sum(len(piece.ids) for piece in self.pieces if piece.choice == choice)


def random_prompt(length, seed):
    random = np.random.default_rng(seed)
    return [0, *random.integers(16, 384, length - 1).tolist()]


def run(batch, *asked):
    for each in asked:
        batch.add(each.job)
    while batch.busy:
        step(batch, time.monotonic())


def step(batch, now=0.0):
    batch.step(now)
    batch.deliver()


def alone(model, asked):
    """The text that `generate` writes for each choice of a job."""
    job = asked.job
    return [
        "".join(model.writer.stream(job.prompt, sampling, job.max_tokens))
        for sampling in job.samplings
    ]
