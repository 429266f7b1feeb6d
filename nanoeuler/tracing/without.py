"""What a document was worth: pretraining again without it, on rows that are otherwise the same.

The seed, the order of the rows and everything else are those of the run. The tokens of the document
are no targets any more, and nobody sees them. So a difference between the two models comes from it
alone, on the machine and with the versions that made the first.
"""

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nanoeuler.config import RESOLVED, write_resolved
from nanoeuler.config.paths import Paths
from nanoeuler.config.settings import Pretrain
from nanoeuler.config.stages import PRETRAIN
from nanoeuler.corpus.origins import DocumentOrigin, Origins
from nanoeuler.corpus.own_text import slug
from nanoeuler.errors import UserError
from nanoeuler.inference.api import LanguageModel, load_on
from nanoeuler.model.documents import TokenSlices
from nanoeuler.model.files import CONFIG
from nanoeuler.model.likelihood import bits_per_byte, token_byte_lengths
from nanoeuler.storage.files import link_or_copy, write_json
from nanoeuler.storage.folders import require_ours
from nanoeuler.storage.integrity import seal
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.shards import TokenStore
from nanoeuler.tracing.index import document_starts
from nanoeuler.tracing.lessons import row_places
from nanoeuler.tracing.runs import configuration_in
from nanoeuler.training.checkpoint import STATE, Checkpoints
from nanoeuler.training.job import Job, fingerprint
from nanoeuler.training.loop import train
from nanoeuler.training.stages import pretrain
from nanoeuler.training.stages.inputs import Inputs

if TYPE_CHECKING:
    from nanoeuler.backend.ops import Backend

MOST_NAMED = 5
PROMPT_WORDS, REPLY_TOKENS = 8, 48
"""Words of the document that the models continue, and tokens of what they write."""
LONGEST_SENTENCE = 300
"""Tokens in which the end of one is looked for."""
SENTENCE = re.compile(r"[.!?]\s+(?=\S)")


