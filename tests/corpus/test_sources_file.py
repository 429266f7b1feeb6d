"""The sources file of real runs: whole, pinned, and without a book that may not be used."""

import csv
import gzip
import hashlib
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from nanoeuler.config.data_settings import Sources
from nanoeuler.config.validation import check
from nanoeuler.config.yaml_file import read_yaml
from nanoeuler.corpus.addresses import resolve
from nanoeuler.corpus.task_layouts import LAYOUTS
from nanoeuler.model.calls import split_calls

SOURCES = Path(__file__).resolve().parents[2] / "config" / "sources.yaml"


@pytest.fixture(scope="module")
def sources() -> dict:
    content, places = read_yaml(SOURCES)
    return check(content, Sources, places, str(SOURCES))


def files(section: dict) -> list[dict]:
    """The files that a section names, also in mixtures."""
    return [file for entry in section.values() for file in entry.get("mixture", [entry])]


def test_it_lists_classics_once_with_title_and_author(sources):
    books = sources["gutenberg"]["books"]
    assert len(books) >= 95
    assert len({book["id"] for book in books}) == len(books)
    assert all(book["title"].strip() and book["author"].strip() for book in books)


def test_every_section_names_its_licence(sources):
    assert sources["gutenberg"]["licence"]
    assert sources["fineweb"]["licence"]
    assert all(
        entry["licence"]
        for section in ("instructions", "preferences", "problems", "tasks")
        for entry in files(sources[section])
    )


def test_web_and_instructions_are_pinned(sources):
    web = sources["fineweb"]
    assert len(web["shards"]) == 14
    # the number on the data set's page
    assert sum(shard["bytes"] for shard in web["shards"]) == 28_518_193_415
    assert len({shard["sha256"] for shard in web["shards"]}) == 14
    for shard in web["shards"]:
        assert f"/resolve/{web['revision']}/sample/10BT/" in resolve(shard["url"], web["revision"])
    assert all(entry["sha256"] for entry in files(sources["instructions"] | sources["problems"]))


def test_sums_in_words_are_instructions_and_problems_and_part_of_a_mixture(sources):
    alone, mixed = (sources["instructions"][name] for name in ("gsm8k", "alpaca_gsm8k"))
    fields = ("url", "bytes", "sha256", "licence")
    for entry in (sources["problems"]["gsm8k"], mixed["mixture"][1]):
        assert [entry[field] for field in fields] == [alone[field] for field in fields]
    assert mixed["mixture"][0]["url"] == sources["instructions"]["alpaca"]["url"]
    assert re.search(r"/openai/grade-school-math/[0-9a-f]{40}/", alone["url"])


def test_the_sums_are_those_of_the_real_data(sources, real_data):
    content = gzip.decompress((real_data / "eval" / "gsm8k_train.jsonl.gz").read_bytes())
    entry = sources["problems"]["gsm8k"]
    assert (len(content), hashlib.sha256(content).hexdigest()) == (entry["bytes"], entry["sha256"])
    answers = [split_calls(json.loads(line)["answer"]) for line in content.splitlines()]
    assert len(answers) == 7473
    assert sum(len(each.parts) // 3 + each.dropped for each in answers) == 23_716  # docs/data.md
    assert sum(each.dropped for each in answers) == 2
    assert sum(each.dropped > 0 for each in answers) == 2


def test_preferences_are_pinned_by_a_revision_but_for_one_whose_is_not_known(sources):
    pinned = {
        name
        for name, entry in sources["preferences"].items()
        if entry["sha256"] or re.fullmatch(r"[0-9a-f]{40}", entry["revision"] or "")
    }
    assert set(sources["preferences"]) - pinned == {"alpaca_farm"}
    for name in pinned:
        entry = sources["preferences"][name]
        assert f"/resolve/{entry['revision']}/" in resolve(entry["url"], entry["revision"])


def test_a_task_is_pinned_by_its_hash_or_by_a_commit_in_its_address(sources):
    assert {entry["kind"] or name for name, entry in sources["tasks"].items()} == set(LAYOUTS)
    assert all(
        entry["sha256"] or re.search(r"[0-9a-f]{40}", entry["url"])
        for entry in sources["tasks"].values()
    )


def test_core_is_dclms_22_tasks_with_shots_and_baselines(sources):
    core = {name: each for name, each in sources["tasks"].items() if each["group"] == "core"}
    shots: dict[int, int] = Counter(each["shots"] or 0 for each in core.values())
    assert shots == {10: 14, 3: 1, 0: 7}
    assert Counter(each["kind"] for each in core.values()) == {
        "multiple_choice": 11,
        "language_modelling": 9,
        "schema": 2,
    }
    percent = Counter(round(100 * each["baseline"], 1) for each in core.values())
    assert percent == {0: 9, 9.1: 1, 20: 2, 25: 5, 50: 4, 62: 1}
    assert sources["tasks"]["core_boolq"]["delimiter"] == "\nAnswer:"


def test_the_books_are_those_of_the_real_data_less_the_copyrighted_one(sources, real_data):
    with open(real_data / "gutenberg" / "index.csv", encoding="utf-8", newline="") as file:
        found = {int(row["id"]) for row in csv.DictReader(file)}
    assert {book["id"] for book in sources["gutenberg"]["books"]} == found - {16}
