"""The shell's completion, as bash itself asks for it."""

import shutil
import subprocess

import pytest

from nanoeuler.cli import build_parser, completion
from nanoeuler.lessons import OPS
from nanoeuler.lessons.trials import TRIALS

BASH = shutil.which("bash")


@pytest.mark.skipif(BASH is None, reason="there is no bash here")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("ch", {"chat", "check"}),
        ("chat results/demo --te", {"--temperature"}),
        ("info --device ", {"auto", "cpu", "cuda", "webgpu", "reference"}),
        ("run config/small.yaml sft", {"sft", "sft_scratch"}),
        ("check --op ac", {"accept_drafts"}),
        ("gutenberg fe", {"fetch"}),
        ("completion ", {"bash", "zsh"} | {f"{dash}" for dash in ("-h", "--help", "--log")}),
        ("nonsense x", set()),
    ],
)
def test_bash_offers_what_may_follow(typed, offered):
    words = ["nanoeuler", *typed.split(" ")]
    quoted = " ".join(f"'{word}'" for word in words)
    program = (
        f"{completion.script(build_parser())}\n"
        f"COMP_WORDS=({quoted}) COMP_CWORD={len(words) - 1}\n"
        '_nanoeuler; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run([BASH, "-uc", program], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == offered
    assert done.stderr == ""


def test_the_ops_that_are_completed_are_those_that_can_be_written():
    assert tuple(TRIALS) == OPS


def test_zsh_gets_the_same_behind_its_bridge_to_bash(command):
    plain, bridged = command("completion", "bash")[1], command("completion", "zsh")[1]
    assert bridged == completion.FOR_ZSH + plain
    assert "complete -o default -F _nanoeuler nanoeuler" in plain
