"""A configuration is resolved completely; a mistake gets a sentence with line, key and remedy."""

import dataclasses
import json
import re
from dataclasses import Field, fields
from pathlib import Path

import pytest

from nanoeuler.config import load, sources
from nanoeuler.config.corpus_settings import Sample
from nanoeuler.config.evaluation_settings import Task
from nanoeuler.config.loading import load_files
from nanoeuler.config.paths import Paths
from nanoeuler.config.reference import reference
from nanoeuler.config.section import Section, section_type
from nanoeuler.config.settings import Configuration, Model
from nanoeuler.config.sources import Sources
from nanoeuler.corpus.sample.settings import Settings
from nanoeuler.errors import UserError
from nanoeuler.model.config import ModelConfig

SOURCES = """
gutenberg: {collection: classics, mirror: "{data_dir}/mirror", licence: Public domain, books: [
  {id: 1342, title: Pride and Prejudice}, {id: 84}]}
fineweb: {collection: web, shards: [{url: "https://example.org/000.parquet"}]}
instructions: {alpaca: {url: alpaca.json}}
questions: {world: {url: questions.jsonl}}
"""
CONFIG = """
run: trial
sources: {sources}
model: {{preset: small}}
pretrain:
  tokens: 1000000
  batch_tokens: 4096
  learning_rate: 3.0e-3
"""


@pytest.fixture
def write(tmp_path):
    """A function that writes the trial configuration with changes, and returns its path."""
    (tmp_path / "sources.yaml").write_text(SOURCES)

    def write(added: str = "", name: str = "config.yaml", **replaced: str) -> str:
        text = CONFIG.format(sources=tmp_path / "sources.yaml") + added
        for old, new in replaced.items():
            lines = [
                f"{line.split(old + ':')[0]}{old}: {new}"
                if line.strip().startswith(old + ":")
                else line
                for line in text.splitlines()
            ]
            text = "\n".join(lines)
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def test_defaults_are_filled_in_and_the_preset_is_expanded(write):
    config = load(write())
    assert config["pretrain"]["beta2"] == 0.95
    assert config["corpus"]["name"] == "trial"
    assert config["model"]["dim"] == 128
    assert config["model"]["head_size"] == 32
    assert config["model"]["mtp_weights"] == [1.0] * 4
    assert config["tokenizer"]["vocab_size"] == config["model"]["vocab_size"] == 512
    assert config["sft"]["enabled"] is False


def test_a_section_that_is_there_counts_as_wanted(write):
    config = load(write("sft: {epochs: 2}"))
    assert config["sft"]["enabled"] is True
    assert config["sft"]["context"] == config["model"]["context"]


def test_the_sources_file_is_read_in_place(write):
    config = load(write("data_dir: /elsewhere"))
    assert config["sources"]["gutenberg"]["mirror"] == "/elsewhere/mirror"
    assert config["sources"]["gutenberg"]["delay_seconds"] == 2


def test_the_resolved_configuration_can_be_written_down_and_passed_inline(write):
    config = load(write())
    assert load(json.dumps(config)) == config


def test_inline_json_is_taken_as_it_is():
    assert load('{"tokenizer": {"vocab_size": 300}}') == {"tokenizer": {"vocab_size": 300}}


def test_fields_override_the_preset(write):
    assert (
        load(write(model="{preset: small, layers: 2, tied: true}"))["model"]
        | {"layers": 2, "tied": True, "dim": 128}
        == load(write(model="{preset: small, layers: 2, tied: true}"))["model"]
    )


@pytest.mark.parametrize(
    ("written", "meant"),
    [("3e-4", 3e-4), ("'3.0e-4'", 3e-4), ("1", 1)],
)
def test_a_number_that_yaml_reads_as_text_is_a_number(write, written, meant):
    assert load(write(learning_rate=written))["pretrain"]["learning_rate"] == meant


@pytest.mark.parametrize("written", ["1e6", "1.0e+6", "1_000_000", "'1000000'", "1e+6"])
def test_a_whole_number_may_be_written_in_every_common_way(write, written):
    tokens = load(write(tokens=written))["pretrain"]["tokens"]
    assert tokens == 1_000_000
    assert isinstance(tokens, int)


@pytest.mark.parametrize(
    ("written", "meant"), [("2026-11-05", "2026-11-05"), ("42", "42"), ("first", "first")]
)
def test_a_run_may_be_named_like_a_date_or_a_number(write, written, meant):
    assert load(write(run=written))["run"] == meant


