"""A served model whose tokenizer fails on a text: an error object, and it answers the next."""

import numpy as np

from nanoeuler.model.config import ModelConfig
from nanoeuler.model.files import SavedModel, save_model
from tests.inference.conftest import FIELDS, wide_parameters
from tests.serving.server import ServerProcess
from tests.strange_tokenizers import IDS, PANICS, write_strange


def test_a_text_that_the_tokenizer_fails_on_is_an_error_object(tmp_path):
    write_strange(tmp_path / "tokenizer.json", PANICS)
    config = ModelConfig.from_dict(FIELDS | {"context": 20_000, "vocab_size": IDS})
    parameters = np.ascontiguousarray(wide_parameters(config))
    saved = SavedModel(config, parameters, tmp_path / "tokenizer.json", "imported", None)
    save_model(tmp_path / "odd", saved)
    with ServerProcess(tmp_path, "--model", tmp_path / "odd", "--device", "cpu") as server:
        name = server.get("/v1/models").json()["data"][0]["id"]
        for prompt, status in (("quick", 200), ("q" * 5000 + "b", 400), ("quick", 200)):
            asked = {"model": name, "prompt": prompt, "max_tokens": 3}
            answer = server.post("/v1/completions", asked)
            assert answer.status == status, answer.data
        error = server.post("/v1/completions", asked | {"prompt": "q" * 5000 + "b"}).json()["error"]
        assert error["param"] == "prompt"
        assert "the tokenizers library does not read a text of 5,001 bytes" in error["message"]
        assert "Traceback" not in server.log
        assert "panicked" not in server.log
