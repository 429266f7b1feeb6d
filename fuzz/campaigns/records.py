"""Instructions, preferences, questions and items of tasks: JSON, JSON lines, gzip and zip."""

import gzip
import io
import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

from fuzz.campaigns.base import Campaign
from fuzz.mutation import Mutator, to_json
from nanoeuler.corpus import instructions, preferences, tasks
from nanoeuler.corpus.task_layouts import LAYOUTS

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Say fox."},
    {"role": "assistant", "content": "fox"},
]
ARC = {"question": "Why?", "choices": {"text": ["b", "c"], "label": ["A", "B"]}, "answerKey": "A"}
MORE: dict[str, list[dict[str, Any]]] = {  # further layouts
    "instructions": [
        {"messages": MESSAGES},
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]},
        {"instruction": "Say fox.", "context": "A fox.", "response": "fox", "category": "qa"},
        {"instruction": "Hi", "output": "Ho", "system": "x", "history": [["Say.", "fox"]]},
        {"messages": [*MESSAGES, MESSAGES[1], MESSAGES[2] | {"weight": 0}], "tools": []},
        {"instruction": "Hi", "input": "<noinput>", "output": "<nooutput>", "label": False},
    ],
    "preferences": [
        {"instruction": "Say fox.", "output_1": "fox", "output_2": "dog", "preference": 1},
        {"prompt": "Say.", "chosen": MESSAGES[1:], "rejected": [*MESSAGES[1:2], MESSAGES[2]]},
        {"messages": MESSAGES[:2], "chosen": "fox", "rejected": "dog", "history": [["a", "b"]]},
    ],
    "questions": [],
    "task": [
        {"query": "A", "choices": ["b", "c"], "gold": 0},
        {"ctx_a": "A", "ctx_b": "b", "activity_label": "x", "endings": ["c", "d"], "label": "1"},
        {"sentence": "The _ runs.", "option1": "fox", "option2": "dog", "answer": "1"},
        {"sentence_good": "a", "sentence_bad": "b", "UID": "x", "pairID": 3},
        {"text": "The fox runs home"},
        ARC,
    ],
}
BLOWN_UP = 1 << 26  # bytes of one member of a gzip bomb


class Records(Campaign):
    def __init__(self, material: Path):
        super().__init__(material)
        self.records = {
            kind: [
                *map(json.loads, (material / f"data/{kind}.jsonl").read_text().splitlines()),
                *more,
            ]
            for kind, more in MORE.items()
        }
        squeezer = zlib.compressobj(9, wbits=31)
        self.bomb = squeezer.compress(b"[" * BLOWN_UP) + squeezer.flush()

    def run(self, mutate: Mutator, folder: Path) -> None:
        kind = mutate.rng.choice(list(MORE))
        content = self.content(mutate, self.records[kind])
        if mutate.chance(0.25):
            content = gzip.compress(content, 1)
            if mutate.chance(0.3):
                content += mutate.rng.choice((content, b"\x1f\x8b", b"rubbish", content[:9]))
        if kind == "task" and mutate.chance(0.3):
            content = zipped(mutate, content)
        if mutate.chance(0.01):
            content = self.bomb * mutate.rng.choice((1, 16, 160))
            if kind == "task" and mutate.chance(0.5):
                content = zipped(mutate, content)
        if mutate.chance(0.3):
            content = mutate.bytes(content)
        path = folder / "records"
        path.write_bytes(content)
        entry: dict[str, Any] = {"url": str(path), "licence": "none"}
        if kind == "instructions":
            instructions.prepare("x", {"x": entry}, 0.1, folder / "prepared")
        elif kind == "preferences":
            preferences.prepare("x", {"x": entry}, 0.1, folder / "prepared")
        elif kind == "questions":
            tasks.prepare_questions("x", {"x": entry}, folder / "prepared.jsonl")
        else:
            if mutate.chance(0.2):
                entry["members"] = mutate.rng.choice(("*.jsonl", "records", "../*", "[", ""))
            task = {"name": "x", "kind": mutate.rng.choice(list(LAYOUTS)), **entry}
            tasks.prepare(task, folder / "prepared")

    def content(self, mutate: Mutator, records: list[dict[str, Any]]) -> bytes:
        chosen = mutate.rng.sample(records, min(len(records), mutate.rng.choice((1, 4, 20))))
        damaged = [mutate.value(r) if mutate.chance(0.3) else r for r in chosen]
        if mutate.chance(0.4):
            return to_json(mutate.value(damaged) if mutate.chance(0.3) else damaged).encode()
        ends = mutate.rng.choice(("\n", "\n", "\r\n", "\n\n", "\r", "\u2028"))
        text = ends.join(map(to_json, damaged))
        return text.encode(mutate.rng.choice(("utf-8", "utf-8", "utf-8-sig", "utf-16")))


def zipped(mutate: Mutator, content: bytes) -> bytes:
    names = (
        "records.jsonl",
        "../up.jsonl",
        "/abs.jsonl",
        "a/b.jsonl",
        "x-labels.lst",
        "\x1b.jsonl",
    )
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", mutate.rng.choice((0, 8, 12, 14))) as archive:
        for name in mutate.rng.sample(names, mutate.rng.choice((1, 1, 3))):
            archive.writestr(name, content)
    return file.getvalue()
