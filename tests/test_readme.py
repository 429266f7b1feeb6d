"""The README's shell commands work as printed, in their order, in a fresh copy of the checkout, and
so do the cells of notebooks/quickstart.ipynb.

The copy differs in two ways. Its config/config.yaml is the small configuration of the tests, under
the demo's name and with a third of its books, since each book costs two stages. And it has the
machine code that this checkout has compiled.
"""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.checkouts import copy_checkout
from tests.machine_code import copy_machine_code

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


FEW_BOOKS = "corpus: {books: [90001, 90002, 90006, 90008, 90011, 90015, 90018, 90023]}\n"
COMMANDS = [line for block in blocks("sh") for line in block.splitlines()]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A copy of the files that git tracks or would track, with this checkout's machine code."""
    folder = copy_checkout(tmp_path_factory.mktemp("readme") / "nanoeuler")
    small = (ROOT / "tests" / "workflow" / "ci.yaml").read_text(encoding="utf-8")
    (folder / "config" / "config.yaml").write_text(
        small.replace("run: ci", "run: demo") + FEW_BOOKS, encoding="utf-8"
    )
    return folder


def run(command: str, checkout: Path, typed: str = "") -> subprocess.CompletedProcess:
    """Run a line of the README in the checkout, with the .venv of `make` first on the PATH."""
    environment = {
        key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    environment["PATH"] = f"{checkout / '.venv' / 'bin'}{os.pathsep}{environment['PATH']}"
    return subprocess.run(
        ["bash", "-c", command],
        cwd=checkout,
        env=environment,
        input=typed,
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_the_readme_shows_the_commands_that_matter():
    assert COMMANDS[0] == "make demo"
    assert {
        "pip install .",
        "nanoeuler run",
        "snakemake --cores all pretrain",
        "nanoeuler check",
    } <= set(COMMANDS)


def test_its_commands_work_as_printed(checkout):
    for command in COMMANDS:
        if command == "pip install .":  # uv makes environments without pip
            run("python -m pip --version || python -m ensurepip", checkout)
            command = "python -m pip install ."
        done = run(command, checkout, typed="Hello!\n" if " chat " in command else "")
        said = done.stdout + done.stderr
        # A plan of hours may be too long for this machine, which exits with 1.
        allowed = (0, 1) if command.startswith("nanoeuler plan") else (0,)
        assert done.returncode in allowed, f"{command}\n{said}"
        assert "Traceback" not in said, f"{command}\n{said}"
        if command == "make install":
            assert "next:" in done.stdout
            assert "nanoeuler train my-novel.txt" in done.stdout
        if command == "make demo":
            assert "results/demo/report.html" in done.stdout
            assert "nanoeuler chat results/demo/dpo/model" in done.stdout
        if command.startswith("nanoeuler plan"):
            assert "pretrain" in done.stdout
        if command.endswith("pip install ."):
            (packages,) = checkout.glob(".venv/lib/python*/site-packages")
            copy_machine_code(packages)
    assert (checkout / "results" / "demo" / "report.html").stat().st_size > 10_000


def test_its_python_works_as_printed(checkout):
    (code,) = blocks("python")
    (checkout / "example.py").write_text(code, encoding="utf-8")
    done = run("python example.py", checkout)
    assert done.returncode == 0, done.stderr


def test_the_cells_of_the_notebook_work_in_their_order(checkout):
    notebook = json.loads((checkout / "notebooks/quickstart.ipynb").read_text(encoding="utf-8"))
    (packages,) = checkout.glob(".venv/lib/python*/site-packages")
    script = [
        f"import subprocess, sys\nfrom pathlib import Path\nsys.path.insert(0, {str(checkout)!r})",
        "from tests.machine_code import copy_machine_code",
    ]
    for cell in notebook["cells"]:
        lines = "".join(cell["source"]).splitlines() if cell["cell_type"] == "code" else []
        for line in lines:
            shell = f"subprocess.run({line[1:]!r}, shell=True, check=True)"
            script.append(shell if line.startswith("!") else line)
            if " pip install " in line:
                script.append(f"copy_machine_code(Path({str(packages)!r}))")
    (checkout / "notebooks/cells.py").write_text("\n".join(script), encoding="utf-8")
    done = run("cd notebooks && python cells.py", checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "What do I pay? →" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_its_own_text_configuration_plans_a_run(checkout):
    (config,) = blocks("yaml")
    (checkout / "config" / "mine.yaml").write_text(config, encoding="utf-8")
    (checkout / "notes").mkdir()
    (checkout / "my-novel.txt").write_text("It was a dark night. " * 500, encoding="utf-8")
    (checkout / "notes" / "idea.md").write_text("An idea. " * 100, encoding="utf-8")
    done = run("snakemake -n --configfile config/mine.yaml", checkout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "build_corpus" in done.stdout
    assert "fetch_book" not in done.stdout
