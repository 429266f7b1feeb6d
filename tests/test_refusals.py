"""Values that would fill the memory, the time or the stack are refused in a sentence."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from nanoeuler.config import load, write_resolved
from nanoeuler.errors import UserError
from nanoeuler.model.config import ModelConfig
from nanoeuler.tokenizer import tokenizer_json
from tests.waiting import CEILING

CHECKOUT = Path(__file__).parents[1]
CPU_SECONDS = 15  # a refusal takes about one
MEMORY = 4 << 30
CONFIG = f"""\
run: trial
sources: {CHECKOUT / "config" / "sources.yaml"}
corpus: {{sources: [text.txt]}}
model: {{preset: small}}
pretrain: {{tokens: 1000000, batch_tokens: 4096, learning_rate: 3.0e-3}}
"""
NINES = "9" * 400
MANY_NINES = "9" * 5000


def limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))


def refused(folder: Path, *arguments: str) -> str:
    """The one sentence with which `nanoeuler`, as a process of its own, refuses `arguments`."""
    done = subprocess.run(
        [sys.executable, "-m", "nanoeuler", *arguments],
        cwd=folder,
        env={"PYTHONPATH": str(CHECKOUT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=CEILING,
        preexec_fn=limit,
    )
    [sentence] = done.stderr.splitlines()
    assert done.returncode == 1
    assert sentence.startswith("error  ")
    assert len(sentence) < 700
    return sentence


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text("A fox. " * 100)
    return tmp_path


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "preset: small",
            "preset: small, mtp_heads: 2147483648",
            "line 4: model.mtp_heads is 2147",
        ),
        ("preset: small", "preset: small, layers: 100000", "line 4: model.layers is 100000: it"),
        ("1000000", NINES, "line 5: pretrain.tokens is beyond 1e+15"),
        ("run: trial", "run: " + "[" * 2000, "trial.yaml, line 1: nested too deeply"),
        ("text.txt", f"{'n' * 300}.txt", "no such file or folder"),
    ],
)
def test_the_command_refuses_a_value_without_bounds(folder, old, new, problem):
    (folder / "trial.yaml").write_text(CONFIG.replace(old, new))
    assert problem in refused(folder, "plan", "--config", "trial.yaml")


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("/proc/self/mem", "/proc/self/mem: cannot be read (Input/output error)"),
        ("/dev/zero", "/dev/zero: more than 1 MB"),
        ("n" * 300, "cannot be read (File name too long)"),
        ('{"model": ' + "[" * 100_000, "nested too deeply"),
        (f'{{"model": {{"preset": "small", "rope_theta": {NINES}}}}}', "model.rope_theta is 999"),
    ],
)
def test_the_command_refuses_what_is_no_configuration(folder, path, problem):
    assert problem in refused(folder, "info", "--config", path)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("preset: small", f"preset: small, step_size: {NINES}", r"step_size is beyond 1e\+15"),
        (
            "1000000",
            MANY_NINES,
            "line 5: pretrain.tokens must be a whole number of at least 1",
        ),
        ("1000000", "1e300", r"line 5: pretrain.tokens is beyond 1e\+15"),
        ("run: trial", f"run: {'n' * 256}", "line 1: run must be a name of at most 200"),
        ("\nsources: ", f"\nsources: {'n' * 300}.yaml #", "and there is no such file"),
        (
            "run: trial",
            "run: &a [*a]",
            r"line 1: the alias \*a stands for no value that ends before",
        ),
        ("run: trial", "? [a, b]\n: 1", "trial.yaml, line 1: not valid YAML"),
    ],
)
def test_a_configuration_without_bounds_is_refused(folder, monkeypatch, old, new, problem):
    monkeypatch.chdir(folder)
    Path("trial.yaml").write_text(CONFIG.replace(old, new))
    with pytest.raises(UserError, match=problem):
        load("trial.yaml")


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"pretrain": 5}, "'pretrain' cannot be 5;"),
        ({"pretrain": {"tokens": "many"}}, "'pretrain.tokens' cannot be 'many'"),
        ({"corpus": {"fineweb": {"shards": 1e300}}}, "'corpus.fineweb.shards' cannot be 1e+300"),
        ({"sources": {"gutenberg": {"books": [7]}}}, "'sources.gutenberg.books.0' cannot be 7"),
        ({"dpo": {"loss": "none"}}, "'dpo.loss' cannot be 'none'"),
        ({"seed": None}, "'seed' cannot be None"),
    ],
)
def test_inline_json_of_other_types_is_refused(config, problem):
    with pytest.raises(UserError) as caught:
        load(json.dumps(config))
    assert f"--config is inline JSON whose {problem}" in str(caught.value)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"pretrain": {"bit_by_bit": True}}, "unknown key pretrain.bit_by_bit; known here: "),
        ({"pretrain": {"token": 5}}, "unknown key pretrain.token; did you mean pretrain.tokens?"),
        ({"pretrian": {}}, "unknown key pretrian; did you mean pretrain?"),
        ({"corpus": {"fineweb": {"shard": 1}}}, "did you mean corpus.fineweb.shards?"),
        (
            {"evaluate": {"tasks": [{"name": "x", "urls": ""}]}},
            "unknown key evaluate.tasks[0].urls",
        ),
        ({"sources": {"fineweb": {"shard": []}}}, "unknown key fineweb.shard; did you mean"),
        ({"sources": {"instructions": {"x": {"link": ""}}}}, "unknown key instructions.x.link"),
    ],
)
def test_inline_json_with_a_key_that_nobody_knows_is_refused_as_in_a_file(config, problem):
    with pytest.raises(UserError) as caught:
        load(json.dumps(config))
    assert str(caught.value).startswith("--config: ")
    assert problem in str(caught.value)


def test_a_configuration_that_a_workflow_resolved_is_taken_unless_it_was_changed(tmp_path):
    config = {"seed": 1, "corpus": {"sources": [f"{number}.txt" for number in range(40_000)]}}
    path = tmp_path / "configuration.json"
    write_resolved(path, config)
    assert load(path) == config
    path.write_text(path.read_text().replace('"seed": 1', '"seed": 2'))
    with pytest.raises(UserError, match=r"configuration\.json.* start the workflow again"):
        load(path)
    path.write_text('{"configuration": {"seed": ')
    with pytest.raises(UserError, match=r"configuration\.json: not valid JSON"):
        load(path)


@pytest.mark.parametrize("name", ["config", "small", "base"])
def test_inline_json_that_the_workflow_passes_is_taken(name, monkeypatch):
    monkeypatch.chdir(CHECKOUT)
    config = load(f"config/{name}.yaml")
    assert load(json.dumps(config)) == config


@pytest.mark.parametrize("merged", ["[*a{0}, *a{0}, *a{0}]", "{{<<: [*a{0}, *a{0}]}}"])
def test_aliases_of_aliases_are_refused(tmp_path, merged):
    lines = [f"a{n + 1}: &a{n + 1} {merged.format(n)}" for n in range(40)]
    (tmp_path / "trial.yaml").write_text("\n".join(["a0: &a0 {k: 1}", *lines]))
    with pytest.raises(UserError, match=r"trial.yaml, line \d+: more than 100,000 values"):
        load(tmp_path / "trial.yaml")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"head_size": 1e300}, "model.head_size is 1e+300"),
        ({"context": 2**31}, "model.context is 2147483648"),
        ({"mtp_weights": [int(NINES)] * 4}, "model.mtp_weights is [999"),
        ({"preset": ["small"]}, "model.preset is ['small']"),
        ({"n" * 9999: 1}, "is no field of the model"),
    ],
)
def test_a_model_without_bounds_is_refused(fields, problem):
    with pytest.raises(UserError) as caught:
        ModelConfig.from_dict({"preset": "small"} | fields)
    assert problem in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("[" * 100_000, "not valid JSON (nested too deeply)"),
        (f'{{"model": {MANY_NINES}}}', "not valid JSON (a number has thousands of digits)"),
        (json.dumps({"model": {"type": "B" * 10**6}}), "its model is 'BBB"),
        (json.dumps({"model": {}, "normalizer": [9] * 10**6}), "it sets a normalizer ([9, 9"),
    ],
)
def test_a_tokenizer_without_bounds_is_refused(tmp_path, content, problem):
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(UserError) as caught:
        tokenizer_json.read(path)
    assert f"{path}: {problem}" in str(caught.value)
    assert len(str(caught.value)) < 400


def test_links_that_lead_to_themselves_are_refused(folder):
    (folder / "loop").symlink_to("loop")
    assert "once" in refused(folder, "report", "loop", "loop", "--output", "page.html")
