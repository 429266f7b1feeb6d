"""Instructions in the shape of Stanford's Alpaca, or conversations, into checked records, some of them held out.

    nanoeuler instructions --config config/small.yaml --name alpaca --output data/instructions/alpaca

A record tells what to do (`instruction`), perhaps on what (`input`), and how it is done well (`output`); Dolly calls the last two `context`
and `response`. A conversation, a list `messages` (or `conversations`), becomes its last turn, with the turns before as `earlier`. Records
that cannot be learned from are left out and counted. Which prompts are held out is decided by their hash: the lowest ones, whatever else is
in the file, and all records of one prompt on one side.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nanoeuler import log
from nanoeuler.corpus.dialogue import Unusable, check_text, read_conversation
from nanoeuler.corpus.download import Source, local_copy
from nanoeuler.corpus.record_files import read_records
from nanoeuler.corpus.remote_file import Patience
from nanoeuler.errors import UserError
from nanoeuler.files import atomic_folder, canonical_json, sha256_file, sha256_text, write_json

NAMES = {
    "instruction": ("instruction",),
    "input": ("input", "context"),
    "output": ("output", "response"),
}
TOLD = 5  # bad records named in the log
Record = dict[str, Any]
"""instruction, input, output and, in a conversation, `earlier`: its turns before."""


def prepare(
    name: str,
    sources: Mapping[str, Any],
    validation_share: float,
    output: Path,
    patience: Patience | None = None,
) -> dict[str, Any]:
    """Write {train,validation}.jsonl and, last, manifest.json to the folder `output`, and return the manifest.

    `name` is one of `sources` (the section instructions of the sources file) or the path of a file. Raises `UserError` when that cannot be had, or when
    more than half of its records are bad.
    """
    entry = find_entry(name, sources, "instructions")
    output.parent.mkdir(parents=True, exist_ok=True)
    members = entry.get("mixture") or [entry]
    if not all("url" in member for member in members):
        raise UserError(
            f"instructions.{name} in the sources file has neither a url nor a mixture of files "
            "with one; give it one of them"
        )
    records: dict[
        str, tuple[Record, float]
    ] = {}  # by their content: the record, and how often it is seen
    bad: Counter[str] = Counter()
    mixture, copies = [], 0
    for member in members:
        source, weight = Source.from_entry(member), member.get("weight", 1)
        with local_copy(source, output.with_name(f".{output.name}.download"), patience) as path:
            found, problems, twice = check_records(path, source.url)
            mixture.append(
                {
                    "url": source.url,
                    "revision": source.revision,
                    "licence": member.get("licence"),
                    "sha256": sha256_file(path),
                }
            )
        mixture[-1] |= {"weight": weight, "records": len(found)}
        bad += problems
        before = len(records)
        for record in found:
            records.setdefault(canonical_json(record), (record, weight))
        copies += twice + before + len(found) - len(records)
    splits = split(
        [record for record, _ in records.values()],
        validation_share,
        ", ".join(member["url"] for member in mixture),
    )
    splits["train"] = [
        record
        for record in splits["train"]
        for _ in range(times(record, records[canonical_json(record)][1]))
    ]
    whole = entry.get("licence")  # a file that names none may stand under the mixture's
    licences = dict.fromkeys(
        filter(
            None,
            [whole, *(member["licence"] or (None if whole else "unknown") for member in mixture)],
        )
    )
    manifest: dict[str, Any] = {
        "version": 1,
        "name": name,
        "licence": "; ".join(licences),
        **(mixture[0] if len(mixture) == 1 else {"mixture": mixture}),
        "validation_share": validation_share,
        "records": len(records),
        "with_input": sum(bool(record["input"]) for record, _ in records.values()),
        "conversations": sum("earlier" in record for record, _ in records.values()),
        "bad": dict(bad),
        "duplicates": copies,
    }
    with atomic_folder(output) as folder:
        for part, chosen in splits.items():
            lines = "".join(
                json.dumps(record) + "\n" for record in chosen
            )  # ASCII: no character that some reader takes for a line end
            (folder / f"{part}.jsonl").write_text(lines, encoding="ascii")
            manifest[part] = {
                "file": f"{part}.jsonl",
                "records": len(chosen),
                "bytes": len(lines),
                "sha256": sha256_text(lines),
            }
        write_json(folder / "manifest.json", manifest)
    log.line(
        "instructions",
        name=name,
        records=len(records),
        validation=len(splits["validation"]),
        bad=bad.total(),
        duplicates=copies,
    )
    return manifest


def times(record: Record, weight: float) -> int:
    """How often `record` is among the training records: `weight` times on average, its fraction decided by the record's hash."""
    whole = int(weight)
    place = (
        int.from_bytes(hashlib.sha256(canonical_json(record).encode()).digest()[8:16], "big")
        / 2**64
    )
    return whole + (place < weight - whole)


