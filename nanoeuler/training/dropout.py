"""Dropout in training: the random numbers of a step, and how they come to its pass."""

import zlib
from dataclasses import dataclass, replace

import numpy as np

from nanoeuler.backend.records import Array, ModelWeights
from nanoeuler.model.transformer import Transformer
from nanoeuler.training.objectives import MicroBatch, Objective
from nanoeuler.training.streams import StepRows


def dropout_seeds(seed: int, stream: str, step: int, shape: tuple[int, ...]) -> np.ndarray:
    """What dropout's random numbers of each token of a step are made of, int32."""
    key = np.array([seed, zlib.crc32(stream.encode()) << 32 | step], np.uint64)
    words = np.random.Generator(np.random.Philox(key=key)).integers(2**32, size=shape)
    return words.astype(np.uint32).view(np.int32)


@dataclass(frozen=True)
class Dropping:
    """Another objective of a model with dropout. Rows bring its seeds, behind all other inputs."""

    objective: Objective

    def first_head_weight(self, rows: StepRows) -> float:
        return self.objective.first_head_weight(rows)

    def learn(
        self, model: Transformer, rows: MicroBatch, gradients: ModelWeights, losses_2: Array
    ) -> None:
        *further, seeds_BT = rows.further
        batch = replace(rows.batch, seeds=seeds_BT)
        rows = replace(rows, batch=batch, further=further)
        self.objective.learn(model, rows, gradients, losses_2)
