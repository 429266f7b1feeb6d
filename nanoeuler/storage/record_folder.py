"""Read the records that `nanoeuler instructions` and `nanoeuler preferences` wrote.

folder = RecordFolder("data/instructions/alpaca/manifest.json", "instructions")
for where, record in read_json_lines(folder.file("train")): ...
"""

import json
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from nanoeuler import log
from nanoeuler.errors import UserError
from nanoeuler.storage.files import canonical_json, read_json, read_lines
from nanoeuler.storage.integrity import Origin, check_file


class RecordFolder:
    """A folder of records by its manifest, which holds the hash of each file of them."""

    def __init__(self, path: str | Path, stage: str):
        """`stage` is the command that writes such folders."""
        self.path, self.stage = Path(path), stage
        self.manifest = read_json(self.path) if self.path.exists() else {}  # records made by hand
        if not isinstance(self.manifest, dict):
            raise UserError(
                f"{self.path}: not a manifest of {stage}; "
                f"give the manifest.json that `nanoeuler {stage}` writes"
            )

    def check(self, part: str) -> str:
        """The SHA-256 of the records of a part: train or validation.

        Raises `UserError` where they are not those that were written.
        """
        entry, path = self.manifest.get(part), self.path.with_name(f"{part}.jsonl")
        expected = entry.get("sha256") if isinstance(entry, dict) else None
        if expected is None:
            log.line("unchecked", f"{path}: {self.path.name} has no sha256 to compare it with")
        folder = self.path.parent
        origin = Origin(
            f"`nanoeuler {self.stage}`",
            f"delete {folder} and run it again, or, if you changed it yourself: "
            f"nanoeuler accept {folder}",
            self.manifest.get("url") or self.manifest.get("name"),
        )
        return check_file(path, expected, origin)

    def file(self, part: str) -> Path:
        """The file of a part, after `check`."""
        self.check(part)
        return self.path.with_name(f"{part}.jsonl")

    def held_out_prompts(self) -> frozenset[str]:
        """The keys of the prompts that are held out, after `check`."""
        return frozenset(
            checked_key(record, where) for where, record in read_json_lines(self.file("validation"))
        )


def prompt_key(record: Mapping[str, Any]) -> str:
    """Return the prompt that a record's conversation opens with, which decides its side.

    Prompts that differ in capital letters, white space or Unicode's form alone are one.
    """
    first = record["earlier"][0] if record.get("earlier") else record
    parts = (str(first.get(name) or "") for name in ("instruction", "input"))
    return canonical_json(
        [" ".join(unicodedata.normalize("NFKC", part).casefold().split()) for part in parts]
    )


def checked_key(entry: dict[str, Any], where: str) -> str:
    """Parse a record that a person may have written. Raises `UserError` naming its line."""
    earlier_turns(entry, where)
    return prompt_key(entry)


def read_apart(path: Path, held_out: Collection[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Do as `read_json_lines`, without the records whose prompt is among `held_out`.

    Instructions and preferences often share prompts: none may be learned from one of them and
    measured with the other. Raises `UserError` where that leaves no record.
    """
    left = left_out = 0
    with log.Progress("read", None, " records") as progress:
        for where, entry in read_json_lines(path):
            progress.update(1)
            if held_out and checked_key(entry, where) in held_out:
                left_out += 1
            else:
                left += 1
                yield where, entry
    if left_out:
        told = log.counted(left_out, "record")
        if not left:
            raise UserError(
                f"{path}: the prompts of all its {told} are held out of the other data of this "
                "run, instructions or preferences; lower the other one's validation_share"
            )
        log.line("apart", f"{path}: {told} left out, whose prompts are held out of the other data")


def read_json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each JSON object of a file that has one a line, after its place ("FILE, line 3").

    Raises `UserError` naming the line of a mistake.
    """
    try:
        for number, line in enumerate(read_lines(path), 1):
            where = f"{path}, line {number}"
            text = line.decode("utf-8")
            if text.strip():
                yield where, parse(text, where)
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file; run the stage that writes it first") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not UTF-8 text ({error}); save it as UTF-8") from error


def parse(line: str, where: str) -> dict[str, Any]:
    mend = "correct the line or take it out"
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a ValueError
        reason = error.msg if isinstance(error, json.JSONDecodeError) else error
        raise UserError(f"{where}: not valid JSON ({reason}); {mend}") from error
    if not isinstance(entry, dict):
        raise UserError(f"{where}: not a JSON object; {mend}")
    return entry


def check_texts(entry: Mapping[str, Any], required: tuple[str, ...], where: str) -> None:
    """Raise `UserError` unless the `required` fields, and `input` if there is one, are texts."""
    for field in (*required, "input"):
        if not isinstance(entry.get(field, "" if field == "input" else None), str):
            raise UserError(
                f"{where}: {field} is missing or not a text; correct the line or take it out"
            )


def earlier_turns(entry: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """The turns before the last of a conversation, each with an instruction and its output.

    A turn may have `learned`, a truth value.
    """
    turns = entry.get("earlier", [])
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise UserError(f"{where}: earlier is not a list of turns; correct the line or take it out")
    for turn in turns:
        check_texts(turn, ("instruction", "output"), where)
        if not isinstance(turn.get("learned", True), bool):
            raise UserError(
                f"{where}: learned is neither true nor false; correct the line or take it out"
            )
    return turns
