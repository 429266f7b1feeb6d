"""Write files of records, and read what `prepare` made of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Prepared = tuple[dict[str, Any], list[dict], list[dict]]
"""The manifest, the records for training and those held out."""


def encoded(value: object, indent: int | None = None) -> bytes:
    """The bytes of a file: `value` as JSON, or as it is if it is text or bytes."""
    if isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json.dumps(value, indent=indent)).encode()


def lines(*records: object) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def prepared(prepare: Callable, path: Path, share: float) -> Prepared:
    """Prepare the file under the name `mine`, into the folder `mine` beside it."""
    folder = path.parent / "mine"
    manifest = prepare("mine", {"mine": {"url": str(path), "licence": "CC0"}}, share, folder)
    return manifest, read_lines(folder / "train.jsonl"), read_lines(folder / "validation.jsonl")
