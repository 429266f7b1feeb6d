"""The model that lies in the page: its weights in bfloat16 and its tokenizer, for model.js, and the
section in which the reader asks it.
"""

import base64
import dataclasses
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from markupsafe import Markup

from nanoeuler.config.stages import is_baseline, result_of
from nanoeuler.evaluation.report.gather import Json, Run
from nanoeuler.evaluation.report.rendering import render
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.files import SavedModel, load_config, load_model
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.model.rotary import rope_scale
from nanoeuler.model.spec import head_name, parameter_count, tensor_table
from nanoeuler.model.template import TEMPLATES
from nanoeuler.model.tensors import Tensor
from nanoeuler.tokenizer import Tokenizer

MOST_PARAMETERS = 5_250_000
"""Most parameters of a model in the page."""
MOST_BYTES = 12_000_000
"""Most bytes of its packed weights; 5 million trained ones take 10 MB."""


@dataclass(frozen=True)
class Playable:
    """A model in the page: configuration, tokenizer, packed weights."""

    stage: str
    parameters: int  # without the MTP heads
    of: int  # with them
    description: Json  # configuration, names and sizes of the tensors, tokenizer, template
    weights: str  # the tensors one after another, as model.js reads them


def playable(run: Run) -> Playable | None:
    """The run's last model, if it is small and its words are GPT-2's."""
    models = {name: stage.model for name, stage in run.stages.items() if stage.model}
    last = result_of(models)
    if not last or is_baseline(last) or not fits(load_config(models[last])):
        return None
    return pack(last, models[last])


def fits(config: ModelConfig) -> bool:
    return (
        not config.only_ours
        and not (config.post_norms or config.window_rope_theta)
        and not (config.attention_cap or config.logit_cap)
        and (config.activation, config.embedding_scale) == ("swiglu", 1)
        and sum(tensor.size for tensor in written_tensors(config)) <= MOST_PARAMETERS
    )


def pack(stage: str, folder: Path) -> Playable | None:
    saved = load_model(folder)
    tokenizer = Tokenizer.load(saved.tokenizer_path)
    if tokenizer.vocabulary.foreign is not None:
        return None
    buffer = FlatBuffer(saved.config, saved.parameters)
    tensors = written_tensors(saved.config)
    numbers = np.concatenate([buffer[tensor.name].reshape(-1) for tensor in tensors])
    halves = round_to_bfloat16(numbers).view(np.uint32)
    planes = np.concatenate([halves >> 24, halves >> 16]).astype(np.uint8)
    config, (scale_I, factor) = saved.config, rope_scale(saved.config)
    kinds = [config.layer_kind(layer) for layer in range(config.layers)]
    description = {
        "config": dataclasses.asdict(config)
        | {"rope_scale": [scale_I.tolist(), factor], "layer_kinds": kinds},
        "tensors": [[tensor.name, tensor.size] for tensor in tensors],
        "tokenizer": describe_tokenizer(tokenizer)
        | {"calls": tokenizer.call_ids if saved.calculator else []},
        "prompt": surroundings(saved),
    }
    packed = base64.b64encode(zlib.compress(planes.tobytes())).decode()
    if len(packed) > MOST_BYTES:
        return None
    return Playable(stage, len(numbers), parameter_count(saved.config), description, packed)


def written_tensors(config: ModelConfig) -> list[Tensor]:
    """All but the MTP heads: head 0 is the one that writes."""
    mtp_heads = {head_name(head) for head in range(1, config.mtp_heads)}
    return [tensor for tensor in tensor_table(config) if tensor.name not in mtp_heads]


def round_to_bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 values rounded to the nearest bfloat16, ties to even; still as float32."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded = bits + 0x7FFF + (bits >> 16 & 1)
    return (rounded & 0xFFFF0000).astype(np.uint32).view(np.float32)


def describe_tokenizer(tokenizer: Tokenizer) -> Json:
    vocabulary = tokenizer.vocabulary
    return {
        "tokens": [token.hex() for token in vocabulary.tokens],
        "specials": sorted(vocabulary.specials.values()),
        "merges": [[left, right] for left, right, _ in vocabulary.merges],
        "end": tokenizer.end_id,
    }


def surroundings(saved: SavedModel) -> list[str]:
    """The text in front of an instruction and behind it; empty for a base model."""
    if saved.template not in TEMPLATES:
        return ["", ""]
    before, _, after = TEMPLATES[saved.template]("\0").partition("\0")
    return [before, after]


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
