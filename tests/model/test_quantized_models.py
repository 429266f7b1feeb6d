"""Models whose weights are codes and scales: what they compute, and their folders."""

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from nanoeuler.backend.cpu.engine import CpuBackend
from nanoeuler.backend.quantized import Quantized
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.errors import UserError
from nanoeuler.inference import api
from nanoeuler.interchange.accepting import accept
from nanoeuler.model.appending import extend
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.files import load_model, quantized, save_model
from nanoeuler.model.flat import FlatBuffer, initial_parameters
from nanoeuler.model.quantized import SCHEMES, QuantizedBuffer
from nanoeuler.model.transformer import Batch, Transformer
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.training.parents import read_parent
from tests.models import model_in

FIELDS = {"dim": 64, "layers": 2, "heads": 4, "ffn": 75, "context": 48, "vocab_size": 300}
LLAMA = FIELDS | {"kv_heads": 2, "mtp_heads": 2, "step_size": 0.5}
SHAPES = {
    "Llama": LLAMA,
    "tied, normed q and k": LLAMA | {"tied": True, "qk_norm": "weighted"},
    "wide heads, one layer": LLAMA | {"head_size": 24, "layers": 1, "ffn": 64},
    "ReLU²": LLAMA | {"activation": "relu2"},
    "biases and a window": LLAMA | {"qkv_bias": True, "windows": [9, 0]},
    "as Gemma 3": LLAMA
    | {"activation": "geglu", "post_norms": True, "embedding_scale": 3.0, "qk_norm": "weighted"}
    | {"step_size": 1.0},
    "as Gemma 2": LLAMA
    | {"activation": "geglu", "post_norms": True, "embedding_scale": 3.0, "step_size": 1.0}
    | {"attention_cap": 0.7, "logit_cap": 1.3, "query_scalar": 20, "windows": [9, 0]},
    "GPT-2": FIELDS | {"family": "gpt2", "kv_heads": 4, "mtp_heads": 1, "tied": True, "ffn": 96},
}
NEAR = 3e-4
"""Of logits on the CPU, which rounds vectors to 16 bits, to those of these weights in float32."""


def wide(config):
    """Parameters by which tokens depend on each other."""
    parameters = initial_parameters(config, 1)
    parameters[parameters != 1] *= 6
    return parameters


@pytest.fixture(params=SCHEMES)
def scheme(request):
    return request.param


@pytest.fixture(params=SHAPES)
def weights(request, scheme):
    config = ModelConfig.from_dict(SHAPES[request.param])
    return QuantizedBuffer.of(config, wide(config), scheme)


def logits_of(model, ids):
    normed = model.forward(Batch.of_documents(ids, model.backend)).stream.normed
    return np.array(model.first_logits(normed))


def test_logits_are_those_of_the_same_numbers_in_floats(weights):
    config, ids = weights.config, np.arange(80, dtype=np.int32).reshape(2, 40)
    expected = logits_of(Transformer(config, weights.dense(), ReferenceBackend()), ids)
    for engine in (ReferenceBackend(), CpuBackend(1), CpuBackend(3)):
        found = logits_of(Transformer(config, weights, engine), ids)
        assert np.linalg.norm(found - expected) < NEAR * np.linalg.norm(expected)


@pytest.mark.parametrize("new", [1, 2, 4, 5, 8])
def test_a_cache_and_drafts_change_nothing_but_rounding(weights, new):
    """Tokens that are checked together have the bits that each gets alone."""
    model = Transformer(weights.config, weights, CpuBackend(1))
    ids = (np.arange(80, dtype=np.int32) * 7 % 300).reshape(2, 40)
    whole = logits_of(model, ids).reshape(2, 40, -1)
    steps, passes = model.new_cache(2, 48), model.new_cache(2, 48)
    extend(model, steps, ids[:, :32])
    extend(model, passes, ids[:, :32])
    alone = np.stack([extend(model, steps, ids[:, [t]]) for t in range(32, 40)], axis=1)
    for first in range(32, 40 - new + 1, new):
        together = extend(model, passes, ids[:, first : first + new], every=True)
        assert np.array_equal(together, alone[:, first - 32 :][:, :new])
    assert np.linalg.norm(alone - whole[:, 32:]) < NEAR * np.linalg.norm(whole[:, 32:])


def test_matrices_are_whole_numbers_and_the_rest_is_exact(weights):
    config = weights.config
    exact = FlatBuffer(config, wide(replace(config, step_size=1.0)))
    for tensor in weights.table:
        values = weights[tensor.name]
        is_matrix = len(tensor.shape) > 1 and "wpe" not in tensor.name
        assert isinstance(values, Quantized) == is_matrix
        assert values.shape == tensor.shape
        if not is_matrix and not tensor.name.endswith("c_proj.bias"):
            assert np.array_equal(values, exact[tensor.name])


# ---- folders


@pytest.fixture(params=["Llama", "GPT-2"])
def folder(tmp_path, request):
    return model_in(tmp_path / "model", SHAPES[request.param], "alpaca")


@pytest.fixture
def saved(folder, scheme, tmp_path):
    model = quantized(load_model(folder), scheme)
    save_model(tmp_path / "small", model)
    return tmp_path / "small"


def test_a_folder_has_the_same_bits(saved, folder, scheme):
    given = quantized(load_model(folder), scheme).quantized
    found = load_model(saved, as_codes=True)
    assert found.quantized.scheme == scheme
    assert found.config.step_size == 1.0
    for (name, values), (_, expected) in zip(
        found.quantized.in_file(), given.in_file(), strict=True
    ):
        assert np.array_equal(values, expected), name
    assert np.array_equal(load_model(saved).parameters, given.dense())
    share = {"int8": 0.35, "int4": 0.3}[scheme]
    sizes = [(each / "model.safetensors").stat().st_size for each in (saved, folder)]
    assert sizes[0] < share * sizes[1]


