"""Convert what models are measured on from its public files: tasks, and questions.

    nanoeuler task --config config/base.yaml --name hellaswag --output data/tasks/hellaswag
    nanoeuler questions --config config/config.yaml --name world --output data/questions/world.jsonl

A task is one file of JSON lines, a folder of them, or a zip archive of them; any may be compressed
with gzip. Records that cannot be asked are left out and counted. When more than half are, the file
does not have the layout of the task's kind, and the stage stops.

A question, whose answer can be scored exactly, has an `instruction`, an `answer` and, if there is
one, an `input`. `kind` groups questions in the report, and replies that end with the text
`preferred_ending` are counted. One bad line stops the stage, since a score is only comparable when
every question counts. Further fields (an id, a source) are not read, but one that belongs to the
prompt is refused.
"""

import fnmatch
import json
import lzma
import stat
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

from nanoeuler import log
from nanoeuler.corpus.dialogue import NO_PLACE, Unusable, check_text, is_given
from nanoeuler.corpus.download import SourceFile, local_copy
from nanoeuler.corpus.json_records import (
    Ration,
    check_unpacked,
    decoded,
    parse_json_records,
    read_json_records,
    unpack,
)
from nanoeuler.corpus.record_files import Faults
from nanoeuler.corpus.remote_file import Patience
from nanoeuler.corpus.task_layouts import ASKED, BadItem, Item, peers, read_item
from nanoeuler.errors import UserError
from nanoeuler.storage.files import atomic_write, sha256_text, write_json
from nanoeuler.storage.folders import atomic_folder, require_ours

