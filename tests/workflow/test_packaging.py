"""The locked packages are the installed ones, and the wheel works without the checkout."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
READ = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = READ["project"]
UNLOCKED = {"torch"}  # the benchmarks' peer, which nothing in the project needs
EXTRAS = {
    extra: pins for extra, pins in PROJECT["optional-dependencies"].items() if extra not in UNLOCKED
}
WANTED = {"core": PROJECT["dependencies"]} | {
    extra: PROJECT["dependencies"] + pins for extra, pins in EXTRAS.items()
}
WANTED["pip"] = READ["dependency-groups"]["pip"]


@pytest.mark.parametrize("lock", WANTED)
def test_locks_hold_the_versions_that_the_project_asks_for(lock):
    text = (ROOT / f"requirements/{lock}.txt").read_text()
    locked = dict(re.findall(r"^([a-z0-9-]+)==([^\s;]+)", text, re.MULTILINE))
    for requirement in WANTED[lock]:
        name, version = re.sub(r"\[.*\]|;.*", "", requirement).split("==")
        assert locked[name.lower()] == version, f"{name}: run `make lock`"


@pytest.mark.parametrize("lock", WANTED)
def test_locks_have_hashes_and_name_no_index(lock):
    text = (ROOT / f"requirements/{lock}.txt").read_text()
    assert "://" not in text
    assert "--index-url" not in text
    for entry in re.split(r"\n(?=\S)", text):
        assert entry.startswith("#") or "--hash=sha256:" in entry


def test_a_wheel_holds_the_schemas(tmp_path):
    pytest.importorskip("hatchling", reason="the build backend is not installed here")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        file.extractall(tmp_path / "installed")
    assert {"nanoeuler/config/settings.py", "nanoeuler/__main__.py"} <= names
    assert not any(name.startswith(("tests", "config", "workflow")) for name in names)
    read = (
        "from nanoeuler.config.settings import Configuration;"
        "from nanoeuler.config.validation import read_schema;"
        "print(read_schema(Configuration)['title'])"
    )
    printed = subprocess.run(
        [sys.executable, "-c", read],
        cwd=tmp_path / "installed",
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert printed == "Configuration\n"


@pytest.mark.parametrize("version", ["3.9.2", "3.14.0"])
def test_another_python_is_refused_in_one_sentence(tmp_path, version):
    checkout, tools = tmp_path / "checkout", tmp_path / "tools"
    (checkout / "requirements").mkdir(parents=True)
    tools.mkdir()
    script = checkout / "requirements/install.sh"
    script.write_text((ROOT / "requirements/install.sh").read_text())
    for tool in ("bash", "dirname"):
        (tools / tool).symlink_to(f"/usr/bin/{tool}")
    old = tools / "python3"
    old.write_text(
        '#!/bin/bash\n[ "$1" = --version ] && echo Python VERSION && exit\nexit 1\n'.replace(
            "VERSION", version
        )
    )
    old.chmod(0o755)
    refused = subprocess.run(
        ["/bin/bash", script], env={"PATH": str(tools)}, capture_output=True, text=True
    )
    assert refused.returncode != 0
    assert refused.stderr.startswith(
        f"nanoeuler needs Python 3.11, 3.12 or 3.13 and found Python {version}: install one, or "
    )
    assert refused.stderr.count("\n") == 1
    assert not (checkout / ".venv").exists()
