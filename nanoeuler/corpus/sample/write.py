"""Write the sample to disk, laid out like the servers that a real run downloads from.

data/sample/gutenberg/…          a mirror: cache/epub/{id}/pg{id}.txt, and some files of the
                                 older tree, 9/0/0/0/90003/90003-8.txt
data/sample/fineweb/000.parquet  web pages in FineWeb-Edu's schema
data/sample/instructions.json    records {instruction, input, output}
data/sample/preferences.jsonl    pairs {instruction, input, chosen, rejected}
data/sample/questions.jsonl      {instruction, input, answer, kind, preferred_ending}, held out
data/sample/sums.jsonl           records {instruction, input, output} with a calculator's call
data/sample/problems.jsonl       other sums, {instruction, answer}
data/sample/manifest.json        written last: counts, hashes, settings
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nanoeuler.corpus.sample.articles import write_pages, write_parquet
from nanoeuler.corpus.sample.books import BOOKS, write_book
from nanoeuler.corpus.sample.conversations import (
    prompts_worth_typing,
    record,
    write_instructions,
    write_preferences,
    write_questions,
)
from nanoeuler.corpus.sample.sums import write_sums
from nanoeuler.corpus.sample.world import Sample, build_world
from nanoeuler.storage.files import sha256_file, write_json
from nanoeuler.storage.folders import atomic_folder, require_ours

ROWS_PER_GROUP = 2048


def write_sample(section: Mapping[str, object], output: Path) -> dict[str, Any]:
    """Write the sample of the configuration's section `sample` to `output`; return its manifest."""
    settings = Sample.from_config(section)
    require_ours(output)
    world = build_world(settings.seed, settings.people, settings.boats)
    pages = list(write_pages(world, settings.seed, settings.articles))
    instructions = write_instructions(world, settings.seed, settings.other_instructions)
    preferences = write_preferences(world, settings.seed)
    questions = write_questions(world, settings.seed)
    worked, problems = write_sums(settings.seed)
    with atomic_folder(output) as folder:
        for book in BOOKS:
            path = folder / "gutenberg" / book.wrapping.location(book.id)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(write_book(book, world, settings.seed, settings.paragraphs_per_book))
        (folder / "fineweb").mkdir()
        write_parquet(pages, folder / "fineweb" / "000.parquet", ROWS_PER_GROUP)
        (folder / "instructions.json").write_text(
            json.dumps(instructions, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        files = {
            "preferences": preferences,
            "questions": questions,
            "sums": [record(each.text, each.worked) for each in worked],
            "problems": [{"instruction": each.text, "answer": each.answer} for each in problems],
        }
        for name, records in files.items():
            (folder / f"{name}.jsonl").write_text(
                "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records),
                encoding="utf-8",
            )
        kinds = Counter(question["kind"] for question in questions)
        written = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        manifest = {
            "version": 1,
            "settings": asdict(settings),
            "licence": "MIT",
            "people": len(world.people),
            "boats": len(world.boats),
            "facts": sum(len(subject.facts) for subject in world.subjects),
            "books": len(BOOKS),
            "pages": len(pages),
            "instructions": len(instructions),
            "preferences": len(preferences),
            "questions": len(questions),
            "sums": len(worked),
            "problems": len(problems),
            "prompts": prompts_worth_typing(world, questions),
            "questions_by_kind": dict(sorted(kinds.items())),
            "files": {
                path.relative_to(folder).as_posix(): {
                    "bytes": path.stat().st_size,
                    "sha256": sha256_file(path),
                }
                for path in written
            },
        }
        write_json(folder / "manifest.json", manifest)
    return manifest
