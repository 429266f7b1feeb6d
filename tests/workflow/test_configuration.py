"""A configuration is resolved completely: defaults, presets, sources, overrides."""

import json
from pathlib import Path

import pytest
from trial_config import CONFIG, SOURCES

from nanoeuler.config import load
from nanoeuler.config.loading import load_files
from nanoeuler.corpus.sources.gutenberg import SOURCE as GUTENBERG
from nanoeuler.corpus.sources.own_text import OWN_TEXT
from nanoeuler.corpus.text_files import Reading
from nanoeuler.errors import UserError


def own_text(config: dict) -> list[str]:
    return [str(file) for file, _ in OWN_TEXT.paths(config)]


def test_defaults_are_filled_in_and_the_preset_is_expanded(write_config):
    config = load(write_config())
    assert config["pretrain"]["beta2"] == 0.95
    assert config["corpus"]["name"] == "trial"
    assert config["model"]["dim"] == 128
    assert config["model"]["head_size"] == 32
    assert config["model"]["mtp_weights"] == [1.0] * 4
    assert config["tokenizer"]["vocab_size"] == config["model"]["vocab_size"] == 512
    assert config["sft"]["enabled"] is False


def test_a_section_that_is_there_counts_as_wanted(write_config):
    config = load(write_config("sft: {epochs: 2}"))
    assert config["sft"]["enabled"] is True
    assert config["sft"]["context"] == config["model"]["context"]


def test_the_sources_file_is_read_in_place(write_config):
    config = load(write_config("data_dir: /elsewhere"))
    assert config["sources"]["gutenberg"]["mirror"] == "/elsewhere/mirror"
    assert config["sources"]["gutenberg"]["delay_seconds"] == 2


def test_the_resolved_configuration_can_be_written_down_and_passed_inline(write_config):
    config = load(write_config())
    assert load(json.dumps(config)) == config


def test_inline_json_is_taken_as_it_is():
    assert load('{"tokenizer": {"vocab_size": 300}}') == {"tokenizer": {"vocab_size": 300}}


def test_fields_override_the_preset(write_config):
    assert (
        load(write_config(model="{preset: small, layers: 2, tied: true}"))["model"]
        | {"layers": 2, "tied": True, "dim": 128}
        == load(write_config(model="{preset: small, layers: 2, tied: true}"))["model"]
    )


@pytest.mark.parametrize(
    ("written", "meant"),
    [("3e-4", 3e-4), ("'3.0e-4'", 3e-4), ("1", 1)],
)
def test_a_number_that_yaml_reads_as_text_is_a_number(write_config, written, meant):
    assert load(write_config(learning_rate=written))["pretrain"]["learning_rate"] == meant


@pytest.mark.parametrize("written", ["1e6", "1.0e+6", "1_000_000", "'1000000'", "1e+6"])
def test_a_whole_number_may_be_written_in_every_common_way(write_config, written):
    tokens = load(write_config(tokens=written))["pretrain"]["tokens"]
    assert tokens == 1_000_000
    assert isinstance(tokens, int)


@pytest.mark.parametrize(
    ("written", "meant"), [("2026-11-05", "2026-11-05"), ("42", "42"), ("first", "first")]
)
def test_a_run_may_be_named_like_a_date_or_a_number(write_config, written, meant):
    assert load(write_config(run=written))["run"] == meant


def test_what_a_command_line_gives_as_text_is_coerced(write_config):
    config = load_files(
        [write_config()],
        {
            "pretrain": {"document_mask": "false", "init_from": "null", "micro_batch_rows": "8"},
            "seed": "7",
            "corpus": {"books": ["84"]},
        },
    )
    assert config["pretrain"]["document_mask"] is False
    assert config["pretrain"]["init_from"] is None
    assert config["pretrain"]["micro_batch_rows"] == 8
    assert config["seed"] == 7
    assert config["corpus"]["books"] == [84]