@dataclass
class LeftOut:
    """A run, and documents that are left out of its text for training."""

    run: Path
    config: dict[str, Any]
    store: TokenStore
    tokenizer: Tokenizer
    documents: list[DocumentOrigin]
    places: np.ndarray  # (documents, 2) first token and end of all documents of the text
    chosen: np.ndarray  # (documents,) bool: those that are left out

    @property
    def folder(self) -> Path:
        """Folder of the run that trains without them."""
        names = "-".join(slug(Path(each.address).stem or each.title) for each in self.documents)
        return self.run.with_name(f"{self.run.name}-without-{names}")

    def text(self, chosen: np.ndarray) -> np.ndarray:
        """The tokens of some documents, one after another."""
        tokens = self.store.tokens("train")
        return np.concatenate([tokens[first:stop] for first, stop in self.places[chosen].tolist()])

    def score(self, model: LanguageModel, tokens: TokenSlices) -> float:
        """Bits per byte of a model on some text."""
        lengths, settings = token_byte_lengths(self.tokenizer), self.config[PRETRAIN.section]
        size = int(lengths[tokens[0 : len(tokens)]].sum())
        mask, most = settings["document_mask"], settings["validation_tokens"]
        given = tokens, size, self.tokenizer, mask, most
        return bits_per_byte(model.transformer, *given).bits_per_byte

    @property
    def rest(self) -> np.ndarray:
        """Other documents, evenly from the whole text, of about as many tokens as a validation."""
        others = np.flatnonzero(~self.chosen)
        sizes = self.places[others, 1] - self.places[others, 0]
        wanted = self.config[PRETRAIN.section]["validation_tokens"] / max(1.0, sizes.mean())
        count = min(len(others), max(1, round(wanted)))
        return self.text(others[np.arange(count) * len(others) // count])


def leave_out(run: Path, names: Sequence[str]) -> LeftOut:
    """The documents that are called `names` (`Origins.called`) in the corpus of the run `run`.

    Raises `UserError` where a name stands for no document or several, or stands there twice, and
    where the run has no pretrained model.
    """
    run = run.absolute()
    config = configuration_in(run)
    paths, model = Paths(config), run / PRETRAIN.name / "model"
    if not (model / CONFIG).is_file():
        raise UserError(
            f"{run}: has no pretrained model to compare with (no {model / CONFIG}); run it first: "
            f"nanoeuler run {run / RESOLVED} pretrain"
        )
    tokenizer, store = Tokenizer.load(paths.tokenizer), TokenStore.open(paths.tokens)
    origins = Origins(Path(paths.corpus_manifest))
    found: dict[DocumentOrigin, list[int]] = {}
    for name in names:
        origin, rows = only(origins, name)
        if origin in found:
            raise UserError(f"{name}: this document is named twice; name it once")
        found[origin] = rows
    places, chosen, offset = [], [], 0
    for source, entry in store.manifest["splits"]["train"].items():
        starts = np.concatenate(
            [*document_starts(store, "train", source, tokenizer.end_id)]
        ).astype(np.int64)
        places.append(offset + np.stack([starts, np.append(starts[1:], entry["tokens"])], axis=1))
        rows = [row for origin, rows in found.items() if origin.source == source for row in rows]
        chosen.append(np.isin(np.arange(len(starts)), rows))
        offset += entry["tokens"]
    left_out = np.concatenate(chosen)
    if left_out.all():
        raise UserError(f"{run}: nothing is left of its text for training; name fewer documents")
    everything = run, config, store, tokenizer, [*found]
    return LeftOut(*everything, np.concatenate(places), left_out)


def only(origins: Origins, name: str) -> tuple[DocumentOrigin, list[int]]:
    """The document called `name`, and its numbers in the source's text for training."""
    found = origins.called(name)
    if len(found) > 1:
        which = ", ".join(f"{each.source}:{each.number}" for each, _ in found[:MOST_NAMED])
        more = f" and {len(found) - MOST_NAMED:,} more" if len(found) > MOST_NAMED else ""
        raise UserError(f"{len(found):,} documents are called {name}; name one: {which}{more}")
    if not found:
        raise UserError(
            f"{origins.path}: has no document {name}; give a title, a URL, a file, or SOURCE:NUMBER"
            " as `nanoeuler trace` prints them"
        )
    if not found[0][1]:
        raise UserError(f"{name}: is held out or was dropped, so that no model has read it")
    return found[0]


def train_without(left_out: LeftOut, backend: "Backend") -> Path:
    """The folder of the model that was pretrained without the documents; resumes if it stopped."""
    config, folder = left_out.config, left_out.folder
    require_ours(folder / PRETRAIN.name / "model")
    folder.mkdir(parents=True, exist_ok=True)
    write_resolved(folder / RESOLVED, config | {"run": folder.name})
    settings = Pretrain.read(config[PRETRAIN.section])
    if settings.keep == "final":  # measurements on the way decide nothing
        settings = replace(settings, validate_every=settings.tokens)
    inputs = Inputs.of_run(
        config,
        PRETRAIN,
        settings,
        output=folder / PRETRAIN.name,
        without=[(first, stop) for first, stop in left_out.places[left_out.chosen].tolist()],
    )
    job = pretrain.job(inputs, backend)
    take_shared_checkpoint(left_out, job)
    return train(job)


def take_shared_checkpoint(left_out: LeftOut, job: Job) -> None:
    """Let `job` begin with the run's last checkpoint from before the documents were first read, if
    there is one: up to there both trainings are the same."""
    checkpoints = Checkpoints(job.output / "checkpoints")
    if checkpoints.steps() or job.settings.keep == "best":  # which may be weights of a later step
        return
    stream = job.stream
    rows = np.arange(stream.row_count)[:, None] * stream.length
    chosen = left_out.places[left_out.chosen]
    read = ((chosen[:, 0] < rows + stream.length) & (rows < chosen[:, 1])).any(axis=1)
    places = row_places(left_out.config["seed"], PRETRAIN.section, 0, stream.row_count)
    first = int(places[read].min()) // stream.rows_per_step
    of_run = Checkpoints(left_out.run / PRETRAIN.name / "checkpoints")
    state = of_run.newest(first)
    inputs = {key: value for key, value in job.inputs.items() if key != "without"}
    whole = fingerprint(job.stage, job.settings, candidate=job.backend.candidate, **inputs)
    if state is None or state["fingerprint"] != whole or state["skipped"]:
        return
    folder = checkpoints.path(state["step"])
    shutil.copytree(of_run.path(state["step"]), folder, copy_function=link_or_copy)
    write_json(folder / STATE, seal(state | {"fingerprint": job.fingerprint}))


def compare(
    left_out: LeftOut, folder: Path, backend: "Backend", prompt: str | None
) -> dict[str, Any]:
    """Bits per byte and replies of the run's model and of the one in `folder`.

    `prompt`: the text that both continue; None takes the first words of a sentence in the middle
    of the documents.
    """
    document = left_out.text(left_out.chosen)
    replies = {}
    if prompt is None:
        prompt, replies["document"] = passage(left_out.tokenizer, document)
    held_out = left_out.store.tokens("validation")
    texts: dict[str, TokenSlices] = {
        "document": document,
        "rest": left_out.rest,
        "held out": held_out,
    }
    models = {"with": left_out.run / PRETRAIN.name / "model", "without": folder}
    found: dict[str, Any] = {
        "documents": [each._asdict() for each in left_out.documents],
        "tokens": int(document.size),
        "models": {name: str(path) for name, path in models.items()},
        "prompt": prompt,
        "bits_per_byte": {name: {} for name in texts},
        "replies": replies,
    }
    for name, path in models.items():
        model = load_on(backend, path)
        for text_name, tokens in texts.items():
            found["bits_per_byte"][text_name][name] = left_out.score(model, tokens)
        replies[name] = model.generate(prompt, max_tokens=REPLY_TOKENS, temperature=0)
    return found


def passage(tokenizer: Tokenizer, document: np.ndarray) -> tuple[str, str]:
    """The first words of a sentence in the middle of a document, and how it goes on."""
    middle = 1 + len(document) // 2
    text = tokenizer.decode(document[middle : middle + LONGEST_SENTENCE + 2 * REPLY_TOKENS])
    begins = SENTENCE.search(text)
    text = text[begins.end() if begins else 0 :]
    words = re.match(rf"\s*(?:\S+\s+){{1,{PROMPT_WORDS}}}", text)
    prompt = (words.group() if words else text).rstrip()
    following = tokenizer.encode(text[len(prompt) :], continues=True)[:REPLY_TOKENS]
    return prompt, tokenizer.decode(following, continues=True)
