"""The command line meets a newcomer: what it says unasked, and what it makes of a slip."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nanoeuler.backend.cpu.engine import CpuBackend
from nanoeuler.cli import build_parser

CHECKOUT = Path(__file__).parents[1]


def test_the_help_shows_where_to_start(command, capsys):
    with pytest.raises(SystemExit):
        command("--help")
    start, own_text, use, *others = capsys.readouterr().out.split("\n\n")[2:]
    assert start.splitlines()[:3] == [
        "start here:",
        "  nanoeuler train my-novel.txt      from a text to a model, a report and a chat",
        "  nanoeuler run                     the demo: all stages on a small invented world",
    ]
    assert own_text.startswith("your own text:\n  train")
    assert use.splitlines() == [
        "use a model:",
        "  chat          talk to a model",
        "  generate      continue a prompt",
        "  serve         models over HTTP: OpenAI's API, and a page",
        "  export        write a model for transformers, llama.cpp or Ollama",
        "  import        take a Llama-class model or a GPT-2 from Hugging Face's folder",
        "  quantize      write a model with weights of 8 or 4 bits",
    ]
    assert any(section.startswith("the stages of a run") for section in others)


def test_the_help_lists_every_command_and_fits_a_terminal():
    page = build_parser().format_help()
    listed = {line.split()[0] for line in page.splitlines() if line.startswith("  ")}
    [commands] = [action.choices for action in build_parser()._actions if action.dest == "stage"]
    assert set(commands) <= listed
    assert max(map(len, page.splitlines())) <= 100


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["frobnicate"],
            "nanoeuler: there is no command 'frobnicate'; `nanoeuler --help` lists what there is",
        ),
        (["pretran"], "nanoeuler: there is no command 'pretran'; did you mean pretrain?"),
        (
            ["gutenberg", "fech"],
            "nanoeuler gutenberg: there is no command 'fech'; did you mean fetch?",
        ),
        (
            ["chat", "--modle", "results/demo"],
            "nanoeuler chat: there is no option --modle; did you mean --model?",
        ),
        (
            ["info", "--device", "gpu"],
            "nanoeuler info: --device is 'gpu'; it must be one of auto, cpu, cuda, webgpu, "
            "reference",
        ),
        (
            ["tokenize"],
            "nanoeuler tokenize: the following arguments are required: --config, --corpus, "
            "--tokenizer, --output; `nanoeuler tokenize --help` lists what there is",
        ),
        (
            ["info", "one", "two"],
            "nanoeuler info: 'two' is one argument too many; "
            "`nanoeuler info --help` lists what there is",
        ),
        (
            ["info", "one", "--rows", "2", "--", "-two"],
            "nanoeuler info: '-two' is one argument too many; "
            "`nanoeuler info --help` lists what there is",
        ),
        (
            ["run", "mine.yaml", "-n"],
            "nanoeuler run: there is no option -n; `nanoeuler run --help` lists what there is; "
            "Snakemake's go behind --",
        ),
        (
            ["train", "-novel.txt"],
            "nanoeuler train: the following arguments are required: TEXT; `nanoeuler train --help` "
            "lists what there is; if you mean the file -novel.txt, write ./-novel.txt",
        ),
    ],
)
def test_a_slip_gets_one_sentence_with_what_was_meant(
    command, arguments, sentence, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("-novel.txt").touch()
    assert command(*arguments) == (2, "", f"error  {sentence}\n")


@pytest.mark.parametrize(
    ("line", "words", "theirs"),
    [
        ("run", [], []),
        ("run --log x -- -n", [], ["-n"]),
        (
            "run a.yaml --log x sft -- all -n -- --log",
            ["a.yaml", "sft"],
            ["all", "-n", "--", "--log"],
        ),
        ("experiment a.yaml --change b=c --tokens 9 -- -n", ["a.yaml"], ["-n"]),
        ("experiment --tokens 9 a.yaml -- --tokens 3", ["a.yaml"], ["--tokens", "3"]),
        ("train a --minutes 3 b -- -c --minutes 4", ["a", "b", "-c", "--minutes", "4"], None),
        ("train --minutes 3 -- -c", ["-c"], None),
        ("train a -- -b -- c", ["a", "-b", "--", "c"], None),
        ("generate DIR --seed 3 -- -prompt", ["DIR", "-prompt"], None),
    ],
)
def test_what_stands_behind_two_dashes_is_no_option_wherever_they_stand(line, words, theirs):
    options = build_parser().read(line.split())
    assert options.words == words
    assert getattr(options, "theirs", None) == theirs
    assert getattr(options, "minutes", None) in (None, 3, 10)


@pytest.mark.parametrize(
    ("command", "argument"), [("compare", "evaluations"), ("runs", "places"), ("report", "runs")]
)
def test_several_arguments_may_stand_on_both_sides_of_an_option(command, argument):
    options = build_parser().read([command, "a", "--log", "file", "b"])
    assert getattr(options, argument) == [Path("a"), Path("b")]


def test_a_slip_of_any_length_gets_a_short_sentence(command):
    status, _, err = command("info", "--rows", "9" * 5000)
    assert status == 2
    assert len(err) < 450


def test_a_missing_model_is_asked_for_by_an_example(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command("chat") == (
        1,
        "",
        "error  no model was given; name its folder, for example models/novels, which is shipped\n",
    )
    model = tmp_path / "results" / "mine" / "sft" / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    assert command("chat")[2].endswith("for example results/mine/sft/model\n")
    assert "are two models; give one" in command("chat", "one", "--model", "other")[2]


def test_info_and_plan_print_json_for_programs(command, tmp_path, monkeypatch):
    shutil.copytree(CHECKOUT / "config", tmp_path / "config")
    monkeypatch.chdir(tmp_path)  # where nothing was fetched yet
    _, out, _ = command("info", "config/small.yaml", "--json", "--device", "cpu")
    info = json.loads(out)
    assert info["parameters"]["total"] == 1_049_216
    assert info["memory"]["weights"] >= 4 * 1_049_216
    assert info["machine"]["backend"] == "cpu"
    assert info["machine"]["blas"] == CpuBackend(1).blas.label
    assert json.loads(command("info", "--json")[1])["presets"]["small"] == 1_049_216
    _, out, _ = command("plan", "config/small.yaml", "--json", "--stages", "", "--device", "cpu")
    plan = json.loads(out)
    assert (plan["run"], plan["parameters"], plan["stages"]) == ("small", 1_049_216, {})
    assert plan["download"]["books"] > 0
    assert isinstance(plan["problems"], list)


def test_a_plan_of_too_much_says_so_in_json_and_by_its_status(command, tmp_path, monkeypatch):
    monkeypatch.chdir(CHECKOUT)
    text = (CHECKOUT / "config" / "small.yaml").read_text()
    huge = tmp_path / "huge.yaml"
    huge.write_text(text.replace("model:", "model:\n  dim: 65536\n  layers: 1000"))
    status, out, err = command("plan", huge, "--json", "--device", "cpu")
    assert status == 1
    assert any("of memory" in problem for problem in json.loads(out)["problems"])
    assert "error  " in err


@pytest.mark.parametrize("arguments", [[], ["info", "config/base.yaml"]])
def test_a_reader_that_has_ended_is_no_error(arguments):
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "nanoeuler", *arguments]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (0, "")
