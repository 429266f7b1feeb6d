"""A corpus that is built in steps, some of them once for each group of web shards, has the bytes of
one that a single process has built, and its pages are those of a corpus in one file."""

import json
import random
import resource
from pathlib import Path

import pytest
from corpus_samples import manifest_of, run, write_book, write_pages

from nanoeuler.cli import main
from nanoeuler.corpus import cleaning, near_duplicates
from nanoeuler.storage import spilled
from nanoeuler.storage.temporary import temporary_path
from nanoeuler.tokenizer.shards import TokenStore

WORDS = [f"w{number}" for number in range(3_000)]
SETTINGS = {
    "deduplicate": {"web": "near", "books": "near"},
    "decontaminate": True,
    "sources": ["gutenberg", "fineweb"],
}
GROUPS = ["000", "001", "002"]


@pytest.fixture
def repeating(tmp_path) -> tuple[list[str], list[str]]:
    """Books and five shards of web pages. Some repeat or quote others, also across shards."""
    dice = random.Random(1)
    texts = [" ".join(dice.choices(WORDS, k=120)) for _ in range(500)]
    for number in range(0, 500, 5):
        words = texts[dice.randrange(500)].split()
        words[dice.randrange(120)] = "other"  # a near-duplicate
        texts[number] = " ".join(words)
    for number in range(2, 500, 10):
        quoted = texts[dice.randrange(500)].split()[20:40]
        texts[number] = " ".join([*texts[number].split()[:100], *quoted])
    texts[77] = texts[444]
    shards = [texts[first : first + 100] for first in range(0, 500, 100)]
    pages = [write_pages(tmp_path / f"web/{n}.txt", shard) for n, shard in enumerate(shards)]
    stories = [" ".join(dice.choices(WORDS, k=500)) for _ in range(12)]
    stories[3] = f"{stories[7]} the end"
    books = [write_book(tmp_path / "clean", n, f"Book {n}", s) for n, s in enumerate(stories)]
    return books, pages


def build_in_steps(tmp_path: Path, books: list[str], pages: list[str], order: list[int]) -> None:
    everything = ["--books", *books, "--fineweb", *pages, "--group-files", "2"]

    def step(name: str, *arguments: str) -> None:
        assert run(tmp_path, "--step", name, *arguments, output="steps", **SETTINGS) == 0

    def groups(name: str) -> None:
        for group in order:
            step(name, "--group", str(group), "--fineweb", *pages[2 * group : 2 * group + 2])

    step("hold_out", *everything)
    groups("compare")
    step("choose", *everything)
    groups("write")
    step("finish", *everything)


def content(folder: Path, *parts: str) -> dict[str, bytes]:
    files = [file for part in parts for file in (folder / part).rglob("*") if file.is_file()]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def test_steps_in_any_order_write_the_bytes_of_one_process(tmp_path, repeating, monkeypatch):
    """The steps also when memory holds so little that everything is sorted on disk, in parts."""
    books, pages = repeating
    everything = ["--books", *books, "--fineweb", *pages]
    assert run(tmp_path, *everything, "--group-files", "2", output="one", **SETTINGS) == 0
    for name, limit in {"RUN": 200, "PART": 150, "BLOCK": 90}.items():
        monkeypatch.setattr(spilled, name, limit)
    monkeypatch.setattr(near_duplicates, "RUN", 200)
    monkeypatch.setattr(cleaning, "BLOCK", 90)
    build_in_steps(tmp_path, books, pages, [2, 0, 1])
    parts = ("train", "validation")
    assert content(tmp_path / "one", *parts) == content(tmp_path / "steps", *parts)
    assert manifest_of(tmp_path, "one") == manifest_of(tmp_path, "steps")
    web = manifest_of(tmp_path, "steps")["sources"]["fineweb"]
    assert all(
        web["dropped"][kind]["documents"] for kind in ("exact duplicates", "near duplicates")
    )
    assert web["dropped"]["contaminated"]["held-out text"]["documents"]

    assert run(tmp_path, *everything, output="whole", **SETTINGS) == 0
    for part in ("train/fineweb", "validation/fineweb"):
        files = [tmp_path / f"steps/{part}-{group}.txt" for group in GROUPS]
        joined = b"".join(file.read_bytes() for file in files)
        assert joined == (tmp_path / f"whole/{part}.txt").read_bytes()
    whole = manifest_of(tmp_path, "whole")["sources"]["fineweb"]
    assert web["train"]["documents"] == whole["train"]["documents"]
    assert web["dropped"] == whole["dropped"]


