"""A tokenizer and two model folders: a base model of random weights, and one tuned on records."""

from pathlib import Path

import numpy as np
import pytest

from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.model.calls import encode_reply
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.documents import frame
from nanoeuler.model.files import SavedModel, save_model
from nanoeuler.model.flat import initial_parameters
from nanoeuler.model.template import alpaca
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.bpe import learn
from nanoeuler.tokenizer.counting import count_words
from nanoeuler.tokenizer.vocabulary import build
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.state import TrainingState
from nanoeuler.training.streams import StepRows
from tests.small_model import SHAPE

VOCABULARY = 384
FIELDS = SHAPE | {"vocab_size": VOCABULARY, "context": 96}

RECORDS = {
    "Name a colour.": "blue",
    "Where does the fox live?": "In the old mill, café “Zur Mühle”.",
    "Count.": "one two three four five six seven",
}
"""The records that the tuned model has memorised."""


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    texts = [
        alpaca(instruction, "input").encode() * 3 + reply.encode()
        for instruction, reply in RECORDS.items()
    ]
    tokenizer = Tokenizer(build(learn(count_words(texts), VOCABULARY)))
    assert tokenizer.vocab_size == VOCABULARY
    return tokenizer


@pytest.fixture(scope="session")
def tokenizer_path(tokenizer, tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(path)
    return path


@pytest.fixture(scope="session")
def base_folder(tmp_path_factory, tokenizer_path):
    """A base model: random weights, widened so that its choices depend on what it reads."""
    config = ModelConfig.from_dict(FIELDS)
    folder = tmp_path_factory.mktemp("base") / "model"
    save_model(
        folder, SavedModel(config, wide_parameters(config), tokenizer_path, "pretrain", None)
    )
    return folder


def wide_parameters(config: ModelConfig) -> np.ndarray:
    """Fresh parameters, matrices ten times as wide as at the start of training."""
    parameters = initial_parameters(config, 1)
    parameters[parameters != 1] *= 10
    return parameters


@pytest.fixture(scope="session")
def tuned_folder(tmp_path_factory, tokenizer_path):
    """A model tuned on `RECORDS`, a few seconds on one core."""
    return tune(tmp_path_factory.mktemp("tuned") / "model", tokenizer_path, RECORDS)


def tune(
    folder: Path,
    tokenizer_path: Path,
    replies: dict[str, str],
    context=96,
    steps=90,
    template=alpaca,
) -> Path:
    """Tune a model until it has memorised the replies to instructions, which may have calls of the
    calculator. Returns its folder."""
    tokenizer = Tokenizer.load(tokenizer_path)
    fields = FIELDS | {"context": context, "vocab_size": tokenizer.vocab_size}
    config = ModelConfig.from_dict(fields)
    end_id = tokenizer.end_id
    prompts = [[end_id, *tokenizer.encode(template(instruction))] for instruction in replies]
    encoded = [encode_reply(reply, tokenizer) for reply in replies.values()]
    records = [
        [*prompt, *reply.ids, end_id] for prompt, reply in zip(prompts, encoded, strict=True)
    ]
    width = max(map(len, records)) - 1
    tokens = np.full((len(records), width + 2), end_id, np.int32)
    for row, record in enumerate(records):
        tokens[row, : len(record)] = record
    positions, starts, targets = frame(
        tokens[:, :width], tokens[:, width:], end_id, document_mask=False
    )
    for row, (prompt, reply) in enumerate(zip(prompts, encoded, strict=True)):
        first, last = len(prompt) - 1, len(records[row]) - 1
        targets[row, :first] = targets[row, last:] = -1
        targets[row, first : last - 1][~reply.learned] = -1
    weights = (targets >= 0) / (targets >= 0).sum()
    rows = StepRows(tokens[:, :width], positions, starts, targets, weights.astype(np.float32))
    state = TrainingState(
        config, ReferenceBackend(), initial_parameters(config, 1), AdamW(0.9, 0.95, 1e-8, 0.0, 1.0)
    )
    for _ in range(steps):
        result = state.train_step(rows, len(records), 5e-3)
    assert result.first_head_loss < 0.02
    known = config, state.parameters, tokenizer_path, "sft", "alpaca"
    save_model(folder, SavedModel(*known, calculator=any(reply.calls for reply in encoded)))
    return folder
