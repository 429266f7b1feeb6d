"""Plans of the shipped configurations, in a folder where nothing was downloaded yet."""

import shutil
from pathlib import Path

import pytest

from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.config import load
from nanoeuler.planning import plan as planning

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "config", tmp_path / "config")
    monkeypatch.chdir(tmp_path)


def plan_of(name, *overrides):
    config = load(f"config/{name}.yaml", overrides)
    return config, planning.make_plan(config, ReferenceBackend())
