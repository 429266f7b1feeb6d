"""Preference pairs, two replies to one prompt of which one is better, out of the shapes that data sets have them in.

    nanoeuler preferences --config config/small.yaml --name alpaca_farm --output data/preferences/alpaca_farm

    instruction, input, output_1, output_2, preference          1 or 2: which output is better (AlpacaFarm)
    prompt | question [, system], chosen, rejected              texts, or lists of messages whose last one is the reply (UltraFeedback, Orca)
    messages | conversations, chosen, rejected                  the prompt as a conversation that waits for its reply (chat, ShareGPT)

Pairs that nothing can be learned from are left out and counted. All pairs of one prompt are held out together or not at all.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nanoeuler import log
from nanoeuler.corpus.dialogue import Turn, Unusable, check_text, read_message, read_prompt
from nanoeuler.corpus.download import Source, local_copy
from nanoeuler.corpus.instructions import find_entry, split, tell_bad
from nanoeuler.corpus.record_files import read_records
from nanoeuler.corpus.remote_file import Patience
from nanoeuler.files import atomic_folder, canonical_json, sha256_file, sha256_text, write_json

Pair = dict[str, Any]
"""instruction, input, chosen, rejected and, in a conversation, `earlier`: its turns before."""


def prepare(
    name: str,
    sources: Mapping[str, Any],
    validation_share: float,
    output: Path,
    patience: Patience | None = None,
) -> dict[str, Any]:
    """Write {train,validation}.jsonl and, last, manifest.json to the folder `output`, and return the manifest.

    `name` is one of `sources` (the section preferences of the sources file) or the path of a file. Raises `UserError` when that cannot be had, or
    when more than half of its pairs are bad.
    """
    entry = find_entry(name, sources, "preferences")
    source = Source.from_entry(entry)
    output.parent.mkdir(parents=True, exist_ok=True)
    with local_copy(source, output.with_name(f".{output.name}.download"), patience) as path:
        pairs, bad, copies = check_pairs(path, source.url)
        sha256 = sha256_file(path)
    splits = split(pairs, validation_share, source.url)
    manifest: dict[str, Any] = {
        "version": 1,
        "name": name,
        "url": source.url,
        "revision": source.revision,
        "licence": entry.get("licence"),
        "sha256": sha256,
        "validation_share": validation_share,
        "pairs": len(pairs),
        "chosen_is_longer": sum(len(pair["chosen"]) > len(pair["rejected"]) for pair in pairs),
        "bad": dict(bad),
        "duplicates": copies,
    }
    with atomic_folder(output) as folder:
        for part, members in splits.items():
            lines = "".join(json.dumps(pair) + "\n" for pair in members)
            (folder / f"{part}.jsonl").write_text(lines, encoding="ascii")
            manifest[part] = {
                "file": f"{part}.jsonl",
                "pairs": len(members),
                "bytes": len(lines),
                "sha256": sha256_text(lines),
            }
        write_json(folder / "manifest.json", manifest)
    log.line(
        "preferences",
        name=name,
        pairs=len(pairs),
        validation=len(splits["validation"]),
        bad=bad.total(),
        duplicates=copies,
    )
    return manifest


def check_pairs(path: Path, address: str) -> tuple[list[Pair], Counter[str], int]:
    """The good pairs of a file in their order, what is bad about the others, and how many were exact copies of earlier ones."""
    pairs: dict[str, Pair] = {}
    bad: Counter[str] = Counter()
    examples: list[str] = []
    total = 0
    for place, value in read_records(path, address):
        total += 1
        try:
            pair = read_pair(value)
            pairs.setdefault(canonical_json(pair), pair)
        except Unusable as problem:
            bad[str(problem)] += 1
            examples.append(f"{place}: {problem}")
    tell_bad(
        address,
        total,
        bad,
        examples,
        len(pairs),
        "prompt, chosen and rejected, or instruction, output_1, output_2 and preference",
    )
    return list(pairs.values()), bad, total - bad.total() - len(pairs)


def read_pair(value: Any) -> Pair:
    """The pair in a JSON value, in this project's shape. Raises `Unusable`."""
    if not isinstance(value, Mapping):
        raise Unusable("no JSON object")
    if "output_1" in value or "output_2" in value:
        earlier, instruction = [], check_text(value.get("instruction"), "instruction")
        outputs = [check_text(value.get(name), name) for name in ("output_1", "output_2")]
        preference = value.get("preference")
        if isinstance(preference, bool) or preference not in (1, 2):
            raise Unusable("preference is neither 1 nor 2")
        chosen, rejected = outputs if preference == 1 else outputs[::-1]
    else:
        (before, chosen), (before_rejected, rejected) = (
            read_side(value.get(name), name) for name in ("chosen", "rejected")
        )
        if before and before_rejected and before != before_rejected:
            raise Unusable("chosen and rejected reply to different prompts")
        earlier, instruction = read_prompt_of(value, before or before_rejected)
    if chosen.strip() == rejected.strip():
        raise Unusable("both sides are the same")
    context = value.get("input")
    pair: Pair = {
        "instruction": instruction,
        "input": check_text("" if context is None else context, "input", may_be_empty=True),
    }
    return (
        pair | {"chosen": chosen, "rejected": rejected} | ({"earlier": earlier} if earlier else {})
    )


def read_side(value: Any, name: str) -> tuple[list[Any], str]:
    """The messages before a reply, if it comes with some, and the reply."""
    if isinstance(value, Mapping):
        value = [value]
    if isinstance(value, Sequence) and not isinstance(value, str):
        if not value:
            raise Unusable(f"{name} is empty")
        role, reply = read_message(value[-1], name)
        if role != "assistant":
            raise Unusable(f"{name} does not end with a reply")
        return list(value[:-1]), reply
    return [], check_text(value, name)


def read_prompt_of(value: Mapping[str, Any], before: list[Any]) -> tuple[list[Turn], str]:
    """The earlier turns and the instruction of a pair; `before` is what stands in front of the replies. It counts where nothing else says
    the prompt, and where it has messages beside the one that a `prompt` of text repeats.
    """
    prompt = next(
        (
            value[name]
            for name in ("prompt", "instruction", "question", "messages", "conversations")
            if value.get(name) is not None
        ),
        before,
    )
    if isinstance(prompt, str) and len(before) > 1:
        prompt = before
    if isinstance(prompt, str):
        system = value.get("system") or ""
        text = check_text(prompt, "prompt")
        return [], f"{system}\n\n{text}" if check_text(
            system, "system", may_be_empty=True
        ).strip() else text
    if not isinstance(prompt, Sequence) or not prompt:
        raise Unusable("prompt is missing")
    return read_prompt(prompt, "the prompt")
