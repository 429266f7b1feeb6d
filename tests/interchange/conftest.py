"""A function that makes models, and a tokenizer whose ids they have."""

import json
from typing import Any

import numpy as np
import pytest
from exported_shapes import FIELDS, VOCABULARY

from nanoeuler.model.config import ModelConfig
from nanoeuler.model.files import SavedModel, save_model
from nanoeuler.model.flat import FlatBuffer, initial_parameters
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.bpe import learn
from nanoeuler.tokenizer.counting import count_words
from nanoeuler.tokenizer.vocabulary import build


@pytest.fixture(scope="session")
def tokenizer_path(tmp_path_factory):
    text = b"The harbour lies below the hill. Below is an instruction. Where does Bea live? " * 3
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    Tokenizer(build(learn(count_words([text]), VOCABULARY))).save(path)
    return path


@pytest.fixture
def make_model(tmp_path, tokenizer_path):
    """A function that writes a model folder of some shape. Its norms have weights of all sizes,
    from 2 to 6, or from 0.5 to 1.5 where `calm`: norms of q and k then make no spikes of scores."""

    def make(fields: dict[str, Any], template: str | None = None, *, calm: bool = False):
        config = ModelConfig.from_dict(FIELDS | fields)
        parameters = initial_parameters(config, 5) * np.float32(4)
        parameters *= np.random.default_rng(1).uniform(0.5, 1.5, parameters.shape).astype("f4")
        buffer = FlatBuffer(config, parameters)
        for tensor in buffer.table if calm else ():
            if len(tensor.shape) == 1:
                buffer[tensor.name][...] /= 4
        folder = tmp_path / "model"
        save_model(folder, SavedModel(config, parameters, tokenizer_path, "sft", template))
        return folder

    return make


@pytest.fixture
def change_config():
    """A function that changes keys of a folder's config."""

    def change(folder, **keys):
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | keys))

    return change
