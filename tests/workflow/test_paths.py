"""The paths of a run's files, and the files that a stage reads."""

import json
from pathlib import Path

import pytest
from stub_checkout import CONFIG, SOURCES

from nanoeuler.config import load
from nanoeuler.config.paths import Paths
from nanoeuler.config.rules import option
from nanoeuler.config.stages import SFT
from nanoeuler.corpus.sources.fineweb import SOURCE as FINEWEB
from nanoeuler.corpus.sources.gutenberg import SOURCE as GUTENBERG
from nanoeuler.corpus.sources.gutenberg import about
from nanoeuler.corpus.sources.own_text import OWN_TEXT


@pytest.fixture
def paths(tmp_path, monkeypatch):
    """A function that gives the trial configuration's paths after changes such as "run=other"."""
    monkeypatch.chdir(tmp_path)
    Path("sources.yaml").write_text(SOURCES)
    Path("config.yaml").write_text(CONFIG)
    return lambda *changes: Paths(load("config.yaml", overrides=changes))


def test_data_is_shared_and_results_belong_to_the_run(paths):
    mine, other = paths(), paths("run=other")
    assert mine.tokens == other.tokens == "data/corpora/shared/tokens-512/manifest.json"
    assert mine.model("sft")["weights"] == "results/trial/sft/model/model.safetensors"
    assert other.report == "results/other/report.html"


def test_data_and_results_may_lie_elsewhere(paths):
    elsewhere = paths("data_dir=/scratch/data/", "results_dir=/home/me/runs")
    assert (
        GUTENBERG.fetched(elsewhere.config, "84") == "/scratch/data/gutenberg/classics/raw/pg84.txt"
    )
    assert elsewhere.stage("sft") == "/home/me/runs/trial/sft"


def test_other_filters_extract_into_another_folder(paths):
    def shard(*changes: str) -> str:
        return FINEWEB.text(paths(*changes).config, "000")

    assert shard() == shard("corpus.fineweb.shards=2")
    assert shard() != shard("corpus.fineweb.min_score=4")
    assert FINEWEB.record(paths().config, "000").endswith("/shard-000.json")


def test_books_are_those_asked_for_in_the_order_of_the_sources_file(paths):
    def books(*changes: str) -> list[str]:
        return GUTENBERG.items(paths(*changes).config)

    assert books() == ["84", "1342"]
    assert books("corpus.books=[1342]") == ["1342"]
    assert books('corpus.sources=["fineweb"]') == []
    assert about(paths().config, "84") == {"title": "Frankenstein", "author": ""}


def test_own_text_is_found_by_file_folder_and_glob(paths):
    for name in (
        "novel.txt",
        "notes/a.md",
        "notes/deep/b.TXT",
        "notes/picture.png",
        "notes/.hidden/c.txt",
        "letters/1/d.txt",
    ):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("text")
    config = paths('corpus.sources=["novel.txt", "gutenberg", "notes", "letters/**/*.txt"]').config
    assert [str(file) for file, _ in OWN_TEXT.paths(config)] == [
        "novel.txt",
        "notes/a.md",
        "notes/deep/b.TXT",
        "letters/1/d.txt",
    ]


def test_stages_follow_the_configuration(paths):
    assert paths().stages == ["pretrain", "sft", "sft_scratch", "dpo"]
    assert paths().last_stage == "dpo"
    assert paths("dpo.enabled=false").last_stage == "sft"
    assert paths("dpo.enabled=false", "sft.enabled=false").last_stage == "pretrain"
    assert paths("sft.baseline_from_scratch=false").stages == ["pretrain", "sft", "dpo"]
    assert paths("sft.enabled=false").stages == ["pretrain", "dpo"]
    assert paths("sft.enabled=false", "dpo.enabled=false", "evaluate.questions=null").downloads == [
        "data/gutenberg/classics/raw/pg84.txt",
        "data/gutenberg/classics/raw/pg1342.txt",
        FINEWEB.text(paths().config, "000"),
    ]


def test_tasks_are_fetched_by_name_and_shared_by_runs(paths):
    piqa, own = {"name": "piqa", "limit": 10}, {"name": "own", "url": "own.jsonl", "kind": "blimp"}
    mine = paths(f"evaluate.tasks={json.dumps([piqa, own])}")
    assert mine.tasks == ["data/tasks/piqa/manifest.json", "data/tasks/own/manifest.json"]
    assert mine.downloads[-2:] == mine.tasks
    assert paths().tasks == []


def test_fine_tuning_may_start_from_another_model(paths):
    pretrained = "results/trial/pretrain/model/model.safetensors"
    assert paths().parent_weights(SFT) == [pretrained]
    assert paths("sft.init_from=elsewhere/model").parent_weights(SFT) == []


def test_instructions_of_your_own_lie_under_a_name_made_of_their_path(paths):
    Path("my data.json").write_text("[]")
    known = paths("sft.instructions=alpaca").records_manifest("instructions")
    assert known == "data/instructions/alpaca/manifest.json"
    Path("my").mkdir()
    Path("my/data.json").write_text("[]")
    for name, short_hash in (("my data.json", "bdfb8365"), ("my/data.json", "1f135497")):
        manifest = paths(f"sft.instructions={name}").records_manifest("instructions")
        assert manifest == f"data/instructions/my-data-json-{short_hash}/manifest.json"


def test_an_option_without_files_is_left_out():
    assert option("--questions", []) == []
    assert option("--questions", ["a b"]) == ["--questions", "a b"]