def test_a_folder_writes_what_rounding_at_the_start_writes(saved, folder, scheme):
    asked = {"raw": True, "max_tokens": 30, "temperature": 0}
    text = api.load(saved, "cpu").generate("The ferry", **asked)
    assert text == api.load(folder, "cpu", quantize=scheme).generate("The ferry", **asked)
    plainly = api.load(folder, "cpu", quantize=scheme, speculation=False)
    assert text == plainly.generate("The ferry", **asked)
    assert f"in {scheme}, stage sft" in repr(plainly)


def test_the_reference_takes_it_too(saved):
    ids = [0, 50, 60, 70]
    near, far = (api.load(saved, device).logits(ids) for device in ("cpu", "reference"))
    assert np.abs(near - far).max() < 1e-3 * np.abs(far).max()


def test_its_card_names_no_class_of_transformers(saved):
    assert "whole numbers with scales" in (saved / "README.md").read_text()
    assert "model_type" not in json.loads((saved / "config.json").read_text())


def test_it_can_be_accepted(saved):
    """With a norm that somebody changed."""
    path = saved / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if "norm" in name or "ln" in name)
    save_file(tensors | {name: tensors[name] + 1}, path)
    with pytest.raises(UserError, match="its bytes are not those that the stage"):
        load_model(saved)
    accept(saved)
    assert np.array_equal(load_model(saved, as_codes=True).quantized[name], tensors[name] + 1)


# ---- what is refused


def test_no_stage_trains_it(saved, scheme):
    model = load_model(saved)
    known = Tokenizer.load(model.tokenizer_path), model.tokenizer_path
    with pytest.raises(UserError, match=f"its weights are {scheme}, which nothing but adapters"):
        read_parent(saved, model.config, *known)


def test_nothing_refines_it_or_reads_a_text_with_it(saved, command, tmp_path):
    (tmp_path / "text.txt").write_text("The ferry came to the quay.\n" * 200)
    for words in (
        ["refine", saved, "--output", tmp_path / "deeper"],
        ["train", tmp_path / "text.txt", "--from", saved, "--name", "more"],
    ):
        status, _, said = command(*words)
        assert status == 1
        assert "which nothing but adapters can be trained on" in said


def test_one_kind_is_not_made_of_another(saved, scheme):
    other = {"int8": "int4", "int4": "int8"}[scheme]
    with pytest.raises(UserError, match=f"the model is in {scheme} already"):
        api.load(saved, "cpu", quantize=other)
    assert api.load(saved, "cpu", quantize=scheme).quantized == scheme


def test_rows_that_blocks_do_not_divide(tmp_path):
    fields = LLAMA | {"dim": 48}
    folder = model_in(tmp_path / "model", fields)
    with pytest.raises(UserError, match="blocks of 32 weights, which don't divide the model's dim"):
        api.load(folder, "cpu", quantize="int8")


def test_a_kind_that_nobody_knows(folder):
    with pytest.raises(UserError, match="'int3' is no kind of weights; there are int8, int4"):
        api.load(folder, "cpu", quantize="int3")


def test_an_engine_that_takes_floats_says_so(folder, monkeypatch):
    monkeypatch.setattr(CpuBackend, "reads_codes", False)
    with pytest.raises(UserError, match="the engine cpu computes with floats"):
        api.load(folder, "cpu", quantize="int8")


def test_an_engine_that_takes_floats_gets_those_of_the_codes(saved, monkeypatch):
    expected = api.load(saved, "cpu").logits([0, 50, 60])
    monkeypatch.setattr(CpuBackend, "reads_codes", False)
    found = api.load(saved, "cpu").logits([0, 50, 60])
    assert np.abs(found - expected).max() < 1e-3 * np.abs(expected).max()


def description(saved, change):
    """Change the section of the config, as an accepted folder may have it."""
    path = saved / "config.json"
    content = json.loads(path.read_text())
    change(content["nanoeuler"])
    path.write_text(json.dumps(content))


def test_a_folder_of_an_unknown_kind(saved):
    description(saved, lambda section: section.update(quantized="int2"))
    with pytest.raises(UserError, match="quantized is 'int2'; this version knows int8, int4"):
        load_model(saved)


def damaged(saved, change):
    """The sentence about a file with other tensors, which somebody accepts."""
    path = saved / "model.safetensors"
    tensors = load_file(path)
    codes = next(name for name in tensors if name.endswith(".codes"))
    change(tensors, codes)
    save_file(tensors, path)
    with pytest.raises(UserError) as error:
        accept(saved)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t, n: t.update({n: t[n].astype(np.int16)}), "has type I16; a nanoeuler model is"),
        (lambda t, n: t.update({n: t[n][:-1]}), "where the config asks for"),
        (lambda t, n: t.pop(n), "is missing"),
        (
            lambda t, n: t[n.replace("codes", "scales")].fill(np.inf),
            "holds a scale that is not finite",
        ),
    ],
)
def test_damaged_codes_are_one_sentence(saved, change, words):
    assert words in damaged(saved, change)


def test_codes_that_are_cut_off(saved):
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match="damaged or cut off"):
        load_model(saved)


def test_weights_that_no_scale_holds(tmp_path):
    folder = model_in(tmp_path / "model", LLAMA)
    model = load_model(folder)
    model.parameters[:] = 1e9
    with pytest.raises(UserError, match="holds a value that is not finite in int8"):
        quantized(model, "int8")
