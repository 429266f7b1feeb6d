"""Write a model as a folder of Hugging Face's, for transformers and all that read the same."""

import json
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from nanoeuler.config.stages import BY_NAME, STAGES
from nanoeuler.evaluation.card import front_matter
from nanoeuler.evaluation.report.gather import gather, kept_configuration
from nanoeuler.interchange.plain_model import DTYPES, NORM, PlainModel, cast, plain_model
from nanoeuler.model.companions import write_companions
from nanoeuler.model.files import CONFIG, TOKENIZER, WEIGHTS, SavedModel
from nanoeuler.model.transformers_config import transformers_keys
from nanoeuler.storage.files import sync, write_json
from nanoeuler.storage.folders import atomic_folder
from nanoeuler.tokenizer import tokenizer_json


def write_folder(
    folder: Path, saved: SavedModel, dtype: str, matter: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """Write `saved` to `folder`, which appears whole or not at all.

    `matter` adds to the front matter of its card.
    """
    plain = plain_model(saved)
    if plain.config.post_norms:  # a Gemma multiplies by 1 + weight
        for name in plain.tensors:
            if name.endswith(NORM):
                plain.tensors[name] = plain.tensors[name] - np.float32(1)
    vocabulary = tokenizer_json.read_unchecked(saved.tokenizer_path)
    with atomic_folder(folder) as temporary:
        write_weights(temporary / WEIGHTS, plain, dtype)
        tokenizer_json.write_framed(temporary / TOKENIZER, vocabulary)
        keys = transformers_keys(plain.config, vocabulary.end_id, DTYPES[dtype])
        write_json(temporary / CONFIG, keys)
        write_companions(temporary, saved, vocabulary, known_to_transformers=True, matter=matter)


def write_weights(path: Path, plain: PlainModel, dtype: str) -> None:
    """A safetensors file. (The package's functions for NumPy know no bf16.)"""
    size = {"f32": 4}.get(dtype, 2)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}  # transformers asks for it
    offset = 0
    for name, tensor in plain.tensors.items():
        end = offset + size * tensor.size
        header[name] = {
            "dtype": dtype.upper(),
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data begin on a multiple of 8
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, tensor in plain.tensors.items():
            file.write(np.ascontiguousarray(cast(name, tensor, dtype)).data)
    sync(path)


def run_matter(model: Path) -> dict[str, Any]:
    """Front matter for the card of an export: language, licence, data sets and metrics of a model
    folder results/<run>/<stage>/model.

    Nothing where it lies in no run of the workflow. Raises `UserError` for damaged results.
    """
    stage, folder = model.resolve().parent.name, model.resolve().parent.parent
    config = kept_configuration(folder)
    if not config or not (folder / stage / "metrics.jsonl").is_file():
        return {}
    run = gather(config, folder)
    names = [*BY_NAME]
    learned = names[: names.index(stage) + 1] if stage in names else names
    sections = {BY_NAME[name].section for name in learned}
    later = [each for each in STAGES if each.section not in sections]
    unused = {
        each.section: {**run.config.get(each.section, {}), "enabled": False} for each in later
    }
    stages = {name: one for name, one in run.stages.items() if BY_NAME.get(name) not in later}
    run = replace(run, config={**run.config, **unused}, stages=stages)
    known = ("language", "license", "datasets")
    found = {key: json.loads(value) for key, value in front_matter(run).items() if key in known}
    held_out = (run.evaluations.get(stage) or {}).get("held_out") or {}
    results = [
        {
            "task": {"type": "text-generation"},
            "dataset": {"name": f"{source}, held out", "type": source},
            "metrics": [{"type": "bits_per_byte", "value": score["bits_per_byte"]}],
        }
        for source, score in held_out.items()
    ]
    if results:
        found["model-index"] = [{"name": f"{run.name} {stage}", "results": results}]
    return found
