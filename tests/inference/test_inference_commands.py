"""`nanoeuler generate`, `chat`, `check` and `info` as they are typed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nanoeuler import provenance
from nanoeuler.backend.cpu.engine import CpuBackend
from nanoeuler.cli import main
from nanoeuler.inference.sampling import Sampling
from nanoeuler.model.checks import engine_ops, model_gradients
from nanoeuler.model.checks.comparison import Comparison
from tests.waiting import CEILING

CHECKOUT = Path(__file__).resolve().parents[2]


def typed(*arguments, input=b""):
    """The same as a process of its own, with `input` on standard input."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "nanoeuler",
            *(each if isinstance(each, bytes) else str(each) for each in arguments),
        ],
        input=input,
        capture_output=True,
        cwd=CHECKOUT,
        timeout=CEILING,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


# ---- generate


def test_a_tuned_model_answers_the_prompt(command, tuned_folder):
    status, out, err = command(
        "generate", "--model", tuned_folder, "--prompt", "Name a colour.", "--temperature", "0"
    )
    assert (status, out) == (0, "blue\n")
    assert "generate prompt_tokens=39" in err
    assert "end=</s>" in err
    assert "tokens_per_second=" in err


@pytest.fixture
def run_folder(tmp_path, base_folder, tuned_folder):
    """The folder of a run with two stages."""
    for stage, model in (("pretrain", base_folder), ("sft", tuned_folder)):
        (tmp_path / "run" / stage).mkdir(parents=True)
        (tmp_path / "run" / stage / "model").symlink_to(model)
    return tmp_path / "run"


def test_the_model_and_the_prompt_need_no_options(command, run_folder):
    greedy = ("--temperature", "0")
    for folder in (run_folder, run_folder / "sft", run_folder / "sft" / "model"):
        assert command("generate", folder, "Name a colour.", *greedy)[:2] == (0, "blue\n")
    assert command("generate", run_folder, *greedy, "Name a colour.")[1] == "blue\n"
    assert command("generate", *greedy, "--model", run_folder, "Name a colour.")[1] == "blue\n"
    status, _, err = command("generate", run_folder, "Name", "a", "colour.", *greedy)
    assert (status, err) == (1, "error  'a' is one word too many; put the prompt in quotes\n")
    assert "no prompt was given" in command("generate", run_folder)[2]


def test_chat_and_info_take_the_folder_of_a_run(command, run_folder):
    status, out, err = typed("chat", run_folder, "--temperature", "0", input=b"Name a colour.\n")
    assert (status, out.splitlines()[1:]) == (0, ["blue"])
    assert f"of {run_folder}/sft/model" in err
    assert "57,568" in command("info", run_folder)[1]


def test_the_working_folder_may_be_the_model(command, tuned_folder, monkeypatch):
    monkeypatch.chdir(tuned_folder)
    assert (
        command("generate", ".", "Name a metal.", "--max-tokens", "1", "--temperature", "0")[0] == 0
    )


def test_raw_leaves_the_template_out(command, tuned_folder):
    arguments = (
        "generate",
        "--model",
        tuned_folder,
        "--prompt",
        "Name a colour.",
        "--temperature",
        "0",
        "--max-tokens",
        "5",
    )
    assert command(*arguments, "--raw")[1] != command(*arguments)[1]


def test_input_goes_into_the_template(command, tuned_folder, base_folder):
    prompt = ("--prompt", "Name a colour.", "--input", "of the sky", "--max-tokens", "5")
    status, _, err = command("generate", "--model", tuned_folder, *prompt)
    assert status == 0
    assert "prompt_tokens=39" not in err
    for refused in (("--model", base_folder), ("--model", tuned_folder, "--raw")):
        status, _, err = command("generate", *refused, *prompt)
        assert status == 1
        assert err.startswith("error  input fills a place in a tuned model's template, but ")


