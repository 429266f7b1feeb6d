"""Convert instructions to checked records, and hold some out.

    nanoeuler instructions --config config/small.yaml --name alpaca \\
        --output data/instructions/alpaca

A record has a task (`instruction`), sometimes its data (`input`), and a good reply (`output`), as
in Stanford's Alpaca; Dolly calls the last two `context` and `response`, GSM8K has a `question` and
an `answer`, others a `prompt` and a `completion`. A conversation, a list `messages` or
`conversations`, becomes a record of its last turn, with the turns before as `earlier`. Records that
cannot be learned from are left out and counted.

The prompts with the lowest hashes are held out, whatever else is in the file, and all records of
one prompt are on one side.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nanoeuler import log
from nanoeuler.corpus.dialogue import (
    MOST_NAMES,
    READ_OF_ALL,
    Unusable,
    check_fields,
    check_repeated,
    check_reply,
    check_text,
    fields_not_read,
    first_given,
    is_given,
    messages_before,
    read_conversation,
    read_input,
    read_prompt,
)
from nanoeuler.corpus.download import SourceFile, local_copy
from nanoeuler.corpus.record_files import Faults, read_records
from nanoeuler.corpus.remote_file import Patience
from nanoeuler.errors import UserError
from nanoeuler.storage.files import canonical_json, sha256_text, write_json
from nanoeuler.storage.folders import atomic_folder, require_ours
from nanoeuler.storage.record_folder import prompt_key

READ = {*READ_OF_ALL, "question", "output", "response"}
WANTED = (
    "the texts instruction (or question, or prompt), output (or answer, or completion) and, if "
    "there is one, input, or with a list messages"
)
Record = dict[str, Any]
"""instruction, input, output and, for a conversation, `earlier`: the turns before the last."""


class RecordKind(NamedTuple):
    """A kind of data set that a stage of tuning learns from."""

    name: str
    """Its section of the sources file."""
    check: Callable[[Any], Record]
    wanted: str
    read: set[str]
    """These three: see `check_records`."""
    unit: str = "records"
    """What `write_splits` calls them."""
    facts: Callable[[Collection[Record]], dict[str, Any]] = lambda records: {}
    """Further entries of the manifest."""

    def prepare(
        self,
        name: str,
        sources: Mapping[str, Any],
        validation_share: float,
        output: Path,
        patience: Patience | None = None,
    ) -> dict[str, Any]:
        """Write {train,validation}.jsonl and, last, manifest.json to `output`; return the manifest.

        `name` is one of `sources`, this kind's section of the sources file, or the path of a file.
        Raises `UserError` when that cannot be read, or when more than half of its records are bad.
        """
        entry = find_entry(name, sources, self.name)
        require_ours(output)
        output.parent.mkdir(parents=True, exist_ok=True)
        members = entry.get("mixture") or [entry]
        if not all("url" in member for member in members):
            raise UserError(
                f"{self.name}.{name} in the sources file has neither a url nor a mixture of files "
                "with one; give it one of them"
            )
        records: dict[str, Record] = {}  # by their canonical JSON
        weights: dict[str, float] = {}  # likewise: how often a record is seen
        bad: Counter[str] = Counter()
        not_read: Counter[str] = Counter()
        mixture: list[dict[str, Any]] = []
        copies = 0
        for member in members:
            source, weight = SourceFile.from_entry(member), member.get("weight", 1)
            with local_copy(source, output, patience) as copy:
                found, problems, twice, unread = check_records(
                    copy.path, source.url, self.check, self.wanted, self.read
                )
                mixture.append(
                    {
                        "url": source.url,
                        "revision": copy.revision,
                        "licence": member.get("licence"),
                        "sha256": copy.sha256,
                        "weight": weight,
                        self.unit: len(found),
                    }
                )
            not_read += unread
            bad += problems
            copies += twice + len(found.keys() & records.keys())
            records |= found
            weights = dict.fromkeys(found, weight) | weights  # that of the first file that has it
        address = ", ".join(member["url"] for member in mixture)
        train, held_out = split(records, validation_share, address)
        repeated = [key for key in train for _ in range(repetitions(key, weights[key]))]
        splits = {
            "train": [records[key] for key in repeated],
            "validation": [records[key] for key in held_out],
        }
        manifest: dict[str, Any] = {
            "version": 1,
            "name": name,
            "licence": licences(entry.get("licence"), mixture),
            **(mixture[0] if len(mixture) == 1 else {"mixture": mixture}),
            "validation_share": validation_share,
            self.unit: len(records),
            **self.facts(records.values()),
            "bad": dict(bad),
            "not_read": dict(not_read),
            "duplicates": copies,
        }
        write_splits(output, splits, manifest, self.unit)
        counts: dict[str, Any] = {self.unit: len(records), "validation": len(splits["validation"])}
        log.line(self.name, name=name, **counts, bad=bad.total(), duplicates=copies)
        return manifest


def write_splits(
    output: Path, splits: Mapping[str, list[Record]], manifest: dict[str, Any], unit: str
) -> None:
    """Write the files of a folder of records and, last, the manifest, completed by their entries.

    `unit` names what they hold: records, or pairs.
    """
    with atomic_folder(output) as folder:
        for part, chosen in splits.items():
            # ASCII, since some readers take other characters for line ends
            lines = "".join(json.dumps(record) + "\n" for record in chosen)
            (folder / f"{part}.jsonl").write_text(lines, encoding="ascii")
            manifest[part] = {
                "file": f"{part}.jsonl",
                unit: len(chosen),
                "bytes": len(lines),
                "sha256": sha256_text(lines),
            }
        write_json(folder / "manifest.json", manifest)


def licences(whole: str | None, mixture: Sequence[Mapping[str, Any]]) -> str:
    """Name the licences of a mixture: its own, if it has one, then those of its files."""
    of_files = [member["licence"] or ("" if whole else "unknown") for member in mixture]
    return "; ".join(dict.fromkeys(filter(None, [whole, *of_files])))


def repetitions(record: str, weight: float) -> int:
    """Return how often a record is repeated among the training records: `weight` on average.

    The hash of the record's canonical JSON, `record`, decides about the fraction of its weight.
    """
    whole = int(weight)
    if whole == weight:
        return whole
    digest = hashlib.sha256(record.encode()).digest()
    return whole + (int.from_bytes(digest[8:16], "big") / 2**64 < weight - whole)


def check_records(
    path: Path, address: str, check: Callable[[Any], Record], wanted: str, read: set[str]
) -> tuple[dict[str, Record], Counter[str], int, Counter[str]]:
    """Read the good records of a file with `check`, which raises `Unusable` for bad ones.

    Returns them by their canonical JSON, in their order, the counted faults of the bad ones, the
    number of exact copies of earlier records, and of how many records each field beside `read` was
    not read. Raises `UserError`, saying that records with `wanted` are needed, for a file without
    records or with more bad ones than good ones.
    """
    records: dict[str, Record] = {}
    faults = Faults(address)
    not_read: Counter[str] = Counter()
    total = 0
    with log.Progress("read", None, " records") as progress:
        for where, value in read_records(path, address):
            total += 1
            progress.update(1)
            try:
                record = check(value)
                records.setdefault(canonical_json(record), record)
                for name in fields_not_read(value, read):
                    if value.get(name) in record.values():
                        continue  # its text is that of another field, or the answer to a question
                    known = name in not_read or len(not_read) < MOST_NAMES
                    not_read[name if known else "others"] += 1
            except Unusable as problem:
                faults.add(where, str(problem))
    faults.tell(total, len(records), "are bad", f"give records with {wanted}")
    bad = faults.counts
    if not_read:
        told = ", ".join(f"{name} ({count:,})" for name, count in not_read.most_common())
        log.line("not-read", f"{address}: fields of records that are not read: {told}")
    return records, bad, total - bad.total() - len(records), not_read


def find_entry(name: str, sources: Mapping[str, Any], section: str) -> Mapping[str, Any]:
    """Return the entry of `name` in the sources file, or one for a file of the user's own.

    Raises `UserError` when `name` is neither.
    """
    if name in sources:
        return sources[name]
    if not Path(name).is_file():
        raise UserError(
            f"{name}: neither a name under {section} in the sources file (there: "
            f"{', '.join(sources) or 'none'}) nor a file; correct it"
        )
    return {"url": name, "licence": "your own file"}


def check_record(value: Any) -> Record:
    """Read the record in a JSON value. A missing input is empty; no text is changed.

    Raises `Unusable`.
    """
    if not isinstance(value, Mapping):
        raise Unusable("no JSON object")
    check_fields(value)
    conversation = first_given(value, "messages", "conversations")
    if conversation is None or (conversation == [] and "instruction" in value):
        instruction = first_given(value, "instruction", "question")
        # beside an instruction and its output, an `answer` is the short form of these
        replies = ["output", "response"]
        if not is_given(value.get("instruction")):
            replies.append("answer")
        # and a `prompt` is the instruction in a template
        if not is_given(instruction) and is_given(value.get("prompt")):
            instruction = value["prompt"]
            replies.append("completion")
        instruction = check_text(instruction, "instruction")
        asked = {"role": "user", "content": instruction}
        earlier, instruction = read_prompt([*messages_before(value), asked], "history")
        output = check_reply(first_given(value, *replies), "output")
        record: Record = {"instruction": instruction, "input": read_input(value), "output": output}
    else:
        if isinstance(conversation, list):
            check_repeated(value, ("instruction", "input", "context", "output", "response"))
            conversation = [*messages_before(value, conversation), *conversation]
        *earlier, last = read_conversation(conversation)
        record = {"instruction": last["instruction"], "input": "", "output": last["output"]}
    return record | ({"earlier": earlier} if earlier else {})


def split(
    records: Mapping[str, Record], validation_share: float, address: str
) -> tuple[list[str], list[str]]:
    """Keys of the records to train on and of those held out, in their order.

    The prompts of the lowest hashes are held out: at least one prompt, and never all.
    """
    hashes = {
        key: hashlib.sha256(prompt_key(record).encode()).digest() for key, record in records.items()
    }
    ordered = sorted(hashes.values())
    if ordered[:1] == ordered[-1:]:
        raise UserError(
            f"{address}: {log.counted(len(records), 'record')} of one prompt: "
            "too few to train on some and hold out others; give at least two prompts"
        )
    last = min(
        ordered[max(1, round(validation_share * len(ordered))) - 1],
        max(each for each in ordered if each != ordered[-1]),
    )
    train = [key for key, each in hashes.items() if each > last]
    return train, [key for key, each in hashes.items() if each <= last]


def count_shapes(records: Collection[Record]) -> dict[str, int]:
    return {
        "with_input": sum(bool(record["input"]) for record in records),
        "conversations": sum("earlier" in record for record in records),
    }


prepare = RecordKind("instructions", check_record, WANTED, READ, facts=count_shapes).prepare
