"""Bits per byte of held-out text, from the size of a model and the text that it reads.

    loss(N, D) = E + A / N^a + B / D^b        (Hoffmann et al. 2022, equation 2)

N counts the parameters of the blocks and of the first head, D the bytes of text. The numbers come
from 23 runs of ours; docs/scaling-laws.md has the runs and the fit, how well the law foretold
others, and what it must not be used for.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nanoeuler.model.config import ModelConfig
from nanoeuler.model.spec import parameters_by_kind

UNIT = 1e7
"""N and D are counted in tens of millions, so that A and B are what they cost there."""
REPEATED = 15.39
"""R* of Muennighoff et al. 2023: how soon repeating a text brings nothing more."""


@dataclass(frozen=True)
class Law:
    """The five numbers of a fit."""

    floor: float  # E
    size: float  # A
    size_power: float  # a
    data: float  # B
    data_power: float  # b

    def loss(self, parameters: float, text_bytes: float) -> float:
        """Bits per byte."""
        return (
            self.floor
            + self.size * (parameters / UNIT) ** -self.size_power
            + self.data * (text_bytes / UNIT) ** -self.data_power
        )


LAWS = {
    "gutenberg": Law(1.1763, 0.2004, 0.2882, 0.8086, 0.7540),
    "fineweb": Law(0.8153, 0.2497, 0.3145, 1.0513, 0.6793),
}
"""By the source whose held-out text is read."""
ERRORS = {"gutenberg": 0.0078, "fineweb": 0.0108}
"""Root mean square of the error about a run that the fit left out."""
OTHER_TEXT = 0.03
"""How far apart two held-out texts of a source were, at most, for much the same recipe."""
BEYOND = 0.03
"""The largest error about runs as far outside as is allowed here."""
ADAMW = 1.03, 1.10, 1.17
"""AdamW's loss over Muon's: the lowest, the middle and the highest of three runs."""
SIZES = 1.26e6, 104e6  # N of the runs
DATA = 26e6, 430e6  # D of the runs, rounded outwards
BATCHES = 16_384, 65_536
VOCABULARIES = 2_048, 16_384
CONTEXTS = 256, 2_048
MOST_EPOCHS = 3
LEAST_SHARE = 0.2


class NoEstimate(Exception):
    """Why the law says nothing of a run: the end of a sentence."""


@dataclass(frozen=True)
class Estimate:
    """Bits per byte, and the range in which nineteen of twenty runs should end."""

    low: float
    middle: float
    high: float


def size_of(model: ModelConfig) -> int:
    """N of a model."""
    kinds = parameters_by_kind(model)
    return kinds["attention"] + kinds["mlp"] + kinds["norms"] + model.vocab_size * model.dim


def unique_bytes(read: float, text: float) -> float:
    """The bytes of new text that bring as much as `read` bytes of a text of `text` bytes.

    Muennighoff et al. 2023, equation 5: U + U · R* · (1 − exp(−R / R*)) for R repetitions.
    """
    if read <= text:
        return read
    repetitions = read / text - 1
    return text * (1 + REPEATED * (1 - math.exp(-repetitions / REPEATED)))


def estimate(
    config: Mapping[str, Any], sources: Mapping[str, float], epochs: float
) -> dict[str, Estimate]:
    """The bits per byte of each source after pretraining.

    `sources`: bytes of the text for training, by source. Raises `NoEstimate`.
    """
    model, pretrain = ModelConfig.from_dict(config["model"]), config["pretrain"]
    text = sum(sources.values())
    parameters, data = size_of(model), unique_bytes(epochs * text, text)
    check(config, model, sources, epochs)
    check_range("parameters in blocks and head", parameters, SIZES, 2, 4)
    check_range("bytes of text", data, DATA, 2, 2)
    inside = SIZES[0] <= parameters <= SIZES[1] and DATA[0] <= data <= DATA[1]
    adamw = (1.0, 1.0, 1.0) if pretrain["optimizer"] == "muon" else ADAMW
    found = {}
    for source in sources:
        spread = 2 * ERRORS[source] + OTHER_TEXT + (0.0 if inside else BEYOND)
        bits = LAWS[source].loss(parameters, data)
        low, middle, high = (bits * factor for factor in adamw)
        found[source] = Estimate(low * (1 - spread), middle, high * (1 + spread))
    return found


def check(
    config: Mapping[str, Any], model: ModelConfig, sources: Mapping[str, float], epochs: float
) -> None:
    """Raise `NoEstimate` for a run that is unlike those of the fit."""
    pretrain, text = config["pretrain"], sum(sources.values())
    if "sample" in config:
        raise NoEstimate("an invented text says nothing of real ones")
    if set(sources) != set(LAWS) or min(sources.values()) < LEAST_SHARE * text:
        raise NoEstimate("the fit is of a text of books and web pages, about as much of both")
    if model.family != "llama" or pretrain["grow_at"] or pretrain["short_rows_until"]:
        raise NoEstimate("the fit is of Llamas that do not grow and see whole rows")
    if 2 * model.mtp_weights[0] < sum(model.mtp_weights):
        raise NoEstimate("the fit is of the first head, which has less than half of this loss")
    if pretrain["init_from"]:
        raise NoEstimate("the fit is of models that begin with random weights")
    if epochs > MOST_EPOCHS:
        raise NoEstimate(f"{epochs:.2g} epochs are more than the {MOST_EPOCHS} that it allows")
    check_range("entries of the vocabulary", model.vocab_size, VOCABULARIES)
    check_range("tokens of context", model.context, CONTEXTS)
    check_range("tokens of a step", pretrain["batch_tokens"], BATCHES)


def check_range(
    what: str, value: float, known: tuple[float, float], below: float = 1, above: float = 1
) -> None:
    """Raise `NoEstimate` unless `value` is at most that many times outside of what is known."""
    low, high = known[0] / below, known[1] * above
    if not low <= value <= high:
        raise NoEstimate(f"{value:,.0f} {what} are not within {low:,.0f} to {high:,.0f}")
