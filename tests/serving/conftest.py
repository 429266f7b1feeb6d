"""The models of tests/inference, for tests that serve them, and one that never ends a reply."""

import pytest

from nanoeuler.model.config import ModelConfig
from nanoeuler.model.files import SavedModel, save_model
from nanoeuler.model.flat import FlatBuffer
from tests.inference.conftest import (
    FIELDS,
    base_folder,
    tokenizer,
    tokenizer_path,
    tune,
    tuned_folder,
    wide_parameters,
)
from tests.serving.asked import Asked

__all__ = ["base_folder", "tokenizer", "tokenizer_path", "tuned_folder"]


@pytest.fixture(scope="session", autouse=True)
def asked_tokenizer(tokenizer):
    Asked.tokenizer = tokenizer


FORMED = {
    "How many clips?": "48/2 = <<48/2=24>>24 clips.",
    "Describe Bea.": '{"name": "Bea {\\"B\\"}, café", "likes": ["tea", [7, true]], "owes": {}}',
}
"""What another model has memorised: a reply that calls the calculator, and one that is JSON."""


@pytest.fixture(scope="session")
def formed_folder(tmp_path_factory, tokenizer_path):
    folder = tmp_path_factory.mktemp("models") / "formed"
    return tune(folder, tokenizer_path, FORMED, context=200, steps=140)


@pytest.fixture(scope="session")
def endless_folder(tmp_path_factory, tokenizer_path):
    """A model that never ends a reply when it takes the likeliest token: the score of `</s>` is
    the mean of all scores. Its context is so long that a reply is still being written when a test
    has done something else."""
    config = ModelConfig.from_dict(FIELDS | {"context": 20_000})
    folder = tmp_path_factory.mktemp("models") / "endless"
    parameters = wide_parameters(config)
    head = FlatBuffer(config, parameters)["lm_head.weight"]
    head[0] = head.mean(axis=0)
    save_model(folder, SavedModel(config, parameters, tokenizer_path, "pretrain", None))
    return folder
