"""Stages are declared in one place, and nobody else lists them."""

import ast
from pathlib import Path

import pytest

from nanoeuler.config import rules
from nanoeuler.config.settings import Configuration, Tuning
from nanoeuler.config.stages import RECORD_STAGES, STAGES, in_order, result_of
from nanoeuler.training.stages import module_of

PACKAGE = Path(__file__).parents[2] / "nanoeuler"
DECLARED = ("config/stages.py", "training/stages/")
SOURCES = ("corpus/sources/",)
"""Modules of data sets, which name the stage that learns from them."""


def test_no_other_module_has_the_name_of_a_tuning_stage_as_a_value():
    names = {stage.name for stage in STAGES if stage.records}
    found = [
        f"{path.relative_to(PACKAGE).as_posix()}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in names
    ]
    assert not [place for place in found if not place.startswith((*DECLARED, *SOURCES))]


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_a_stage_has_settings_a_rule_and_a_module(stage):
    assert stage.section in rules.RULES
    assert stage.section in Configuration.__dataclass_fields__
    assert issubclass(stage.settings, Tuning) == (stage.records is not None)
    module = module_of(stage)
    assert callable(module.job)
    assert stage.records is None or callable(module.check_fit)
    assert all(parent in [each.name for each in STAGES] for parent in stage.parents)


def test_baselines_are_shown_last_and_are_no_result():
    assert in_order(["other", *(stage.name for stage in STAGES)]) == [
        *("pretrain", "sft", "dpo", "rl", "sft_scratch", "other")
    ]
    assert result_of(["pretrain", "sft", "sft_scratch"]) == "sft"
    assert result_of(["sft_scratch"]) == "sft_scratch"
    assert result_of([]) == ""


def test_each_kind_of_records_has_a_stage_whose_section_names_the_data_set():
    assert [(kind, stage.section) for kind, stage in RECORD_STAGES.items()] == [
        ("instructions", "sft"),
        ("preferences", "dpo"),
        ("problems", "rl"),
    ]
    for kind, stage in RECORD_STAGES.items():
        assert kind in stage.settings.__dataclass_fields__
