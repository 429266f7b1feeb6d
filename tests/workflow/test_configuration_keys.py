"""Every key of a configuration has a meaning, and the configurations of the project are valid."""

import re
from dataclasses import Field, fields
from pathlib import Path

import pytest

from nanoeuler.config import load
from nanoeuler.config.data_settings import Sources, Task
from nanoeuler.config.model_settings import Model
from nanoeuler.config.settings import Configuration
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.rope_scaling import TYPES
from nanoeuler.storage.section import Section, section_type
from scripts.configuration_keys import reference

ROOT = Path(__file__).parents[2]


def keys(section: type[Section], prefix: str = "") -> dict[str, Field]:
    """Every key of a section, dotted, with its field."""
    found = {}
    for field in fields(section):
        inner = section_type(field)
        found |= keys(inner, f"{prefix}{field.name}.") if inner else {prefix + field.name: field}
    return found


def test_the_settings_and_the_model_know_the_same_fields():
    scaling = {field.name for kind in TYPES.values() for field in fields(kind)}
    known = {"preset"} | {field.name for field in fields(ModelConfig)}
    nested = {f"rope_scaling.{name}" for name in scaling}
    assert set(keys(Model)) == known - {"rope_scaling", "lora"} | nested  # stages have adapters


def test_every_key_says_what_it_means():
    for section in (Configuration, Task, Sources, *sections_of_sources()):
        for key, field in keys(section).items():
            assert field.metadata["description"], f"{section.__name__}: {key} has no description"


def sections_of_sources() -> list[type[Section]]:
    room = "nanoeuler.corpus.sources"
    return [kind for kind in below(Section) if kind.__module__.startswith(room)]


def below(kind: type[Section]) -> list[type[Section]]:
    return [each for below_it in kind.__subclasses__() for each in (below_it, *below(below_it))]


def test_the_readme_of_the_configuration_explains_every_key_with_its_default():
    text = (ROOT / "config/README.md").read_text()
    explained = []
    for part in text.split("\n## ")[1:]:
        heading, _, content = part.partition("\n")
        lists = [
            block.strip() for block in content.split("\n\n") if block.strip().startswith("- `")
        ]
        assert lists == [reference()[heading.strip("`").lower()]]
        explained.append(heading.strip("`").lower())
    assert sorted(explained) == sorted(reference())
    listed = re.findall(r"^- `([^`]+)`", text, flags=re.MULTILINE)
    for key in keys(Configuration):
        assert key in listed or key.partition(".")[2] in listed, key


RUNS = sorted(
    path
    for path in (ROOT / "config").glob("*.yaml")
    if path.name not in ("sources.yaml", "sample.yaml")
)


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name)
def test_the_configurations_that_come_with_the_project_are_valid(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    config = load(path)
    assert config["run"] == ("demo" if path.stem == "config" else path.stem)
