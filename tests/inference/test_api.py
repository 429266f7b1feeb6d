import dataclasses
import doctest
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nanoeuler
from nanoeuler.errors import UserError
from nanoeuler.inference import api
from nanoeuler.inference.sampling import Sampling
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.files import SavedModel, load_model, save_model
from nanoeuler.model.flat import initial_parameters

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def base(base_folder):
    return nanoeuler.load(base_folder)


@pytest.fixture(scope="module")
def tuned(tuned_folder):
    return nanoeuler.load(tuned_folder)


def test_the_examples_of_the_module_are_true(tmp_path, tokenizer_path):
    config = ModelConfig.from_dict({"preset": "small"})
    save_model(
        tmp_path / "model",
        SavedModel(config, initial_parameters(config, 1), tokenizer_path, "sft", "alpaca"),
    )
    results = doctest.testmod(api, extraglobs={"folder": tmp_path / "model"})
    assert results.attempted >= 10
    assert results.failed == 0


def loaded(script, modules):
    """Those of the modules that a program has loaded."""
    ask = f"{script}; import sys; print(*sorted({modules} & set(sys.modules)))"
    arguments = [sys.executable, "-c", ask]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, cwd=CHECKOUT)
    return done.stdout.split()


def test_importing_the_package_is_cheap():
    dear = {"numpy", "safetensors", "yaml", "nanoeuler.inference.api"}
    assert loaded("import nanoeuler", dear) == []
    assert loaded("import nanoeuler, numpy", dear) == ["numpy"]


def test_reading_a_tokenizer_and_decoding_load_no_compiler(tokenizer_path):
    script = (
        "from nanoeuler.tokenizer import Tokenizer; import nanoeuler.workflow.start;"
        f"Tokenizer.load({str(tokenizer_path)!r}).decode([1, 99])"
    )
    assert loaded(script, {"numba"}) == []


def test_a_plan_and_a_trainer_load_no_compiler_and_no_http_client_by_themselves():
    """A trainer's engine may load the compiler."""
    script = (
        "import nanoeuler.planning.plan; from nanoeuler.training.stages import pretrain, sft, dpo"
    )
    assert loaded(script, {"numba", "urllib3"}) == []


# ---- writing


def test_a_tuned_model_answers_in_its_template(tuned):
    assert tuned.generate("Name a colour.", temperature=0) == "blue"
    assert (
        tuned.generate("Where does the fox live?", temperature=0)
        == "In the old mill, café “Zur Mühle”."
    )
    assert "### Input:\nthis\n" in tuned.prompt("Do it.", "this")


def test_raw_continues_the_prompt_without_the_template(tuned):
    assert tuned.generate(tuned.prompt("Name a colour."), raw=True, temperature=0) == "blue"
    assert tuned.generate("Name a colour.", raw=True, max_tokens=5, temperature=0) != "blue"


def test_a_base_model_continues_the_prompt(base):
    assert base.prompt("Once") == "Once"
    assert base.generate("Once", max_tokens=9) == base.generate("Once", raw=True, max_tokens=9)


@pytest.mark.parametrize("prompt", [None, ["Name a colour."], b"Name", 7])
def test_what_is_not_text_is_no_prompt(base, tuned, prompt):
    for model in (base, tuned):
        with pytest.raises(TypeError, match="prompt must be one text, a str, not"):
            model.generate(prompt)
    with pytest.raises(TypeError, match="input must be one text, a str, not None"):
        tuned.generate("Name a colour.", None)


def test_a_setting_of_another_name_is_an_error_of_the_method_that_was_called(base):
    with pytest.raises(TypeError, match=r"LanguageModel.generate\(\) got .* 'temp'"):
        base.generate("Once", temp=1)


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ({"temperature": "hot"}, "temperature is 'hot': it must be a number"),
        ({"temperature": 10**400}, "temperature is 1000"),
        ({"temperature": None}, "temperature is None: it must be a number"),
        ({"top_k": 1.5}, "top-k is 1.5: it must be a whole number"),
        ({"seed": "1"}, "seed is '1': it must be a whole number"),
        ({"max_tokens": 0}, "max-tokens is 0: it must be a whole number above 0"),
        ({"max_tokens": 2.0}, "max-tokens is 2.0: it must be a whole number above 0"),
    ],
)
def test_a_setting_out_of_range_is_named(base, setting, problem):
    with pytest.raises(UserError, match=problem):
        base.generate("Once", **setting)


def test_every_parameter_is_documented():
    for function in (nanoeuler.load, api.LanguageModel.generate):
        parameters = set(inspect.signature(function).parameters) - {"self"}
        assert parameters == set(re.findall(r"^ *- `(\w+)`:", function.__doc__, re.MULTILINE))
    for function in (api.LanguageModel.generate, api.LanguageModel.stream):
        parameters = inspect.signature(function).parameters
        for field in dataclasses.fields(Sampling):
            assert parameters[field.name].default == field.default


