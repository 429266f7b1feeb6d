"""Tokenizers in the manner of SentencePiece, as of Llama 2: ▁ for a space, ids of single bytes.

A text gets a space in front, so that its first word has the token that it has behind others.
Decoding a text drops it. What continues a text, such as a reply, has none.
"""

import re
from typing import Any

SPACE = "▁"  # U+2581
BYTE = re.compile("<0x([0-9A-F]{2})>")


def parts(section: Any, key: str) -> list[dict[str, Any]]:
    """The steps of a normalizer, pre-tokenizer or decoder, whether one or a sequence of them."""
    if not isinstance(section, dict):
        return []
    steps = section.get(key) if section.get("type") == "Sequence" else [section]
    return [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []


def is_like(content: dict[str, Any]) -> bool:
    """Is a tokenizer.json BPE over characters, with bytes for those that have no token?"""
    steps = parts(content.get("decoder"), "decoders")
    known = ("Replace", "ByteFallback", "Fuse", "Strip", "Metaspace")
    kinds = [step.get("type") for step in steps]
    model = content["model"]
    return (
        model.get("type", "BPE") == "BPE"
        and model.get("byte_fallback") is True
        and "ByteFallback" in kinds
        and all(kind in known for kind in kinds)
    )


def token(name: str) -> bytes:
    """The bytes that a token stands for."""
    byte = BYTE.fullmatch(name)
    return bytes([int(byte[1], 16)]) if byte else name.replace(SPACE, " ").encode()


def byte_names() -> set[str]:
    return {f"<0x{byte:02X}>" for byte in range(256)}


def continuing(content: dict[str, Any]) -> dict[str, Any]:
    """This tokenizer without a space in front."""
    normalizers = parts(content.get("normalizer"), "normalizers")
    kept = [step for step in normalizers if step.get("type") != "Prepend"]
    words = []
    for step in parts(content.get("pre_tokenizer"), "pretokenizers"):
        if step.get("type") == "Metaspace":
            step = step | {"prepend_scheme": "never"}
            step.pop("add_prefix_space", None)  # what older files have instead
        words.append(step)
    return content | {
        "normalizer": {"type": "Sequence", "normalizers": kept} if kept else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": words} if words else None,
    }


def adds_space(content: dict[str, Any]) -> bool:
    """Does a text get a space in front?"""
    words = parts(content.get("pre_tokenizer"), "pretokenizers")
    normalizers = parts(content.get("normalizer"), "normalizers")
    return any(step.get("type") == "Prepend" for step in normalizers) or any(
        step.get("type") == "Metaspace"
        and step.get("prepend_scheme", "always") != "never"
        and step.get("add_prefix_space", True)
        for step in words
    )
