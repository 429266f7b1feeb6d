"""Tokenizers of strangers, which the `tokenizers` library reads."""

import json
from pathlib import Path
from typing import Any

from tokenizers import pre_tokenizers

from nanoeuler.tokenizer.tokenizer_json import frame_with

PANICS = "(?:q|qq)+z|."
"""An expression that the library gives up on texts of many q, by a panic."""
IDS = 257


def write_strange(
    path: Path, regex: str = r"\w+|\W", normalizer: dict[str, Any] | None = None
) -> None:
    """Write a tokenizer.json of bytes, which cuts by `regex`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    split = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated"}
    by_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    words = [split | {"invert": False}, by_bytes | {"use_regex": False}]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    content = {
        "version": "1.0",
        "added_tokens": [{"id": 256, "content": "<end>", **flags, "special": True}],
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": words},
        "post_processor": frame_with("<end>", 256),
        "decoder": by_bytes | {"use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {name: index for index, name in enumerate(alphabet)},
            "merges": [],
        },
    }
    path.write_text(json.dumps(content))