def test_an_input_without_a_template_is_refused(base, tuned):
    with pytest.raises(
        UserError,
        match=r"\(stage pretrain\) is a base model and has none; make it a part of the prompt",
    ):
        base.generate("Translate.", "Hund")
    with pytest.raises(UserError, match="raw leaves the template out"):
        tuned.generate("Translate.", "Hund", raw=True)


def test_stream_gives_the_same_text_in_pieces(base):
    assert "".join(base.stream("Once", max_tokens=20, seed=4)) == base.generate(
        "Once", max_tokens=20, seed=4
    )


def test_sampling_settings_out_of_range_are_refused(base):
    with pytest.raises(UserError, match="top-p is 2"):
        base.generate("Once", top_p=2)


# ---- studying


def test_logits_have_the_shape_of_the_ids(base):
    ids = np.arange(16, 28).reshape(2, 6)
    both = base.logits(ids)
    assert both.shape == (2, 6, 384)
    assert both.dtype == np.float32
    one = base.logits(ids[1].tolist())
    assert one.shape == (6, 384)
    # float32 products of other shapes round differently
    np.testing.assert_allclose(one, both[1], rtol=1e-4, atol=1e-4)


def test_logits_lead_to_the_tokens_of_greedy_decoding(tuned):
    ids = [tuned.tokenizer.end_id, *tuned.tokenizer.encode(tuned.prompt("Name a colour."))]
    reply = []
    while (token := int(tuned.logits(ids + reply)[-1].argmax())) != tuned.tokenizer.end_id:
        reply.append(token)
    assert tuned.tokenizer.decode(reply) == "blue"


def test_logits_are_a_copy_that_later_calls_leave_alone(base):
    first = base.logits([1, 2, 3])
    kept = first.copy()
    base.logits([4, 5, 6])
    assert np.array_equal(first, kept)


def test_activations_are_the_euler_steps_from_embedding_to_final_state(base):
    ids = [0, 20, 30, 40, 50]
    activations = base.activations(ids)
    assert activations.residual.shape == (3, 5, 32)
    assert activations.attention.shape == activations.mlp.shape == (2, 5, 32)
    weights = base.transformer.weights
    np.testing.assert_array_equal(activations.residual[0], weights.embedding[ids])
    steps = activations.attention + activations.mlp
    np.testing.assert_allclose(
        activations.residual[1:], activations.residual[:-1] + steps, rtol=1e-4, atol=1e-4
    )
    final = activations.residual[-1]
    normed = final / np.sqrt((final**2).mean(axis=1, keepdims=True) + 1e-5) * weights.final_norm
    np.testing.assert_allclose(
        normed @ weights.first_head[:384].T, base.logits(ids), rtol=1e-3, atol=1e-3
    )


def test_the_steps_carry_h(tmp_path, tokenizer_path):
    def steps(step_size):
        config = ModelConfig.from_dict({"preset": "small", "step_size": step_size, "layers": 1})
        save_model(
            tmp_path / "model",
            SavedModel(config, initial_parameters(config, 1), tokenizer_path, "pretrain", None),
        )
        return nanoeuler.load(tmp_path / "model").activations([0, 20, 30])

    whole, half = steps(1.0), steps(0.5)
    np.testing.assert_allclose(half.attention, 0.5 * whole.attention, rtol=1e-5)
    np.testing.assert_allclose(
        half.residual[1], half.residual[0] + half.attention[0] + half.mlp[0], atol=1e-6
    )


@pytest.mark.parametrize("ids", [[], [[[1]]], [1.5], [-1, 2], [384], "text"])
def test_ids_that_are_not_of_the_model_are_refused(base, ids):
    with pytest.raises(ValueError, match="ids must"):
        base.logits(ids)


def test_activations_take_one_sequence(base):
    with pytest.raises(ValueError, match=r"one sequence, \(T,\); these have shape \(1, 2\)"):
        base.activations([[1, 2]])


# ---- folders that are refused


def test_a_tokenizer_of_another_run_is_refused(tmp_path, tokenizer_path):
    config = ModelConfig.from_dict({"preset": "small", "vocab_size": 300})
    save_model(
        tmp_path / "model",
        SavedModel(config, initial_parameters(config, 1), tokenizer_path, "pretrain", None),
    )
    with pytest.raises(
        UserError,
        match="has 384 tokens where the model has 300; it is the tokenizer of another run",
    ):
        nanoeuler.load(tmp_path / "model")


def test_a_template_that_this_version_lacks_is_refused(tmp_path, base_folder):
    saved = load_model(base_folder)
    saved.template = "haiku"
    save_model(tmp_path / "model", saved)
    with pytest.raises(UserError, match="template is 'haiku'; write one of alpaca, chat, or null"):
        nanoeuler.load(tmp_path / "model")


def test_a_config_of_another_kind_is_refused(tmp_path, base_folder):
    folder = tmp_path / "model"
    save_model(folder, load_model(base_folder))
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(UserError, match="not the config of a nanoeuler model"):
        nanoeuler.load(folder)
