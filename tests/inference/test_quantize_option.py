"""The commands that use a model round its weights, or take a folder with such weights."""

import json
import subprocess
import sys

import pytest

from nanoeuler.model.files import load_model, quantized, save_model

TEXT = "one two three four five six seven\n"


@pytest.fixture(scope="module")
def small(tuned_folder, tmp_path_factory):
    """The tuned model with the weights in int8: it still knows what it has memorised."""
    folder = tmp_path_factory.mktemp("small") / "model"
    save_model(folder, quantized(load_model(tuned_folder), "int8"))
    return folder


@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_generate_rounds(scheme, command, tuned_folder):
    words = "generate", tuned_folder, "Count.", "--temperature", 0, "--device", "cpu"
    status, text, _ = command(*words, "--quantize", scheme)
    assert status == 0
    assert scheme == "int4" or text == TEXT


def test_generate_takes_a_folder(command, small):
    status, text, _ = command("generate", small, "Count.", "--temperature", 0, "--device", "cpu")
    assert (status, text) == (0, TEXT)


@pytest.mark.parametrize("options", [[], ["--quantize", "int8"]])
def test_chat_says_what_the_weights_are(options, small, tuned_folder):
    folder = tuned_folder if options else small
    words = ["chat", folder, "--temperature", "0", "--device", "cpu", *options]
    command = [sys.executable, "-m", "nanoeuler", *map(str, words)]
    done = subprocess.run(command, input="Count.\n", capture_output=True, text=True)
    assert TEXT.strip() in done.stdout
    assert "parameters in int8, stage sft" in done.stderr


def test_an_evaluation_says_it(command, tuned_folder, tmp_path):
    settings = {"prompts": ["Count."], "max_new_tokens": 12, "temperature": 0.1, "top_k": 0}
    config = {"evaluate": settings | {"top_p": 1.0}}
    words = ["--config", json.dumps(config), "--model", tuned_folder, "--device", "cpu"]
    for options, expected in (([], None), (["--quantize", "int8"], "int8")):
        output = tmp_path / f"{expected}.json"
        status, _, said = command("evaluate", *words, *options, "--output", output)
        assert status == 0, said
        result = json.loads(output.read_text())
        assert result.get("quantized") == expected
        assert "one two three four" in json.dumps(result["samples"])
