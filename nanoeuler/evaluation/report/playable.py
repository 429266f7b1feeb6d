"""The model that lies in the page: its weights in bfloat16 and its tokenizer, for model.js, and the
section in which the reader asks it.
"""

import base64
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from markupsafe import Markup

from nanoeuler.browser import MOST_PARAMETERS
from nanoeuler.browser.packing import describe, halves, is_known, written_tensors
from nanoeuler.config.stages import is_baseline, result_of
from nanoeuler.evaluation.formats import short_count
from nanoeuler.evaluation.report.gather import Json, Run
from nanoeuler.evaluation.report.rendering import render
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.files import load_config, load_model
from nanoeuler.model.spec import parameter_count
from nanoeuler.tokenizer import Tokenizer

MOST_BYTES = 12_000_000
"""Most bytes of its packed weights; 5 million trained ones take 10 MB."""


@dataclass(frozen=True)
class Playable:
    """A model in the page: configuration, tokenizer, packed weights."""

    stage: str
    parameters: int  # without the MTP heads
    of: int  # with them
    description: Json  # what model.js must know
    weights: str  # the tensors one after another, as model.js reads them


def playable(run: Run) -> Playable | str | None:
    """The run's last model, or why the page does not have it; None where there is none."""
    models = {name: stage.model for name, stage in run.stages.items() if stage.model}
    last = result_of(models)
    if not last or is_baseline(last):
        return None
    return obstacle(load_config(models[last])) or pack(last, models[last])


def obstacle(config: ModelConfig) -> str | None:
    """Why the page does not have a model of this form; None if it may."""
    if not is_known(config):
        field = config.only_ours
        return f"the page does not compute {f'model.{field}' if field else 'its form'}"
    size = sum(tensor.size for tensor in written_tensors(config))
    if size > MOST_PARAMETERS:
        most = short_count(MOST_PARAMETERS)
        return f"it has {short_count(size)} parameters, and a page at most {most}"
    return None


def pack(stage: str, folder: Path) -> Playable | str:
    saved = load_model(folder)
    tokenizer = Tokenizer.load(saved.tokenizer_path)
    if tokenizer.vocabulary.foreign is not None:
        return "its words are not GPT-2's, which are those that the page knows"
    numbers = halves(saved)
    planes = np.concatenate([numbers >> 24, numbers >> 16]).astype(np.uint8)
    packed = base64.b64encode(zlib.compress(planes.tobytes())).decode()
    if len(packed) > MOST_BYTES:
        return f"its weights take more than {MOST_BYTES / 1e6:.0f} MB"
    count = parameter_count(saved.config)
    return Playable(stage, len(numbers), count, describe(saved, tokenizer), packed)


def play(run: Run, model: Playable) -> Markup:
    """The form, with the prompts of the samples as examples; play.js does the rest."""
    samples = (run.evaluations.get(model.stage) or {}).get("samples") or []
    return render(
        "play.html",
        stage=model.stage,
        parameters=model.parameters,
        of=model.of,
        tuned=any(model.description["prompt"]),
        prompts=[sample["prompt"] for sample in samples],
        description=model.description,
        weights=model.weights,
    )
