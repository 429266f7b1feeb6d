"""The card of an export says what its run knows of the model."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from nanoeuler.interchange.exporting import export
from tests.evaluation import fabricated

STAGES = ("pretrain", "sft", "dpo")


@pytest.mark.parametrize("stage", STAGES)
def test_the_card_has_the_data_and_the_scores_of_the_stage(stage, make_model, tmp_path):
    config, folder = fabricated.fabricate(tmp_path, stages=STAGES)
    (folder / "pipeline.json").write_text(json.dumps(fabricated.pipeline(config)))
    place = folder / stage / "model"
    shutil.move(make_model({}), place)
    export(Path(place), "hf", "f32", tmp_path / "hf")
    matter = yaml.safe_load((tmp_path / "hf" / "README.md").read_text().split("---\n")[1])
    assert matter["library_name"] == "transformers"
    assert matter.get("license") == (None if stage == "pretrain" else "cc-by-nc-4.0")
    (entry,) = matter["model-index"]
    assert [result["dataset"]["type"] for result in entry["results"]] == ["gutenberg", "fineweb"]
    scores = {"pretrain": 1.734, "sft": 1.912, "dpo": 1.953}
    assert entry["results"][0]["metrics"][0]["value"] == scores[stage]
