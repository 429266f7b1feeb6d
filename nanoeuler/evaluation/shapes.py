"""The shapes of the files that the report reads and that have no seal: logs, plan, manifests.

A shape has the keys that the report uses.
"""

from typing import Annotated, NotRequired

from annotated_types import Interval
from typing_extensions import TypedDict

from nanoeuler.storage.shape import LARGEST_COUNT, Amount, Count, Measured, Number, Pair

Positive = Annotated[int, Interval(ge=1, le=LARGEST_COUNT)]


class Provenance(TypedDict, total=False):
    nanoeuler: str
    commit: str | None
    dirty: bool | None
    date: str
    device: str
    cores: Count
    packages: dict[str, str] | None


# ---- metrics.jsonl


class Settings(TypedDict):
    """The part of a section of the configuration that tells about training."""

    learning_rate: NotRequired[Number | None]


class Check(TypedDict, total=False):
    engine: str


class Header(TypedDict, total=False):
    stage: str
    config: dict[str, Settings]
    parameters: Count | None
    total_steps: Count
    micro_batch_rows: Positive
    ranks: Positive
    check: Check
    fingerprint: str | None
    provenance: Provenance | None
    bigram_bits_per_byte: dict[str, Measured]
    records: Count | None
    pairs: Count | None
    held_out_pairs: Count | None
    skipped: list[Pair[Count]]


class Energy(TypedDict, total=False):
    gpu_joules: Amount
    cpu_joules: Amount


class Measurement(Energy):
    step: Count
    tokens: Count
    seconds: Amount


class Step(Measurement):
    loss: Measured
    learning_rate: Number
    gradient_norm: Measured
    tokens_per_second: Number
    mfu: Number | None


class Validation(Measurement):
    validation: dict[str, Measured | None]


# ---- the plan and the manifests


class PlannedStage(TypedDict):
    seconds: Amount | None
    joules: NotRequired[dict[str, Amount]]


class PlannedScore(TypedDict):
    low: Amount
    middle: Amount
    high: Amount


class Plan(TypedDict):
    data_disk: Amount
    results_disk: Amount
    results_peak: Amount
    memory: Amount
    bits_per_byte: dict[str, PlannedScore]
    stages: dict[str, PlannedStage]


class Part(TypedDict):
    documents: Count
    bytes: Count


class Source(TypedDict):
    licence: NotRequired[str | None]
    train: Part
    validation: Part


class Corpus(TypedDict, total=False):
    sources: dict[str, Source]
    fingerprint: str | None


class TokenPart(TypedDict):
    tokens: Count
    bytes: Count


class Tokens(TypedDict, total=False):
    splits: dict[str, dict[str, TokenPart]]
    fingerprint: str | None
    tokenizer: str | None
    corpus: str | None


class Records(TypedDict):
    records: Count


class Instructions(TypedDict):
    name: str
    train: Records
    validation: Records


class Pairs(TypedDict):
    pairs: Count


class Preferences(TypedDict):
    name: str
    train: Pairs
    validation: Pairs


RECORDS: dict[str, type] = {"record": Instructions, "pair": Preferences}
"""The manifest of records, by their unit."""
