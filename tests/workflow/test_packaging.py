"""The locked packages are the installed ones, and the wheel works without the checkout."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

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
        wanted = Requirement(requirement)
        assert wanted.specifier.contains(locked[canonicalize_name(wanted.name)]), (
            f"{wanted}: run `make lock`"
        )


@pytest.mark.parametrize("extra", ["core", *sorted(EXTRAS.keys() - {"dev"})])
def test_what_is_installed_beside_others_is_asked_for_by_ranges(extra):
    """From the version that is locked on, up to one that may differ."""
    requirements = EXTRAS.get(extra, PROJECT["dependencies"])
    text = (ROOT / f"requirements/{extra}.txt").read_text()
    for wanted in map(Requirement, requirements):
        (least,) = (each for each in wanted.specifier if each.operator == ">=")
        (bound,) = (each for each in wanted.specifier if each.operator == "<")
        assert f"{canonicalize_name(wanted.name)}=={least.version}" in text
        assert Version(least.version) < Version(bound.version)


@pytest.mark.parametrize("lock", WANTED)
def test_locks_have_hashes_and_name_no_index(lock):
    text = (ROOT / f"requirements/{lock}.txt").read_text()
    assert "://" not in text
    assert "--index-url" not in text
    for entry in re.split(r"\n(?=\S)", text):
        assert entry.startswith("#") or "--hash=sha256:" in entry


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The folder that a wheel of this project was unpacked into, and nothing else."""
    pytest.importorskip("hatchling", reason="the build backend is not installed here")
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        file.extractall(folder / "installed")
    shipped = {path for path in (ROOT / "nanoeuler").rglob("*") if path.is_file()}
    shipped = {path for path in shipped if path.parent.name != "__pycache__"}
    assert {path.relative_to(ROOT).as_posix() for path in shipped} <= names
    assert {name.partition("/")[0] for name in names} == {
        "nanoeuler",
        f"nanoeuler-{PROJECT['version']}.dist-info",
    }
    return folder / "installed"


@pytest.fixture
def outside(installed, tmp_path):
    """A function that runs the installed `nanoeuler` in an empty folder, far from any clone."""
    environment = os.environ | {"PYTHONPATH": str(installed), "COLUMNS": "100"}

    def nanoeuler(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "nanoeuler", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    return nanoeuler


def test_what_an_installed_nanoeuler_proposes_works_outside_a_clone(outside, tmp_path):
    proposed = outside()
    for command in ("run  ", "chat models/novels  ", "plan config/small.yaml  ", "train my-novel"):
        assert f"nanoeuler {command}" in proposed
    assert "job" in outside("run", "--", "--dry-run")  # the demo
    assert "write_report" in outside("run", "config/small.yaml", "--", "--dry-run")
    assert "run small: 1,049,216 parameters" in outside("plan", "config/small.yaml", "--gpus", "8")
    assert "4,096" in outside("info", "models/novels")
    outside("generate", "models/novels", "It was", "--max-tokens", "4")
    assert {path.name for path in tmp_path.iterdir()} <= {".snakemake", "results"}
    (tmp_path / "config").mkdir()
    mine = (ROOT / "config/small.yaml").read_text().replace("run: small", "run: mine")
    (tmp_path / "config/small.yaml").write_text(mine)  # what is there comes first
    assert "run mine: " in outside("plan", "config/small.yaml", "--gpus", "8")


def test_the_schemas_are_read_from_a_wheel(installed):
    read = (
        "from nanoeuler.config.settings import Configuration;"
        "from nanoeuler.config.validation import read_schema;"
        "print(read_schema(Configuration)['title'])"
    )
    printed = subprocess.run(
        [sys.executable, "-c", read], cwd=installed, check=True, capture_output=True, text=True
    ).stdout
    assert printed == "Configuration\n"


@pytest.mark.parametrize("version", ["3.9.2", "3.15.0"])
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
        f"nanoeuler needs Python 3.11 to 3.14 and found Python {version}: install one, or "
    )
    assert refused.stderr.count("\n") == 1
    assert not (checkout / ".venv").exists()
