"""Take files that somebody changed on purpose, or made elsewhere, as what is to be read.

Everything that is read is compared with the hash that its writer noted (integrity.py). `accept`
checks that a file can be read at all, notes its present hash, and when that was done.
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from nanoeuler.errors import UserError
from nanoeuler.model.files import (
    CONFIG,
    TOKENIZER,
    WEIGHTS,
    read_unsealed,
    read_weights,
    transformers_keys,
)
from nanoeuler.model.quantized import QuantizedBuffer
from nanoeuler.model.weights_file import stored_step
from nanoeuler.storage.files import read_json, sha256_file, write_json
from nanoeuler.storage.integrity import seal, write_note
from nanoeuler.storage.record_folder import read_json_lines
from nanoeuler.tokenizer import tokenizer_json

MANIFEST = "manifest.json"


def accept(path: Path) -> list[Path]:
    """Note the present hashes of a model folder, of a folder of records, or of a tokenizer.json.

    Returns the files whose hashes are new. Raises `UserError` for files that cannot be read.
    """
    if (path / CONFIG).is_file():
        return accept_model(path)
    if (path / MANIFEST).is_file():
        return accept_records(path)
    if path.is_file():
        tokenizer_json.read_unchecked(path)
        write_note(path)
        return [path]
    raise UserError(
        f"{path}: neither a model folder (with {CONFIG}), nor a folder of records (with "
        f"{MANIFEST}), nor a tokenizer.json; give one of these"
    )


def accept_model(folder: Path) -> list[Path]:
    config, description = read_unsealed(folder)
    weights = read_weights(folder, config, description)
    vocabulary = tokenizer_json.read_unchecked(folder / TOKENIZER)
    ids = len(vocabulary.tokens)
    if ids > config.vocab_size:
        raise UserError(
            f"{folder / TOKENIZER}: it has {ids} ids where the model has {config.vocab_size}; "
            "give the tokenizer that belongs to it"
        )
    noted = description.get("sha256")
    hashes = {name: sha256_file(folder / name) for name in (WEIGHTS, TOKENIZER)}
    description |= {
        "sha256": hashes,
        "info": {**description.get("info", {}), "accepted": now()},
    }
    content = read_json(folder / CONFIG)
    if not isinstance(weights, QuantizedBuffer):
        outside = replace(config, step_size=stored_step(folder / WEIGHTS, config))
        content |= transformers_keys(outside, vocabulary.end_id)
    write_json(folder / CONFIG, content | {"nanoeuler": seal(description)})
    before = noted if isinstance(noted, dict) else {}
    changed = [folder / name for name in hashes if hashes[name] != before.get(name)]
    return [*changed, folder / CONFIG]


def accept_records(folder: Path) -> list[Path]:
    manifest: dict[str, Any] = read_json(folder / MANIFEST)
    changed = []
    for part in ("train", "validation"):
        path = folder / f"{part}.jsonl"
        entry = manifest.get(part) if isinstance(manifest, dict) else None
        if not isinstance(entry, dict):
            raise UserError(
                f"{folder / MANIFEST}: not the manifest of records or pairs; accept can only take "
                "a folder that `nanoeuler instructions` or `nanoeuler preferences` wrote"
            )
        unit = "pairs" if "pairs" in entry else "records"
        count = sum(1 for _ in read_json_lines(path))
        found = {unit: count, "bytes": path.stat().st_size, "sha256": sha256_file(path)}
        if found["sha256"] != entry.get("sha256"):
            changed.append(path)
            manifest[part] = entry | found
    write_json(folder / MANIFEST, manifest | {"accepted": now()})
    return changed


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