def test_groups_have_the_tokenizer_and_the_tokens_of_one_file(tmp_path, repeating):
    books, pages = repeating
    everything = ["--books", *books, "--fineweb", *pages]
    for name, grouping in {"groups": ["--group-files", "2"], "whole": []}.items():
        assert run(tmp_path, *everything, *grouping, output=name, **SETTINGS) == 0
    settings = json.dumps({"tokenizer": {"vocab_size": 400, "sample_bytes": 100_000}})

    def stage(name: str, corpus: str, *arguments: object) -> None:
        given = ["--config", settings, "--corpus", tmp_path / corpus / "manifest.json"]
        assert main([name, *map(str, [*given, *arguments])]) == 0

    for corpus in ("groups", "whole"):
        stage("bpe", corpus, "--output", tmp_path / f"{corpus}.json")
    learned = [(tmp_path / f"{corpus}.json").read_bytes() for corpus in ("groups", "whole")]
    assert learned[0] == learned[1]

    tokenizer = ["--tokenizer", tmp_path / "whole.json", "--output"]
    stage("tokenize", "whole", *tokenizer, tmp_path / "tokens")
    stage("tokenize", "groups", *tokenizer, tmp_path / "at-once")
    folders = [tmp_path / f"tokens-{group}" for group in GROUPS]
    for group, folder in reversed(list(enumerate(folders))):
        stage("tokenize", "groups", *tokenizer, folder, "--group", group)
    stage("tokenize", "groups", *tokenizer, tmp_path / "joined", "--groups", *folders)
    assert content(tmp_path / "joined", ".") == content(tmp_path / "at-once", ".")
    stores = [TokenStore.open(tmp_path / name / "manifest.json") for name in ("joined", "tokens")]
    for split in ("train", "validation"):
        joined, whole = (store.tokens(split)[:].tolist() for store in stores)
        assert joined == whole


def test_tokens_of_a_group_that_there_is_not_are_refused(tmp_path, repeating, capsys):
    _, pages = repeating
    settings = SETTINGS | {"sources": ["fineweb"]}
    assert run(tmp_path, "--fineweb", *pages, "--group-files", "2", **settings) == 0
    tokenizer = tmp_path / "tokenizer.json"
    given = ["--config", json.dumps({"tokenizer": {"vocab_size": 300, "sample_bytes": 10_000}})]
    given += ["--corpus", str(tmp_path / "corpus/manifest.json")]
    assert main(["bpe", *given, "--output", str(tokenizer)]) == 0
    for group in ("3", "-1"):
        output = ["--tokenizer", str(tokenizer), "--output", str(tmp_path / "tokens")]
        assert main(["tokenize", *given, *output, "--group", group]) == 1
        assert "has no such group; give a number from 0 to 2" in capsys.readouterr().err
    assert not (tmp_path / "tokens").exists()


def test_a_step_for_a_group_needs_its_number_and_the_step_before(tmp_path, repeating, capsys):
    _, pages = repeating
    arguments = ["--step", "compare", "--fineweb", *pages[:2]]
    assert run(tmp_path, *arguments, **SETTINGS) == 1
    assert "give its number with --group" in capsys.readouterr().err
    assert run(tmp_path, *arguments, "--group", "0", **SETTINGS) == 1
    assert "run the step that writes it first" in capsys.readouterr().err


def test_a_merge_on_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path, repeating, capsys):
    _, pages = repeating
    settings = SETTINGS | {"sources": ["fineweb"]}
    shards = ["--fineweb", *pages[:2], "--group-files", "1"]
    assert run(tmp_path, "--step", "hold_out", *shards, **settings) == 0
    for group in range(2):
        step = ["--step", "compare", "--group", str(group), "--fineweb", pages[group]]
        assert run(tmp_path, *step, **settings) == 0
    killed = temporary_path(tmp_path / "corpus/groups/spilled")
    killed.mkdir()
    (killed / "band-0").write_text("of a killed process")
    steps = sorted(path.name for path in killed.parent.iterdir() if path != killed)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    for step in ("hold_out", "choose"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limit[1]))
        try:
            assert run(tmp_path, "--step", step, *shards, **settings) == 1
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        assert capsys.readouterr().err.count("the disk is full; free some space") == 1
        assert sorted(path.name for path in killed.parent.iterdir()) == steps
    assert run(tmp_path, "--step", "choose", *shards, **settings) == 0


def test_a_corpus_of_one_group_has_no_steps(tmp_path, repeating, capsys):
    books, pages = repeating
    everything = ["--books", *books, "--fineweb", *pages, "--group-files", "5"]
    assert run(tmp_path, *everything, "--step", "hold_out", **SETTINGS) == 1
    assert "it has just one group; leave out --step" in capsys.readouterr().err