def test_what_a_command_line_gives_as_text_is_coerced(write):
    config = load_files(
        [write()],
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


def test_overrides_reach_into_sections(write):
    config = load(write(), overrides=["pretrain.learning_rate=1e-3", "corpus.books=[84]"])
    assert config["pretrain"]["learning_rate"] == 1e-3
    assert Paths(config).books == [84]


def test_a_later_file_wins_key_by_key(write, tmp_path):
    first = write()
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
    assert Paths(config).own_text == ["novel.txt"]
    Path("mine.yaml").write_text(own.replace("novel.txt", "gutenberg"))
    with pytest.raises(UserError, match="takes gutenberg, but no sources file is named; write"):
        load("mine.yaml")


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
    assert Paths(config).own_text == ["../project/novel.txt"]
    assert config["dpo"]["preferences"] == "../project/pairs.jsonl"
    assert config["sft"]["init_from"] == "../project/novel.txt"
    assert config["sft"]["instructions"] == "alpaca"
    Path("novel2.txt").write_text("Nearer.")
    assert Paths(load(f"../{folder}/mine.yaml")).own_text == ["novel2.txt"]


MISTAKES = {
    "an unknown key": (
        {"learning_rate": "1", "added": "pretran: {}"},
        r"line 9: unknown key pretran; did you mean pretrain\?",
    ),
    "a key of another section": (
        {"added": "warmup_steps: 3"},
        r"line 9: unknown key warmup_steps; "
        r"did you mean pretrain.warmup_steps or sft.warmup_steps or dpo.warmup_steps\?",
    ),
    "an unknown key inside": (
        {"added": "corpus: {fineweb: {min_scor: 3}}"},
        r"line 9: unknown key corpus.fineweb.min_scor; did you mean corpus.fineweb.min_score\?",
    ),
    "an unknown key like no other": (
        {"added": "zzz: 1"},
        r"unknown key zzz; known here: run, seed",
    ),
    "text for a number": (
        {"learning_rate": "fast"},
        r"line 8: pretrain.learning_rate must be a number above 0 and at most 1, "
        r'not "fast" \(peak learning rate\)',
    ),
    "a number out of range": (
        {"learning_rate": "30"},
        r"pretrain.learning_rate must be a number above 0 and at most 1, not 30",
    ),
    "infinity": (
        {"learning_rate": ".inf"},
        r"pretrain.learning_rate must be a number above 0 and at most 1, not Infinity",
    ),
    "nan": (
        {"learning_rate": ".nan"},
        r"pretrain.learning_rate must be a number above 0 and at most 1, not NaN",
    ),
    "a fraction for a count": (
        {"tokens": "1.5"},
        r"line 6: pretrain.tokens must be a whole number of at least 1, not 1.5",
    ),
    "truth for a count": (
        {"tokens": "yes"},
        r"pretrain.tokens must be a whole number of at least 1, not true",
    ),
    "yes and no for text": (
        {"run": "no"},
        r"line 2: run must be a name .* not false; "
        r"YAML reads yes, no, on and off as true and false: put the text in quotes",
    ),
    "a run that is no file name": (
        {"run": "a/b"},
        r'run must be a name of at most 200 letters, digits, dots, .* not "a/b"',
    ),
    "an unknown preset": (
        {"model": "{preset: huge}"},
        r'line 4: model.preset must be "small", "medium", "base", "large" or null, not "huge"',
    ),
    "heads that do not divide": (
        {"model": "{preset: small, heads: 5}"},
        r"line 4: model.heads is 5, which does not divide model.dim = 128",
    ),
    "key heads that do not divide": (
        {"model": "{preset: small, kv_heads: 3}"},
        r"line 4: model.kv_heads is 3, which does not divide model.heads = 4",
    ),
    "a model without fields": ({"model": "{dim: 64}"}, r"line 4: the model section lacks"),
    "a vocabulary too small": (
        {"added": "tokenizer: {vocab_size: 271}"},
        r"tokenizer.vocab_size must be a whole number of at least 272 .* "
        r"not 271 .*16 reserved ids and the 256 bytes",
    ),
    "two vocabularies": (
        {"model": "{preset: small, vocab_size: 512}", "added": "tokenizer: {vocab_size: 1024}"},
        r"line 4: model.vocab_size is 512 and tokenizer.vocab_size 1024; "
        r"leave out model.vocab_size",
    ),
    "a batch below a row": (
        {"batch_tokens": "64"},
        r"line 7: pretrain.batch_tokens is 64, less than one row of 128 tokens; "
        r"give a multiple of 128",
    ),
    "a book that is not listed": (
        {"added": "corpus: {books: [84, 5]}"},
        r"corpus.books names book 5, which the sources file does not list; add it there",
    ),
    "more shards than there are": (
        {"added": "corpus: {fineweb: {shards: 3}}"},
        r"corpus.fineweb.shards is 3, but the sources file lists 1; add shards there",
    ),
    "page lengths exchanged": (
        {"added": "corpus: {fineweb: {min_characters: 9, max_characters: 8}}"},
        r"min_characters is above max_characters",
    ),
    "an unknown kind of repetition": (
        {"added": "corpus: {deduplicate: {web: fuzzy}}"},
        r'line 9: corpus.deduplicate.web must be "near", "exact" or "none", not "fuzzy"',
    ),
    "repetitions of an unknown kind of source": (
        {"added": "corpus: {deduplicate: {page: near}}"},
        r"line 9: unknown key corpus.deduplicate.page",
    ),
    "documents hardly alike": (
        {"added": "corpus: {deduplicate: {threshold: 0.4}}"},
        r"line 9: corpus.deduplicate.threshold .*0.5.*0.4",
    ),
    "a likeness above all": (
        {"added": "corpus: {deduplicate: {threshold: 80}}"},
        r"line 9: corpus.deduplicate.threshold .*1.*80",
    ),
    "a half-hearted check": (
        {"added": "corpus: {decontaminate: maybe}"},
        r"line 9: corpus.decontaminate .*true or false.*maybe",
    ),
    "unknown instructions": (
        {"added": "sft: {instructions: dolly}"},
        r"sft.instructions is 'dolly', neither a name in the sources file "
        r"\(there: alpaca\) nor a file",
    ),
    "unknown questions": (
        {"added": "evaluate: {questions: trivia}"},
        r"evaluate.questions is 'trivia', which the sources file does not have "
        r"\(there: world\)",
    ),
    "an unknown task": (
        {"added": "evaluate: {tasks: [{name: boolq}]}"},
        r"line 9: evaluate.tasks: boolq: no name under tasks in the sources file",
    ),
    "a task of no kind": (
        {"added": "evaluate: {tasks: [{name: boolq, url: boolq.jsonl}]}"},
        r"line 9: evaluate.tasks: boolq: boolq is no kind of task; give kind as one of hellaswag",
    ),
    "a task named twice": (
        {"added": "evaluate: {tasks: [{name: piqa, url: a.jsonl}, {name: piqa, url: b.jsonl}]}"},
        r"evaluate.tasks.1 is the second one named piqa; give it another name",
    ),
    "a limit of none": (
        {"added": "evaluate: {tasks: [{name: piqa, url: a, limit: 0}]}"},
        r"limit must be a whole number of at least 1 or null, not 0",
    ),
    "own text that is not there": (
        {"added": "corpus: {sources: [gutenberg, novel.txt]}"},
        r"line 9: novel.txt: no such file or folder; correct the path",
    ),
    "a key given twice": ({"added": "run: again"}, r"line 9: run is given twice; keep one of them"),
    "a tab": ({"added": "corpus:\n\tname: x"}, r"line 10: not valid YAML"),
    "a missing sources file": (
        {"sources": "nowhere.yaml"},
        r"line 3: sources is nowhere.yaml, and there is no such file",
    ),
    "a section that is none": (
        {"added": "corpus: all"},
        r'line 9: corpus must be a section of keys, not "all"',
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_line_and_remedy(write, mistake):
    arguments, message = MISTAKES[mistake]
    path = write(**arguments)
    with pytest.raises(UserError, match=message) as caught:
        load(path)
    assert str(caught.value).startswith(path)
    assert "\n" not in str(caught.value)


def test_a_missing_key_is_named_with_its_meaning(write, tmp_path):
    path = Path(write())
    path.write_text(path.read_text().replace("  tokens: 1000000\n", ""))
    with pytest.raises(
        UserError, match=r"pretrain.tokens is missing; give it \(tokens to train on"
    ):
        load(path)


def test_a_mistake_on_the_command_line_is_told_from_one_in_the_file(write):
    with pytest.raises(
        UserError,
        match=r"^the command line: unknown key sft.learnin_rate; did you mean sft.learning_rate\?",
    ):
        load(write("sft: {epochs: 1}"), overrides=["sft.learnin_rate=1"])
    with pytest.raises(UserError, match=r"write section.key=value"):
        load(write(), overrides=["seed"])
    with pytest.raises(UserError, match="epochs was given as a value before"):
        load(write(), overrides=["sft.epochs=1", "sft.epochs.x=1"])
    with pytest.raises(UserError, match="is not valid JSON"):
        load(write(), overrides=["corpus.books=[84"])
    with pytest.raises(UserError) as refusal:
        load(write(), overrides=["a" * 10_000])
    assert len(str(refusal.value)) < 300


def test_a_mistake_in_the_sources_file_is_named_there(write, tmp_path):
    path = write()
    (tmp_path / "sources.yaml").write_text(SOURCES.replace("mirror:", "miror:"))
    with pytest.raises(
        UserError,
        match=r"sources.yaml, line 2: unknown key gutenberg.miror; did you mean gutenberg.mirror\?",
    ):
        load(path)
    (tmp_path / "sources.yaml").write_text(
        SOURCES.replace("alpaca.json", "alpaca.json, sha256: abc")
    )
    with pytest.raises(
        UserError,
        match=r"instructions.alpaca.sha256 must be 64 hexadecimal digits or null, not \"abc\"",
    ):
        load(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "run is missing"),
        ("- a\n- b", "holds list instead of keys"),
        ("a: [1, 2", "not valid YAML"),
        (b"run: \xff", "not UTF-8"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path, content, message):
    path = tmp_path / "bad.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(UserError, match=message):
        load(path)


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        load(tmp_path / "missing.yaml")
    with pytest.raises(UserError, match="a folder"):
        load(tmp_path)
    with pytest.raises(UserError, match="inline JSON"):
        load('{"run": ')


ROOT = Path(__file__).parents[2]


def keys(section: type[Section], prefix: str = "") -> dict[str, Field]:
    """Every key of a section, dotted, with its field."""
    found = {}
    for field in fields(section):
        inner = section_type(field)
        found |= keys(inner, f"{prefix}{field.name}.") if inner else {prefix + field.name: field}
    return found


def test_the_settings_and_the_sample_know_the_same_keys():
    assert set(keys(Sample)) == set(dataclasses.asdict(Settings()))


def test_the_settings_and_the_model_know_the_same_fields():
    assert set(keys(Model)) == {"preset"} | {field.name for field in fields(ModelConfig)}


def test_every_key_says_what_it_means():
    for section in (Configuration, Task, Sources, *sections_of_sources()):
        for key, field in keys(section).items():
            assert field.metadata["description"], f"{section.__name__}: {key} has no description"


def sections_of_sources() -> list[type[Section]]:
    return [kind for kind in vars(sources).values() if is_section(kind)]


def is_section(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


def test_the_readme_of_the_configuration_explains_every_key_with_its_default():
    text = (ROOT / "config/README.md").read_text()
    explained = []
    for part in text.split("\n## ")[1:]:
        heading, _, content = part.partition("\n")
        lists = [
            block.strip() for block in content.split("\n\n") if block.strip().startswith("- `")
        ]
        assert lists == [reference()[heading.strip("`").lower()]]
        explained.append(heading.strip("`").lower())
    assert sorted(explained) == sorted(reference())
    listed = re.findall(r"^- `([^`]+)`", text, flags=re.MULTILINE)
    for key in keys(Configuration):
        assert key in listed or key.partition(".")[2] in listed, key


RUNS = sorted(
    path
    for path in (ROOT / "config").glob("*.yaml")
    if path.name not in ("sources.yaml", "sample.yaml")
)


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name)
def test_the_configurations_that_come_with_the_project_are_valid(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    config = load(path)
    assert config["run"] == ("demo" if path.stem == "config" else path.stem)


@pytest.mark.parametrize("kind", ["instructions", "preferences", "questions", "tasks"])
@pytest.mark.parametrize("name", ["../..", ".", "a/b", "/tmp/x", ""])
def test_a_name_in_the_sources_file_leads_to_no_other_folder(write, tmp_path, kind, name):
    path = write()
    (tmp_path / "sources.yaml").write_text(f'{kind}:\n  "{name}": {{url: records.jsonl}}\n')
    with pytest.raises(UserError, match=rf"sources\.yaml, line 2: {kind} has the name '{name}'"):
        load(path)
