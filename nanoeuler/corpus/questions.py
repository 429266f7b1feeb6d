"""Fetch held-out questions whose answers can be scored exactly.

    nanoeuler questions --config config/config.yaml --name world --output data/questions/world.jsonl

Each line is a JSON object: `instruction`, `answer` and, if there is one, `input`. `kind` groups
questions in the report, and replies that end with the text `preferred_ending` are counted. One bad
line stops the stage, since a score is only comparable when every question counts. Further fields
(an id, a source) are not read, but one that belongs to the prompt is refused.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nanoeuler import log
from nanoeuler.corpus.dialogue import NO_PLACE, is_given
from nanoeuler.corpus.download import SourceFile, local_copy
from nanoeuler.corpus.json_records import read_json_records
from nanoeuler.corpus.remote_file import Patience
from nanoeuler.errors import UserError
from nanoeuler.storage.files import atomic_write

PROMPTS = ("context", "system", "system_prompt", "history", "messages", "conversations", *NO_PLACE)


def prepare(
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
    for field in fields:
        text = question.get(field)
        if not isinstance(text, str) or not (text.strip() or field == "input"):
            problem = (
                "missing" if text is None else "not text" if not isinstance(text, str) else "empty"
            )
            raise UserError(f"{where}: {field} is {problem}; correct it, or take the question out")
    return {field: question[field] for field in fields}
