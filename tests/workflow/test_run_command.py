"""`nanoeuler run`, and how a workflow ends that fails: in one sentence."""

import logging
import os
import signal
import subprocess
import sys

import pytest
from snakemake.exceptions import LockException, format_exception_to_string

from nanoeuler.cli import main
from nanoeuler.workflow.endings import Endings, sentence_of
from tests import forks

RUN = "import sys; from nanoeuler.cli import main; sys.exit(main(['run', *sys.argv[1:]]))"


def run(checkout, *arguments, **variables):
    """`nanoeuler run` in a checkout, whose `python -m nanoeuler` is a stub."""
    calls = {"NANOEULER_STUB_CALLS": str(checkout.path / "calls.txt")}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    cache = {"XDG_CACHE_HOME": str(checkout.path / "cache")}
    return forks.run(
        ["-c", RUN, *arguments], checkout.path, environment | calls | cache | variables
    )


def test_a_stage_of_a_configuration_is_run_and_its_failure_ends_in_a_sentence(checkout):
    text = (checkout.path / "config/config.yaml").read_text()
    checkout.write("mine.yaml", text.replace("run: trial", "run: mine"))
    failed = run(checkout, "mine.yaml", "pretrain", NANOEULER_STUB_FAIL="pretrain")
    assert failed.returncode == 1
    assert failed.stderr.splitlines()[-1] == (
        "error  rule pretrain (without a log, see above) failed; mend the cause and run the same "
        "command again: what is finished stays, and training resumes"
    )
    assert "Error in rule pretrain" in failed.stderr
    assert "--config" not in failed.stderr
    assert "Traceback" not in failed.stderr
    assert not any(call.startswith("sft ") for call in checkout.calls)
    dry = run(checkout, "mine.yaml", "--log", "run.log", "--", "pretrain", "-n", "--cores", "1")
    assert dry.returncode == 0, dry.stderr
    assert "This was a dry-run" in dry.stdout + dry.stderr
    assert "sft" not in dry.stdout + dry.stderr
    assert not (checkout.path / "results/mine/pretrain/model").exists()


@pytest.mark.parametrize("stage", ["dpo", "evaluate"])
def test_records_that_do_not_fit_are_told_before_what_a_later_stage_needs(checkout, stage):
    assert run(checkout, stage, NANOEULER_STUB_FAIL="fit").returncode == 1
    stages = {call.split()[0] for call in checkout.calls}
    assert "fit" in stages
    assert not stages & {"pretrain", "sft", "dpo"}


def test_a_slip_is_met_by_what_was_meant(command, checkout, monkeypatch):
    monkeypatch.chdir(checkout.path)
    checkout.write("config/small.yaml", "run: small\n")
    assert (
        "config/smal.yaml: no such file; did you mean config/small.yaml?"
        in (command("run", "config/smal.yaml")[2])
    )
    assert command("run", "pretran")[2] == (
        "error  run: there is no stage 'pretran'; did you mean pretrain?\n"
    )
    assert "did you mean config/small.yaml?" in command("run", "small")[2]
    assert "config: a folder; give the path of a configuration" in command("run", "config/")[2]
    assert main(["run", "-n"]) == 2  # an option of Snakemake, which goes behind --


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"run: mine\nsft: [1\n", "line 3: not valid YAML"),
        (b"\xff\xfe\x00", "not UTF-8 text"),
        (b"- run: mine\n", "holds list instead of keys with values"),
    ],
)
def test_a_damaged_configuration_is_told_without_snakemake(
    command, checkout, monkeypatch, content, sentence
):
    monkeypatch.chdir(checkout.path)
    (checkout.path / "config/broken.yaml").write_bytes(content)
    status, _, shown = command("run", "config/broken.yaml")
    assert (status, len(shown.splitlines())) == (1, 1)
    assert shown.startswith("error  config/broken.yaml")
    assert sentence in shown
    assert "there is no stage 'pretran'" in command("run", "pretran")[2]  # it is read for that


