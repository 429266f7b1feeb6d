"""`nanoeuler generate` and `chat` as they are typed."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from nanoeuler.cli import main
from nanoeuler.inference.sampling import Sampling
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


def test_on_a_terminal_a_base_model_goes_on_with_the_prompt_that_is_shown(base_folder):
    """A pipe gets what the model wrote alone."""
    given = ("generate", base_folder, "one two", "--temperature", "0", "--max-tokens", "3")
    _, alone, _ = typed(*given)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "nanoeuler", *map(str, given)]
    process = subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, cwd=CHECKOUT)
    process.communicate(timeout=CEILING)
    os.close(theirs)
    shown = os.read(ours, 10_000).decode().replace("\r\n", "\n")
    os.close(ours)
    assert process.returncode == 0
    assert shown == "one two" + alone


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
    limits = "--temperature", "0", "--max-tokens", "5"
    arguments = "generate", "--model", tuned_folder, "--prompt", "Name a colour.", *limits
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
    limits = "--max-tokens", "40", "--temperature", "1"
    arguments = "generate", "--model", base_folder, "--prompt", "Once", *limits
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
    arguments = "generate", "--model", tuned_folder, "--prompt", "-", "--temperature", "0"
    status, out, _ = typed(*arguments, input=b"Name a colour.\n")
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
        (("--max-tokens", "0"), "max-tokens is 0: it must be a whole number"),
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
    from nanoeuler.inference.api import MAX_TOKENS

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
    lines = b"Name a colour.\n\n/top-k 5\nCount."
    status, out, err = typed("chat", "--model", tuned_folder, "--temperature", "0", input=lines)
    assert status == 0
    assert out.splitlines()[1:] == ["blue", "(top-k is 5)", "one two three four five six seven"]
    assert err.startswith("chat  LanguageModel(57,568 parameters, stage sft, template alpaca")


def test_chat_refuses_a_number_before_it_looks_for_the_model(command):
    _, _, err = command("chat", "--model", "/nowhere", "--max-tokens", "0")
    assert "max-tokens is 0" in err


def test_chat_survives_bytes_that_are_not_utf8(tuned_folder):
    arguments = "chat", "--model", tuned_folder, "--temperature", "0", "--max-tokens", "3"
    status, out, _ = typed(*arguments, input=b"caf\xe9\nName a colour.\n")
    assert status == 0
    assert "blu" in out.splitlines()[-2]