def check_records(path: Path, address: str) -> tuple[list[Record], Counter[str], int]:
    """The good records of a file in their order, what is bad about the others, and how many were exact copies of earlier ones."""
    records: dict[str, Record] = {}
    bad: Counter[str] = Counter()
    examples: list[str] = []
    total = 0
    for place, value in read_records(path, address):
        total += 1
        try:
            record = check_record(value)
            records.setdefault(canonical_json(record), record)
        except Unusable as problem:
            bad[str(problem)] += 1
            examples.append(f"{place}: {problem}")
    tell_bad(
        address,
        total,
        bad,
        examples,
        len(records),
        "the texts instruction, output and, if there is one, input, or with a list messages",
    )
    return list(records.values()), bad, total - bad.total() - len(records)


def find_entry(name: str, sources: Mapping[str, Any], section: str) -> Mapping[str, Any]:
    """What the sources file says of `name`, or of a file of the user's own. Raises `UserError` when it is neither."""
    if name in sources:
        return sources[name]
    if not Path(name).is_file():
        raise UserError(
            f"{name}: neither a name under {section} in the sources file (there: "
            f"{', '.join(sources) or 'none'}) nor a file; correct it"
        )
    return {"url": name, "licence": "your own file"}


def tell_bad(
    address: str, total: int, bad: Counter[str], examples: list[str], good: int, wanted: str
) -> None:
    """Say which records are left out; refuse a file of which more than half are, or that has none."""
    told = "; ".join(examples[:TOLD]) + ("; …" if len(examples) > TOLD else "")
    if not total:
        raise UserError(f"{address}: holds no records; correct the address, or fetch it again")
    if not good or bad.total() > total / 2:
        raise UserError(
            f"{address}: {bad.total():,} of {total:,} records are bad ({told}); "
            f"give records with {wanted}"
        )
    if bad:
        log.line("bad", f"{address}: {bad.total():,} of {total:,} records are left out ({told})")


def check_record(value: Any) -> Record:
    """The record in a JSON value. No input at all is an empty one; its text is never changed. Raises `Unusable`."""
    if not isinstance(value, Mapping):
        raise Unusable("no JSON object")
    conversation = value.get("messages", value.get("conversations"))
    if conversation is not None:
        *earlier, last = read_conversation(conversation)
        return {"instruction": last["instruction"], "input": "", "output": last["output"]} | (
            {"earlier": earlier} if earlier else {}
        )
    record: Record = {}
    for field, names in NAMES.items():
        text = next((value[name] for name in names if name in value), None)
        is_input = field == "input"
        record[field] = check_text(
            "" if text is None and is_input else text, field, may_be_empty=is_input
        )
    return record


def prompt_key(record: Record) -> str:
    """What decides the side of a record: the prompt that its conversation opens with."""
    first = record["earlier"][0] if record.get("earlier") else record
    return canonical_json([first["instruction"], first.get("input", "")])


def split(
    records: Iterable[Record], validation_share: float, address: str
) -> dict[str, list[Record]]:
    """Training and validation records, in their order: held out are the prompts of lowest hash, at least one and never all."""
    keyed = [(hashlib.sha256(prompt_key(record).encode()).digest(), record) for record in records]
    keys = sorted(key for key, _ in keyed)
    if len(set(keys)) < 2:
        raise UserError(
            f"{address}: {log.counted(len(keys), 'record')} of one prompt: "
            "too few to train on some and hold out others; give at least two prompts"
        )
    last = min(
        keys[max(1, round(validation_share * len(keys))) - 1],
        max(key for key in keys if key != keys[-1]),
    )
    held_out = [key <= last for key, _ in keyed]
    parts = zip(held_out, keyed, strict=True)
    chosen: dict[str, list[Record]] = {"train": [], "validation": []}
    for is_held_out, (_, record) in parts:
        chosen["validation" if is_held_out else "train"].append(record)
    return chosen