LABELS = "-labels.lst"
"""Ending of PIQA's file of answers, which has a line for each record of the file of that name."""
DAMAGED_ZIP = (
    *(zipfile.BadZipFile, OSError, EOFError, ValueError, RuntimeError, struct.error),
    *(zlib.error, lzma.LZMAError),
)
"""Exceptions of Python for damaged, encrypted or unknown archives."""
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Compressions of archives. The others unpack blocks of any size at once."""
PROMPTS = ("context", "system", "system_prompt", "history", "messages", "conversations", *NO_PLACE)


def prepare(
    task: Mapping[str, Any], output: Path, patience: Patience | None = None
) -> dict[str, Any]:
    """Write items.jsonl and, last, manifest.json to the folder `output`; return the manifest.

    `task` is an entry that `sources.data_sets.describe` returns.
    """
    source = SourceFile.from_entry(task)
    require_ours(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    wanted = task.get("members")
    if isinstance(source.location, Path) and source.location.is_dir():
        records = records_of_folder(source.location, wanted)
        items, bad = check_items(task, records, source.url)
        revision = sha256 = None
    else:
        with local_copy(source, output, patience) as copy:
            records = records_of_file(copy.path, source.url, wanted)
            items, bad = check_items(task, records, source.url)
            revision, sha256 = copy.revision, copy.sha256
    # ASCII, since some readers take other characters for line ends
    lines = "".join(json.dumps(item) + "\n" for item in items)
    manifest = {
        "version": 1,
        "name": task["name"],
        "kind": task["kind"],
        "group": task.get("group"),
        **{key: task.get(key) for key in ASKED},
        "url": source.url,
        "revision": revision,
        "licence": task.get("licence"),
        "sha256": sha256,
        "items": len(items),
        "bad": dict(bad),
        "items_sha256": sha256_text(lines),
    }
    with atomic_folder(output) as folder:
        (folder / "items.jsonl").write_text(lines, encoding="ascii")
        write_json(folder / "manifest.json", manifest)
    log.line("task", name=task["name"], kind=task["kind"], items=len(items), bad=bad.total())
    return manifest


def check_items(
    task: Mapping[str, Any], records: Iterator[tuple[str, Any]], address: str
) -> tuple[list[Item], Counter[str]]:
    """Return the items of a file in their order, and the counted faults of all other records."""
    kind, shots = task["kind"], task.get("shots") or 0
    items: list[Item] = []
    faults, total = Faults(address), 0
    for number, (where, record) in enumerate(records, 1):
        total = number
        try:
            items.append(read_item(kind, record, number, task.get("delimiter") or ""))
        except BadItem as error:
            faults.add(where, str(error))
    faults.tell(total, len(items), f"do not have the layout of {kind}", "correct kind or address")
    fewest = min(map(len, peers(items)), default=0)
    if shots >= fewest > 0:
        raise UserError(
            f"{address}: shots is {shots}, but an item has only {fewest - 1} others of its kind "
            "that could be its examples; give fewer shots"
        )
    return items, faults.counts


def records_of_file(path: Path, address: str, members: str | None) -> Iterator[tuple[str, Any]]:
    """Yield the records of a file of JSON lines, or of such files in a zip archive.

    With `members`, only files of the archive are read whose paths match this pattern.
    """
    if zipfile.is_zipfile(path):
        yield from records_of_archive(path, address, members)
        return
    ration = Ration(path.stat().st_size)
    beside = path.with_name(stem(path.name) + LABELS)
    files = [path, beside] if beside.is_file() else [path]
    file, *labels = [partial(open_bytes, each) for each in files]
    for opened in (file, *labels):
        check_unpacked(opened, address, ration)
    yield from labelled(file, labels[0] if labels else None, address)


def records_of_archive(path: Path, address: str, members: str | None) -> Iterator[tuple[str, Any]]:
    """Yield the records of files in an archive. Nothing of it is written to the disk."""
    ration = Ration(path.stat().st_size)
    try:
        with zipfile.ZipFile(path) as archive:
            files = {info.filename: info for info in archive.infolist() if is_file(info)}
            chosen = sorted(name for name in files if is_wanted(name, members))
            if not chosen:
                held = ", ".join(name[:80] for name in archive.namelist()[:3])
                raise UserError(
                    f"{address}: the archive holds no {members or '.jsonl file'} (it holds "
                    f"{held or 'nothing'}); correct members"
                )
            labels = {name: files.get(stem(name) + LABELS) for name in chosen}
            for member in filter(None, [*map(files.get, chosen), *labels.values()]):
                where = f"{address}, {member.filename[:80]}"
                if member.compress_type not in METHODS:
                    raise UserError(
                        f"{where}: compressed in a way that is not read; pack it with deflate"
                    )
                check_unpacked(partial(archive.open, member), where, ration)
            for name in chosen:
                beside = labels[name]
                yield from labelled(
                    partial(archive.open, files[name]),
                    partial(archive.open, beside) if beside else None,
                    f"{address}, {name[:80]}",
                )
    except DAMAGED_ZIP as error:
        raise UserError(f"{address}: damaged zip archive ({error}); fetch it again") from error


def open_bytes(path: Path) -> IO[bytes]:
    return path.open("rb")


def is_file(member: zipfile.ZipInfo) -> bool:
    """Return whether a member of an archive is a file, and no folder or symbolic link."""
    named = member.filename and not member.is_dir()
    return bool(named) and not stat.S_ISLNK(member.external_attr >> 16)


def records_of_folder(folder: Path, members: str | None) -> Iterator[tuple[str, Any]]:
    paths = sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and is_wanted(path.relative_to(folder).as_posix(), members)
    )
    if not paths:
        raise UserError(f"{folder}: holds no {members or '.jsonl file'}; correct the address")
    for path in paths:
        for where, record in records_of_file(path, str(path), None):
            yield f"{path.name}, {where}", record


def is_wanted(name: str, members: str | None) -> bool:
    """Return whether the path `name` matches the pattern `members`.

    Without a pattern, all JSON lines are wanted, except for those that an archiver added by itself.
    """
    if members:
        return fnmatch.fnmatch(name, members)
    return name.endswith((".jsonl", ".jsonl.gz")) and not name.startswith("__MACOSX/")


def labelled(
    file: Callable[[], IO[bytes]], labels: Callable[[], IO[bytes]] | None, address: str
) -> Iterator[tuple[str, Any]]:
    """Yield the records of a file, each with its label from the file of labels.

    Raises `UserError` unless there is one label for each record.
    """
    with unpack(file) as lines:
        if labels is None:
            yield from parse_json_records(lines, address)
            return
        asked = list(parse_json_records(lines, address))
    with unpack(labels) as lines:
        answers = "".join(decoded(lines, f"{address}, its {LABELS}")).split()
    if len(answers) != len(asked):
        raise UserError(
            f"{address}: {log.counted(len(asked), 'record')}, but "
            f"{log.counted(len(answers), 'answer')} in {LABELS} beside it; "
            "correct or remove that file"
        )
    for (where, record), answer in zip(asked, answers, strict=True):
        yield where, {"label": answer, **record} if isinstance(record, Mapping) else record


def stem(name: str) -> str:
    return name.removesuffix(".gz").removesuffix(".jsonl")


def prepare_questions(
    name: str, sources: Mapping[str, Any], output: Path, patience: Patience | None = None
) -> int:
    """Write the checked questions `name` to `output` as JSON lines, and return their number.

    `sources` is the section questions of the sources file.
    """
    if name not in sources:
        raise UserError(
            f"{name}: no name under questions in the sources file (there: "
            f"{', '.join(sources) or 'none'}); correct it, or add it there"
        )
    source = SourceFile.from_entry(sources[name])
    output.parent.mkdir(parents=True, exist_ok=True)
    with local_copy(source, output, patience) as copy:
        questions = [
            check_question(value, f"{source.url}, {where}")
            for where, value in read_json_records(copy.path, source.url)
        ]
    if not questions:
        raise UserError(f"{source.url}: holds no questions; correct the address, or fetch it again")
    with atomic_write(output) as file:
        file.writelines(json.dumps(question) + "\n" for question in questions)
    log.line("questions", name=name, questions=len(questions))
    return len(questions)


def check_question(value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise UserError(
            f"{where}: not a JSON object; "
            "each line must hold one question as {'instruction': …, 'answer': …}"
        )
    question = {**value, "input": "" if value.get("input") is None else value["input"]}
    for name in PROMPTS:
        if is_given(value.get(name)):
            raise UserError(
                f"{where}: {name} is a part of the prompt for which a question has no place; "
                "write it into instruction or input, or take the question out"
            )
    optional = [name for name in ("kind", "preferred_ending") if name in question]
    fields = ["instruction", "input", "answer", *optional]
    try:
        for field in fields:
            check_text(question.get(field), field, may_be_empty=field == "input")
    except Unusable as error:
        raise UserError(f"{where}: {error}; correct it, or take the question out") from error
    return {field: question[field] for field in fields}
