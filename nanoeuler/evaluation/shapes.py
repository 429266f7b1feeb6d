"""The shapes of the files that the report and the comparison read.

A shape has the keys that they use.
"""

from typing import Annotated, NotRequired, Required

from annotated_types import Interval, Len
from typing_extensions import TypedDict

from nanoeuler.storage.shape import Amount, Count, Measured, Number, Pair, Positive


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


class Header(TypedDict, total=False):
    stage: str
    config: dict[str, Settings]
    parameters: Count | None
    fingerprint: str | None
    provenance: Provenance | None
    bigram_bits_per_byte: dict[str, Measured]
    records: Count | None
    pairs: Count | None
    held_out_pairs: Count | None
    skipped: list[Pair[Count]]


class Measurement(TypedDict):
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


# ---- evaluation/<stage>.json


class EvaluationSettings(TypedDict, total=False):
    validation_tokens: Required[Count]
    temperature: Number
    top_p: Number


class HeldOut(TypedDict):
    bits_per_byte: Measured
    head_accuracy: list[Measured]
    tokens: Count
    of_tokens: Count


class Perplexity(TypedDict):
    score: Annotated[float, Interval(ge=0, le=1e305)]  # exp of at most 700 nats


class TaskScore(TypedDict):
    metric: str
    items: Count
    score: Measured
    standard_error: Measured | None
    baseline: Measured
    perplexity: NotRequired[Perplexity | None]


class Replies(TypedDict):
    stopped: Measured
    mean_reply_tokens: Measured
    repetition: Measured | None


class Chat(Replies):
    prompts: Count
    sampled: Replies


class KindScore(TypedDict):
    questions: Count
    score: Measured


CommonestAnswer = TypedDict("CommonestAnswer", {"answer": str, "score": Measured, "from": str})


class KindBaseline(TypedDict):
    score: Measured


class Reply(TypedDict):
    instruction: str
    input: str
    answer: str
    reply: str
    correct: bool


class StyleShare(TypedDict):
    share: Measured
    standard_error: Measured | None


class Style(TypedDict):
    sampled: StyleShare


class Answers(Replies):
    questions: Count
    score: Measured
    standard_error: Measured | None
    kinds: dict[str, KindScore]
    commonest_answer: CommonestAnswer
    commonest_answer_of_kind: KindBaseline | None
    replies: list[Reply]
    style: Style | None


class Statistic(TypedDict):
    mean: Number
    quartiles: Pair[Number]


Statistics = list[Statistic | None]


class Trajectory(TypedDict):
    step_size: Number
    layers: Positive
    tokens: Count
    norm: Annotated[Statistics, Len(1)]  # at least that of the embedding
    relative_step: Statistics
    cosine: Statistics
    stream_angle: Statistics
    step_angle: Statistics


class ReadText(TypedDict):
    tokens: list[str]
    bits: list[Measured]


class Lens(TypedDict):
    tokens: list[str]
    guesses: list[list[list[str]]]
    shares: list[list[list[Measured]]]
    attention: list[list[list[list[Count]]]]


class Reading(TypedDict):
    texts: dict[str, ReadText]
    lens: Lens | None


class Sample(TypedDict):
    prompt: str
    text: str
    stopped: bool
    continues: bool


class ModelForm(TypedDict):
    context: Count


class Material(TypedDict, total=False):
    name: str | None
    licence: str | None


class ModelInfo(TypedDict, total=False):
    instructions: Material | None
    preferences: Material | None


class Evaluation(TypedDict, total=False):
    held_out: Required[dict[str, HeldOut] | None]
    settings: Required[EvaluationSettings]
    window: Required[Count]
    parameters: Count | None
    template: str | None
    model: ModelForm | None
    model_info: ModelInfo | None
    tasks: dict[str, TaskScore] | None
    chat: Chat | None
    answers: Answers | None
    samples: list[Sample] | None
    trajectory: Trajectory | None
    reading: Reading | None
    provenance: Provenance | None


# ---- gradients.json


class CheckedTensor(TypedDict):
    case: str
    tensor: str
    elements: Count
    error: Number | None
    worst: Number | None
    ok: bool


class CheckedEngine(TypedDict):
    engine: str
    device: str
    precision: str
    tensors: Count
    passed: bool
    largest_error: Number | None
    limit: Number
    rows: list[CheckedTensor]


class Gradients(TypedDict):
    rows: list[CheckedTensor]
    tolerance: Number
    passed: bool
    largest_error: Number | None
    quick: bool
    engine: CheckedEngine


# ---- the plan and the manifests


class PlannedStage(TypedDict):
    seconds: Amount | None


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


# ---- others


class ModelDescription(TypedDict):
    """The section of a model's config.json."""

    info: NotRequired["TrainedModel | None"]


class TrainedModel(TypedDict, total=False):
    step: Count | None