def test_overrides_reach_into_sections(write_config):
    config = load(write_config(), overrides=["pretrain.learning_rate=1e-3", "corpus.books=[84]"])
    assert config["pretrain"]["learning_rate"] == 1e-3
    assert GUTENBERG.items(config) == ["84"]


def test_a_later_file_wins_key_by_key(write_config, tmp_path):
    first = write_config()
    (tmp_path / "more.yaml").write_text("pretrain: {learning_rate: 1e-3}\ncorpus: {books: [84]}")
    config = load_files([first, tmp_path / "more.yaml"])
    assert config["pretrain"]["learning_rate"] == 1e-3
    assert config["pretrain"]["tokens"] == 1_000_000


def test_own_text_alone_needs_no_sources_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("novel.txt").write_text("It was a dark night. " * 50)
    own = CONFIG.replace("sources: {sources}\n", "corpus: {{sources: [novel.txt]}}\n").format()
    Path("mine.yaml").write_text(own)
    config = load("mine.yaml")
    assert config["sources"] == {}
    assert own_text(config) == ["novel.txt"]
    Path("mine.yaml").write_text(own.replace("novel.txt", "gutenberg"))
    with pytest.raises(UserError, match="takes gutenberg, but no sources file is named; write"):
        load("mine.yaml")


def test_a_source_may_say_how_its_files_are_read(tmp_path, monkeypatch):
    (tmp_path / "letters").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "letters/a.txt").write_bytes("Письмо. ".encode("cp1251") * 50)
    own = CONFIG.replace("sources: {sources}\n", "corpus: {{sources: [{entry}]}}\n")
    entry = "{path: letters, encoding: cp1251, separator: '* * *'}"
    (tmp_path / "mine.yaml").write_text(own.format(entry=entry))
    monkeypatch.chdir(tmp_path / "elsewhere")
    config = load("../mine.yaml")
    ((file, reading),) = OWN_TEXT.paths(config)
    assert (str(file), reading) == ("../letters/a.txt", Reading("cp1251", "* * *"))
    for entry, problem in {
        "{path: letters, encoding: klingon}": "names the encoding 'klingon', which Python does not",
        "{path: letters, encoding: base64}": "names the encoding 'base64', which Python does not",
        "{path: letters, encodin: x}": r"corpus.sources\[0\].encodin; did you mean .*encoding\?",
        "{encoding: cp1251}": r"must be text or \{path: …, encoding: …, separator: …\}",
    }.items():
        (tmp_path / "mine.yaml").write_text(own.format(entry=entry))
        with pytest.raises(UserError, match=problem):
            load("../mine.yaml")


@pytest.mark.parametrize("folder", ["project", "project/config"])
def test_files_are_found_beside_the_configuration_from_any_folder(tmp_path, monkeypatch, folder):
    """They lie in the project's folder, and the command runs in another."""
    project = tmp_path / "project"
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    for name in ("novel.txt", "pairs.jsonl", "sources.yaml"):
        (project / name).write_text(SOURCES if name == "sources.yaml" else "It was a dark night.")
    text = CONFIG.format(sources="sources.yaml") + (
        "corpus: {sources: ['n*.txt']}\nsft: {init_from: novel.txt}\n"
        "dpo: {preferences: pairs.jsonl}\n"
    )
    (tmp_path / folder / "mine.yaml").write_text(text)
    monkeypatch.chdir(tmp_path / "elsewhere")
    config = load(f"../{folder}/mine.yaml")
    assert own_text(config) == ["../project/novel.txt"]
    assert config["dpo"]["preferences"] == "../project/pairs.jsonl"
    assert config["sft"]["init_from"] == "../project/novel.txt"
    assert config["sft"]["instructions"] == "alpaca"
    Path("novel2.txt").write_text("Nearer.")
    assert own_text(load(f"../{folder}/mine.yaml")) == ["novel2.txt"]