def test_ctrl_c_before_the_first_job_ends_in_a_sentence():
    program = "from nanoeuler.workflow import endings; endings.end_in_sentences(); raise {}"
    said = {}
    for error in ("KeyboardInterrupt", "OSError('no')"):
        command = [sys.executable, "-c", program.format(error)]
        said[error] = subprocess.run(command, capture_output=True, text=True).stderr
    assert said["KeyboardInterrupt"].startswith("interrupted  to go on, run the same command")
    assert "Traceback" in said["OSError('no')"]


def test_errors_of_a_snakemake_that_is_to_be_quiet_are_told_in_a_line(checkout):
    checkout.write("torn.yaml", "run: trial\nfoo: [\n")
    torn = run(checkout, "--", "--quiet", "all", "--configfile", "torn.yaml")  # read by Snakemake
    assert torn.returncode == 1
    [error] = [line for line in torn.stderr.splitlines() if line.startswith("error  ")]
    assert "Config file is not valid JSON or YAML" in error
    assert "Traceback" not in torn.stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            ["--quiet", "all", "--configfile", "nope.yaml"],
            "Snakemake: [Errno 2] No such file or directory: 'nope.yaml'; mend this or its options "
            "(--verbose shows where it met this)",
        ),
        (
            ["--frobnicate"],
            "Snakemake: unrecognized arguments: --frobnicate; `snakemake --help` lists its options",
        ),
        (["--until", "pretran"], "No rule to produce pretran."),
    ],
)
def test_an_option_that_snakemake_does_not_understand_ends_in_a_sentence(
    checkout, options, sentence
):
    done = run(checkout, "--", "-n", *options)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"error  {sentence}"
    assert done.stderr.count(sentence) == 1
    assert "Traceback" not in done.stderr
    assert "usage" not in done.stderr


def execute_workflow(error):
    """A part of Snakemake, by its name in a traceback."""
    raise error


def test_an_error_of_the_system_is_told_in_a_sentence_and_a_fault_of_ours_with_its_traceback():
    said = []
    for error in (OSError(28, "No space left on device"), KeyError("model")):
        with pytest.raises(type(error)) as caught:
            execute_workflow(error)
        said.append(sentence_of(format_exception_to_string(caught.value)))
    assert said[0] == (
        "Snakemake: [Errno 28] No space left on device; mend this or its options (--verbose shows "
        "where it met this)"
    )
    assert said[1].startswith("Traceback")


@pytest.mark.parametrize("quiet", [False, True])
def test_a_folder_in_which_another_run_is_at_work_is_told(capsys, quiet):
    said = logging.LogRecord("", logging.ERROR, "", 0, str(LockException()), (), None)
    assert not Endings(quiet=quiet).filter(said), "Snakemake's advice to unlock is not shown"
    assert capsys.readouterr().err.startswith("error  another run is at work in this folder; wait")


@pytest.mark.parametrize("begun", [False, True])
def test_a_run_that_is_terminated_says_that_it_was_interrupted(checkout, begun):
    """By SIGTERM, and in a shell's background, where Ctrl-C is ignored; also as it starts."""
    program = (
        "import os, pathlib, signal, sys, threading, time; from nanoeuler.cli import workflow\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "workflow.find_snakefile = lambda: 'Snakefile'\n"
        "def terminate():\n"
        f"    while {begun} and not pathlib.Path('begun').exists(): time.sleep(0.05)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "threading.Timer(0.1, terminate).start()\n"
        "sys.exit(workflow.run_snakemake(['--cores', '1']))"
    )
    (checkout.path / "Snakefile").unlink()
    rules = "from nanoeuler.workflow.endings import end_in_sentences\nend_in_sentences()\n"
    # One process: a bash whose `touch` had just ended as the signal came would go on and sleep.
    checkout.write("Snakefile", f"{rules}rule all:\n    shell: ': > begun; exec sleep 60'\n")
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=checkout.path, capture_output=True, text=True, timeout=50)
    assert done.returncode == 128 + signal.SIGTERM
    assert done.stderr.splitlines()[-1].startswith("interrupted  to go on, run the same command")
    assert done.stderr.count("interrupted") == 1
    assert "Traceback" not in done.stderr
