"""Checkouts with stubs for stages: fresh, or with a complete run."""

import fcntl
import os
import shutil
from pathlib import Path

import pytest
import trial_config
from stub_checkout import CI, Checkout, copy_checkout, make_checkout


@pytest.fixture
def write_config(tmp_path):
    """A function that writes the trial configuration with changes, and returns its path."""
    (tmp_path / "sources.yaml").write_text(trial_config.SOURCES)

    def write(added: str = "", name: str = "config.yaml", **replaced: str) -> str:
        text = trial_config.CONFIG.format(sources=tmp_path / "sources.yaml") + added
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


@pytest.fixture
def checkout(tmp_path) -> Checkout:
    """A fresh checkout."""
    (tmp_path / "checkout").mkdir()
    return make_checkout(tmp_path / "checkout")


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Checkout:
    """A checkout whose run is complete. Not to be changed: take `done`."""
    checkout = make_checkout(tmp_path_factory.mktemp("finished"))
    checkout.run()
    return checkout


@pytest.fixture
def done(finished, tmp_path) -> Checkout:
    """A copy of a checkout whose run is complete."""
    shutil.copytree(finished.path, tmp_path / "done", symlinks=True)
    return Checkout(tmp_path / "done")


@pytest.fixture(scope="session")
def pipeline(tmp_path_factory) -> Checkout:
    """A checkout in which `snakemake` has run on ci.yaml."""
    own = tmp_path_factory.getbasetemp()
    ran = (
        own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    ) / "pipeline-as-it-ran"  # once for all processes of pytest
    with open(f"{ran}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ran.exists():
            run_pipeline(own / "pipeline-on-its-way").rename(ran)
    shutil.copytree(ran, own / "pipeline", symlinks=True)
    return Checkout(own / "pipeline")


def run_pipeline(path: Path) -> Path:
    copy_checkout(path).run(*CI)
    return path