def test_a_base_model_continues_the_prompt_reproducibly(command, base_folder):
    arguments = (
        "generate",
        "--model",
        base_folder,
        "--prompt",
        "Once",
        "--max-tokens",
        "40",
        "--temperature",
        "1",
    )
    first = command(*arguments)
    assert first[0] == 0
    assert command(*arguments)[1] == first[1]
    assert command(*arguments, "--seed", "2")[1] != first[1]
    assert command(*arguments, "--seed", "1")[1] == first[1]


def test_a_full_context_is_said(command, base_folder):
    _, _, err = command(
        "generate", "--model", base_folder, "--prompt", "word " * 100, "--max-tokens", "3"
    )
    assert "context  prompt and text outgrew the model's context of 96 tokens: its " in err


def test_the_prompt_may_come_from_standard_input(tuned_folder, base_folder):
    status, out, _ = typed(
        "generate",
        "--model",
        tuned_folder,
        "--prompt",
        "-",
        "--temperature",
        "0",
        input=b"Name a colour.\n",
    )
    assert (status, out) == (0, "blue\n")
    status, out, err = typed("generate", "--model", base_folder, "--prompt", "-", input=b"caf\xe9")
    assert (status, out) == (1, "")
    assert "not UTF-8 (byte 3)" in err


@pytest.mark.parametrize("option", ["--prompt", "--input"])
def test_an_argument_that_is_not_utf8_gets_the_place_in_it(tuned_folder, option):
    status, out, err = typed(
        "generate", "--model", tuned_folder, "--prompt", "Name a colour.", option, b"caf\xe9"
    )
    assert (status, out) == (1, "")
    assert f"{option} is not UTF-8 (byte 3)" in err


def test_text_is_written_as_it_is_made(tuned_folder):
    command = [
        sys.executable,
        "-m",
        "nanoeuler",
        "generate",
        "--model",
        str(tuned_folder),
        "--prompt",
        "Count.",
        "--temperature",
        "0",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=CHECKOUT
    ) as process:
        pieces = []
        while piece := os.read(process.stdout.fileno(), 65536):
            pieces.append(piece)
    assert b"".join(pieces) == b"one two three four five six seven\n"
    assert len(pieces) > 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--temperature", "-1"), "temperature is -1.0"),
        (("--top-p", "0"), "top-p is 0.0"),
        (("--max-tokens", "0"), "max-tokens is 0: it must be at least 1"),
        (("--model", "/nowhere"), "/nowhere: no such folder; give the model folder"),
        (("--device", "cuda"), "--device cuda"),
    ],
)
def test_bad_options_get_one_sentence(command, tuned_folder, options, words):
    status, out, err = command("generate", "--model", tuned_folder, "--prompt", "x", *options)
    assert (status, out) == (1, "")
    assert words in err
    assert err.count("\n") == 1


