"""A configuration with which a model that is there goes on learning, on one's own text.

The model's tokenizer, fields and weights are taken as they are; only rates, steps and rows are
chosen. docs/own-text.md has the measurements behind the constants.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nanoeuler import log
from nanoeuler.backend import make_backend
from nanoeuler.config.settings import Configuration, Pretrain
from nanoeuler.corpus.own_text import Entry
from nanoeuler.errors import UserError
from nanoeuler.inference.finding import find_model
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.families import family_of
from nanoeuler.model.files import TOKENIZER, read_description, require_floats
from nanoeuler.model.spec import parameter_count
from nanoeuler.planning import own_run
from nanoeuler.planning.own_run import Speed, Text
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.shards import TokenStore

LEAST_BYTES = 5_000
"""Some three pages: enough for a row, and for a held-out stretch that tells better from worse."""
EPOCHS = 3
"""More epochs memorise a text of 40 kB; fewer teach less of one in another style."""
LEARNING_RATE, OF_WIDTH = 3e-4, 256
"""AdamW's peak, for models of at most this width; wider ones take less, in inverse proportion."""
WEIGHT_DECAY = 0.1
LONGEST_ROW = 1_024
"""Tokens. Longer rows cost memory and time, and rotary positions reach as far as they did."""


@dataclass(frozen=True)
class Start:
    """The model that goes on learning."""

    folder: Path
    config: ModelConfig  # with the rows that it is trained on from now on
    tokenizer: Tokenizer
    template: str | None  # of a model that was tuned to answer
    old_tokens: Path | None = None  # the manifest of those that it has learned from


def read_start(given: Path, output: Path) -> Start:
    """The model in a folder of a model, a run or a stage, for a run in the folder `output`.

    Raises `UserError` where there is none, and where the run would replace it.
    """
    folder = find_model(given)
    config, description = read_description(folder)
    require_floats(folder, description.get("quantized"))
    if output.resolve() in folder.resolve().parents:
        raise UserError(
            f"--from {given}: its model belongs to this run, which would replace it; give the new "
            "run another name with --name"
        )
    template = description.get("template")
    if template is not None:
        log.line(
            "notice",
            f"{folder} was tuned to answer; it goes on with plain text, as any text that it read "
            "before it was tuned, and answers worse the more it learns",
        )
    if family_of(config).positions is None and config.context > LONGEST_ROW:
        log.line(
            "notice",
            f"rows of {LONGEST_ROW:,} tokens in place of the model's {config.context:,}; raise "
            "model.context in the configuration for longer ones",
        )
        config = replace(config, context=LONGEST_ROW)
    tokens = find_tokens(description.get("info", {}).get("tokens_fingerprint"))
    return Start(folder, config, Tokenizer.load(folder / TOKENIZER), template, tokens)


def find_tokens(fingerprint: str | None) -> Path | None:
    """The manifest of the tokens with this fingerprint, where a run has left them here."""
    for manifest in sorted(Path(Configuration.data_dir).glob("corpora/*/tokens-*/manifest.json")):
        with suppress(UserError, OSError):
            if TokenStore.open(manifest).fingerprint == fingerprint:
                return manifest
    return None


def read_text(entries: Sequence[Entry], start: Start) -> Text:
    """Read all files that `entries` of `corpus.sources` name, in tokens of the model.

    Raises `UserError` for less than `LEAST_BYTES`, or less than a row.
    """
    text = own_run.read_text(entries, start.tokenizer, LEAST_BYTES)
    if text.tokens <= start.config.context:
        raise UserError(
            f"{own_run.named(entries)}: {text.tokens:,} tokens for training are fewer than a row "
            f"of the model, {start.config.context:,}; give more text"
        )
    return text


def speed_here(start: Start) -> tuple[Speed, str]:
    """How fast the model learns on this machine, and the name of the engine."""
    return own_run.apart(measure, start.config)


def measure(config: ModelConfig) -> tuple[Speed, str]:
    backend = make_backend()
    return own_run.measure(config, backend, {}), backend.name


def choose_tokens(text: Text, start: Start, minutes: float, speed: Speed) -> int:
    """The tokens to train on: `EPOCHS` readings of the text, or as many as there is time for."""
    affordable = speed.tokens_within(own_run.seconds_of_training(minutes))
    read = text.tokens * (1 + Pretrain.old_share * (start.old_tokens is not None))
    tokens = int(min(affordable, EPOCHS * read))
    tokens = max(tokens, batch_of(start, tokens))  # a step
    log.line(
        "choice",
        f"{parameter_count(start.config):,} parameters of {start.folder}, {tokens:,} tokens "
        f"({tokens / read:.1f} times the text{' and some old' if start.old_tokens else ''}), about "
        f"{log.format_seconds(tokens * speed.of_token)} of training",
    )
    return tokens


def batch_of(start: Start, tokens: float) -> int:
    """Tokens of a step, in a run of so many: as from nothing, and a row at least."""
    return max(own_run.step_tokens(tokens), start.config.context)


def make_config(
    name: str, entries: Sequence[Entry], text: Text, start: Start, tokens: int
) -> dict[str, Any]:
    """The configuration of a run; what it leaves out has its default."""
    batch, model = batch_of(start, tokens), start.config
    steps = math.ceil(tokens / (batch // model.context * model.context))
    pretrain = {
        "init_from": str(start.folder),
        "tokens": tokens,
        "batch_tokens": batch,
        "learning_rate": round(LEARNING_RATE * min(1, OF_WIDTH / model.dim), 8),
        "warmup_steps": min(100, max(1, steps // 10)),
        "weight_decay": WEIGHT_DECAY,
        "schedule": "wsd",
        "decay_share": 1.0,  # linearly to zero
        "minimum_learning_rate_share": 0.0,
        "validate_every": math.ceil(steps / own_run.MEASUREMENTS),
    }
    if start.old_tokens:
        pretrain |= {"old_tokens": str(start.old_tokens)}
    tokenizer = {"vocab_size": start.tokenizer.vocab_size, "path": str(start.folder)}
    return own_run.configuration(name, entries, text, tokenizer, model.to_dict(), pretrain)