def test_the_help_states_the_defaults_that_the_sampler_has(capsys):
    from nanoeuler.api import MAX_TOKENS

    with pytest.raises(SystemExit):
        main(["generate", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    default = Sampling()
    assert f"as the model is (default {default.temperature:g})" in shown
    assert f"(default {default.top_k}: all)" in shown
    assert f"hold the share P (default {default.top_p:g})" in shown
    assert f"the same text (default {default.seed})" in shown
    assert f"longest reply (default {MAX_TOKENS})" in shown


# ---- chat


def test_chat_reads_lines_from_a_pipe(tuned_folder):
    status, out, err = typed(
        "chat",
        "--model",
        tuned_folder,
        "--temperature",
        "0",
        input=b"Name a colour.\n\n/top-k 5\nCount.",
    )
    assert status == 0
    assert out.splitlines()[1:] == ["blue", "(top-k is 5)", "one two three four five six seven"]
    assert err.startswith("chat  LanguageModel(57,568 parameters, stage sft, template alpaca")


def test_chat_survives_bytes_that_are_not_utf8(tuned_folder):
    status, out, _ = typed(
        "chat",
        "--model",
        tuned_folder,
        "--temperature",
        "0",
        "--max-tokens",
        "3",
        input=b"caf\xe9\nName a colour.\n",
    )
    assert status == 0
    assert "blu" in out.splitlines()[-2]


# ---- check


def test_check_prints_a_row_for_every_tensor(command):
    status, out, err = command("check", "--quick")
    assert status == 0
    rows = [line for line in out.splitlines() if line.startswith("  ")]
    assert len(rows) > 75
    assert all(line.endswith(" ok") for line in rows)
    assert len({len(line) for line in rows}) == 1  # aligned
    assert "every gradient agrees with finite differences" in err
    assert "engine cpu in fp32 on " in err


def test_check_writes_the_table_of_the_engine_that_a_config_names(command, tmp_path):
    path = tmp_path / "gradients.json"
    config = json.dumps({"model": {"preset": "small", "layers": 1, "tied": True}})
    status, out, err = command("check", "--quick", "--config", config, "--output", path)
    assert (status, out) == (0, "")
    report = json.loads(path.read_text())
    assert report["passed"] is report["quick"] is True
    assert report["tolerance"] == 1e-6
    assert report["largest_error"] == max(row["error"] for row in report["rows"]) < 1e-6
    fields = {"case", "tensor", "elements", "error", "worst", "limit", "ok"}
    assert set(report["rows"][0]) == fields
    engine = report["engine"]
    assert (engine["engine"], engine["precision"], engine["passed"]) == ("cpu", "fp32", True)
    assert engine["device"] == provenance.cpu_name()
    assert engine["tensors"] == len(engine["rows"]) > 10
    assert 0 < engine["largest_error"] < engine["limit"]
    assert f"tensors={len(report['rows'])}" in err


@pytest.mark.parametrize(("options", "quick"), [((), False), (("--quick",), True)])
def test_check_is_whole_unless_told_to_be_quick(command, monkeypatch, options, quick):
    asked = []
    monkeypatch.setattr(
        model_gradients,
        "check_all",
        lambda quick: asked.append(quick) or iter([Comparison("swiglu", "up", 35, 1e-12, 1e-12)]),
    )
    config = json.dumps({"model": {"preset": "small", "layers": 1}})
    assert command("check", "--config", config, *options)[0] == 0
    assert asked == [quick]


@pytest.mark.parametrize("error", [2e-6, float("nan"), float("inf")])
def test_a_wrong_gradient_fails_the_check_and_is_still_written_down(
    command, tmp_path, monkeypatch, error
):
    rows = [
        Comparison("swiglu", "gate", 35, error, error),
        Comparison("swiglu", "up", 35, 1e-12, 1e-12),
    ]
    monkeypatch.setattr(model_gradients, "check_all", lambda quick: iter(rows))
    status, out, err = command("check", "--quick", "--output", tmp_path / "gradients.json")
    assert status == 1
    differ = "1 of 2 gradients differ from finite differences by more than 1e-06"
    assert f"{differ}, most of all that of gate in 'swiglu'" in err
    assert [line.split()[0] for line in out.splitlines() if "WRONG" in line] == ["gate"]
    assert " up " not in out
    report = json.loads((tmp_path / "gradients.json").read_text())
    assert report["passed"] is False
    assert report["engine"]["passed"] is True
    assert report["largest_error"] == (error if error < 1 else None)
    assert [row["ok"] for row in report["rows"]] == [False, True]


def test_a_wrong_engine_fails_the_check_and_is_named_with_its_op(command, tmp_path, monkeypatch):
    backward = CpuBackend.linear_backward_input

    def mistaken(engine, dout, weight, dx, scale=1.0):
        backward(engine, dout, weight, dx, -scale)

    monkeypatch.setattr(CpuBackend, "linear_backward_input", mistaken)
    status, out, err = command("check", "--quick", "--output", tmp_path / "gradients.json")
    assert status == 1
    assert "engine cpu in fp32 on" in err
    assert "op 'linear 1 × 8 × 24' differs by 2.0e+00 in dx" in err
    assert "model.layers.0.mlp.up_proj.weight" in out
    report = json.loads((tmp_path / "gradients.json").read_text())
    assert report["passed"] is report["engine"]["passed"] is False
    assert report["largest_error"] < 1e-6


@pytest.mark.parametrize(("error", "status"), [(1e-7, 0), (1e-5, 1)])
def test_check_of_the_cpu_compares_its_ops_too(command, monkeypatch, error, status):
    row = Comparison("swiglu 1 × 8", "out", 8, error, error)
    monkeypatch.setattr(engine_ops, "check_device_ops", lambda engine: iter([row]))
    found, out, err = command("check", "--quick", "--device", "cpu")
    assert found == status
    assert "ops in fp32, beside float64 (limit 1e-06)" in out
    differ = "the results of --device cpu differ from the specification's in 1 of 1 tensors"
    assert (differ in err) == (status == 1)


def test_check_refuses_a_device_that_is_not_there(command):
    status, out, err = command("check", "--quick", "--device", "cuda")
    assert (status, out) == (1, "")
    assert "--device cuda" in err


# ---- info


def test_info_of_a_model_folder(command, base_folder):
    status, out, _ = command("info", "--model", base_folder, "--rows", "4")
    assert status == 0
    assert "57,568" in out
    assert "micro-batch of 4 rows of 96" in out


def test_info_of_a_config(command):
    status, out, _ = command("info", "--config", '{"model": {"preset": "medium"}}')
    assert status == 0
    lines = {tuple(line.split()[:2]) for line in out.splitlines()}
    assert lines >= {
        ("total", "11,010,304"),
        ("embedding", "1,048,576"),
        ("heads", "4,194,304"),
        ("weights", "44"),
        ("backend", "cpu"),
    }


def test_info_counts_scores_of_attention_for_the_reference_alone(command):
    def activations(device: str) -> str:
        _, out, _ = command(
            "info",
            "--config",
            '{"model": {"preset": "small"}}',
            "--length",
            "8192",
            "--rows",
            "1",
            "--device",
            device,
        )
        return next(line for line in out.splitlines() if "activations" in line)

    assert "279 MB" in activations("cpu")  # 34 kB a token
    assert "4.6 GB" in activations("reference")  # and 4 × 4 heads of 8,192²


def test_info_of_a_config_file(command, tmp_path):
    sources = {
        "gutenberg": {
            "collection": "one",
            "mirror": "https://example.org",
            "licence": "none",
            "books": [{"id": 1, "title": "T", "author": "A"}],
        }
    }
    config = {
        "run": "x",
        "sources": str(tmp_path / "sources.yaml"),
        "corpus": {"sources": ["gutenberg"]},
        "model": {"preset": "medium"},
    }
    config |= {
        "pretrain": {"tokens": 1000, "batch_tokens": 512, "learning_rate": 0.001},
        "sft": {"enabled": False},
    }
    (tmp_path / "sources.yaml").write_text(json.dumps(sources))  # JSON is YAML
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    status, out, err = command("info", "--config", tmp_path / "config.yaml")
    assert status == 0, err
    assert "11,010,304" in out


def test_info_alone_lists_the_presets_and_the_machine(command):
    status, out, _ = command("info")
    assert status == 0
    assert "1,049,216" in out
    assert "267,428,864" in out
    assert "numpy" in out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--config", "{}"), "there is no model section"),
        (("--config", '{"model": {"preset": "tiny"}}'), "model.preset is 'tiny'"),
        (("--model", "/nowhere"), "/nowhere: no such folder"),
        (("--rows", "0"), "--rows and --length must be at least 1"),
    ],
)
def test_info_of_what_is_not_there_gets_one_sentence(command, options, words):
    status, out, err = command("info", *options)
    assert (status, out) == (1, "")
    assert words in err
