import json
import shutil
import struct
from dataclasses import replace

import numpy as np
import pytest
import tokenizers
import yaml
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from nanoeuler.errors import UserError
from nanoeuler.inference.sampling import Sampling
from nanoeuler.interchange.accepting import accept
from nanoeuler.model.checks.model_gradients import CASES, TINY
from nanoeuler.model.companions import CARD, SAMPLING
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.files import (
    SavedModel,
    keep_model,
    load_config,
    load_model,
    previous,
    save_model,
)
from nanoeuler.model.flat import FlatBuffer, initial_parameters
from nanoeuler.model.spec import tensor_table
from nanoeuler.model.template import TEMPLATES, chat_template
from nanoeuler.model.weights_file import load_parameters, named, write_tensors
from nanoeuler.storage.integrity import seal
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.vocabulary import build
from tests.chat_templates import filled


@pytest.fixture
def saved(tmp_path):
    """A model folder on disk and what was put into it."""
    tokenizer = tmp_path / "tokenizer.json"
    Tokenizer(build([])).save(tokenizer)
    config = ModelConfig.from_dict(TINY)
    model = SavedModel(
        config, initial_parameters(config, 1), tokenizer, "sft", "alpaca", {"licence": "MIT"}
    )
    save_model(tmp_path / "model", model)
    return tmp_path / "model", model


def refusal(folder):
    with pytest.raises(UserError) as caught:
        load_model(folder)
    return str(caught.value)


@pytest.mark.parametrize("case", [case for case in CASES if "adapters" not in case])
def test_a_model_survives_its_folder_bit_for_bit(tmp_path, case):
    tokenizer = tmp_path / "tokenizer.json"
    Tokenizer(build([(20, 30)])).save(tokenizer)
    config = ModelConfig.from_dict(TINY | CASES[case][0])
    parameters = initial_parameters(config, 3)
    save_model(tmp_path / "model", SavedModel(config, parameters, tokenizer, "pretrain", None))
    loaded = load_model(tmp_path / "model")
    assert loaded.config == config
    assert load_config(tmp_path / "model") == config
    assert np.array_equal(loaded.parameters, parameters)
    theirs = Tokenizer.load(loaded.tokenizer_path)
    assert theirs.fingerprint == Tokenizer.load(tokenizer).fingerprint
    assert (loaded.stage, loaded.template, loaded.info) == ("pretrain", None, {})


def test_stage_template_and_info_are_kept(saved):
    loaded = load_model(saved[0])
    assert (loaded.stage, loaded.template, loaded.info) == ("sft", "alpaca", {"licence": "MIT"})


def test_the_folder_holds_the_model_and_its_companions_and_nothing_temporary_is_left(saved):
    folder, _ = saved
    assert sorted(path.name for path in folder.iterdir()) == [
        ".nanoeuler",
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert sorted(path.name for path in folder.parent.iterdir()) == ["model", "tokenizer.json"]


def test_the_weights_are_llamas_to_any_reader(saved):
    folder, model = saved
    tensors = load_file(folder / "model.safetensors")
    c = model.config
    assert {
        name: value.shape
        for name, value in tensors.items()
        if ".0." in name or "layers" not in name
    } == {
        "model.embed_tokens.weight": (c.vocab_size, c.dim),
        "model.layers.0.input_layernorm.weight": (c.dim,),
        "model.layers.0.self_attn.q_proj.weight": (c.heads * c.head_size, c.dim),
        "model.layers.0.self_attn.k_proj.weight": (c.kv_heads * c.head_size, c.dim),
        "model.layers.0.self_attn.v_proj.weight": (c.kv_heads * c.head_size, c.dim),
        "model.layers.0.self_attn.o_proj.weight": (c.dim, c.heads * c.head_size),
        "model.layers.0.post_attention_layernorm.weight": (c.dim,),
        "model.layers.0.mlp.gate_proj.weight": (c.ffn, c.dim),
        "model.layers.0.mlp.up_proj.weight": (c.ffn, c.dim),
        "model.layers.0.mlp.down_proj.weight": (c.dim, c.ffn),
        "model.norm.weight": (c.dim,),
        "lm_head.weight": (c.vocab_size, c.dim),
        "mtp_heads.1.weight": (c.vocab_size, c.dim),
        "mtp_heads.2.weight": (c.vocab_size, c.dim),
    }
    buffer = FlatBuffer(c, model.parameters)
    # padded storage is where a strided view could be written wrong
    for name, value in tensors.items():
        assert value.dtype == np.float32
        assert np.array_equal(value, buffer[name])
    with safe_open(folder / "model.safetensors", framework="numpy") as file:
        assert set(file.keys()) == {tensor.name for tensor in tensor_table(c)}


def test_the_config_is_llamas_where_the_model_is(saved):
    folder, _ = saved
    keys = json.loads((folder / "config.json").read_text())
    assert keys["architectures"] == ["LlamaForCausalLM"]
    sizes = [keys[key] for key in ("hidden_size", "num_key_value_heads", "intermediate_size")]
    assert sizes == [8, 2, 5]


def another(folder, saved, **fields):
    config = ModelConfig.from_dict(TINY | {"vocab_size": 272} | fields)
    parameters = initial_parameters(config, 1)
    save_model(folder, SavedModel(config, parameters, saved[1].tokenizer_path, "pretrain", None))
    return FlatBuffer(config, parameters), json.loads((folder / "config.json").read_text())


def test_a_step_that_is_no_power_of_two_does_not_claim_to_be_a_llama(tmp_path, saved):
    ours, keys = another(tmp_path / "other", saved, step_size=0.7)
    assert "architectures" not in keys
    assert np.array_equal(load_model(tmp_path / "other").parameters, ours.array)


@pytest.mark.parametrize("step", [0.25, 2.0])
def test_a_step_is_in_the_weights_of_the_file_where_that_is_exact(tmp_path, saved, step):
    """So that transformers, whose steps are 1, computes the same from them."""
    folder = tmp_path / "other"
    ours, keys = another(folder, saved, step_size=step)
    assert keys["architectures"] == ["LlamaForCausalLM"]
    tensors = load_file(folder / "model.safetensors")
    for name in ("self_attn.o_proj.weight", "mlp.down_proj.weight"):
        name = f"model.layers.0.{name}"
        assert np.array_equal(tensors[name], ours.in_file(name) * np.float32(step))
    assert np.array_equal(load_model(folder).parameters, ours.array)
    read = load_parameters(folder / "model.safetensors", load_config(folder))
    assert read.tobytes() == ours.array.tobytes()
    accept(folder)
    assert np.array_equal(load_model(folder).parameters, ours.array)
    # without h in them
    write_tensors(folder / "model.safetensors", named({"": ours}), "f32")
    accept(folder)
    assert np.array_equal(load_model(folder).parameters, ours.array)


def test_a_weight_that_the_step_would_change_keeps_the_file_as_it_was(tmp_path, saved):
    config = ModelConfig.from_dict(TINY | {"step_size": 0.5})
    ours = FlatBuffer(config, initial_parameters(config, 1))
    ours["model.layers.0.mlp.down_proj.weight"][0, 0] = np.float32(1.4e-45)
    save_model(
        tmp_path / "other", SavedModel(config, ours.array, saved[1].tokenizer_path, "sft", None)
    )
    assert np.array_equal(load_model(tmp_path / "other").parameters, ours.array)
    assert "architectures" not in json.loads((tmp_path / "other" / "config.json").read_text())


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_norm_without_weights_has_ones_in_the_file(tmp_path, saved, dtype):
    """With them it is a Qwen3 to transformers; a file may lack them, as a checkpoint does."""
    folder = tmp_path / "other"
    ours, keys = another(folder, saved, qk_norm="rms")
    saved_model = load_model(folder)
    save_model(folder, saved_model, dtype)
    assert keys["architectures"] == ["Qwen3ForCausalLM"]
    tensors = load_file(folder / "model.safetensors") if dtype == "f32" else {}
    for name, tensor in tensors.items():
        if "q_norm" in name or "k_norm" in name:
            assert np.array_equal(tensor, np.ones(tensor.size, np.float32))
        else:
            assert np.array_equal(tensor, ours.in_file(name))
    assert len(tensors) in (0, len(ours.rows) + 2 * load_config(folder).layers)
    assert load_model(folder).config.qk_norm == "rms"
    kept = {name: ours.in_file(name) for name in ours.rows}
    write_tensors(folder / "model.safetensors", kept, dtype)
    accept(folder)
    assert load_model(folder).parameters.size == ours.array.size


def test_a_norm_that_is_not_of_ones_belongs_to_another_model(tmp_path, saved):
    folder = tmp_path / "other"
    another(folder, saved, qk_norm="rms")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.self_attn.q_norm.weight"][1] = 2
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"q_norm\.weight has other values; the file is of a model"):
        accept(folder)


def test_saving_again_replaces_the_folder(saved):
    folder, model = saved
    model.parameters = initial_parameters(model.config, 2)
    save_model(folder, model)
    assert np.array_equal(load_model(folder).parameters, model.parameters)


def test_a_folder_that_lost_the_outputs_of_its_rule_is_replaced(saved):
    folder, model = saved
    (folder / "notes.txt").write_text("mine")
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).unlink()  # as Snakemake does before it runs the rule again
    save_model(folder, model)
    assert np.array_equal(load_model(folder).parameters, model.parameters)
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_folder_of_an_earlier_version_is_read_and_replaced(saved):
    folder, model = saved
    for path in folder.iterdir():
        if path.name not in ("config.json", "model.safetensors", "tokenizer.json"):
            path.unlink()
    assert np.array_equal(load_model(folder).parameters, model.parameters)
    keep_model(folder)
    save_model(folder, model)
    assert (folder / "tokenizer_config.json").is_file()


def test_a_kept_model_has_all_files(saved):
    folder, _ = saved
    keep_model(folder)
    names = {path.name for path in folder.iterdir()}
    assert {path.name for path in previous(folder).iterdir()} == names


# ---- companions


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_chat_template_renders_the_records_that_we_train_on(name):
    turns = [
        {"instruction": "Say {{ hi }} & <b>", "input": "", "output": " twice\n"},
        {"instruction": "  Two\n\nparagraphs ", "input": "x\n\ny", "output": "Good."},
        {"instruction": "Bye \\n 'quoted' \"text\"", "input": "", "output": "So long."},
    ]
    messages = [
        message
        for turn in turns
        for message in (
            {"role": "user", "content": turn["instruction"], "input": turn["input"]},
            {"role": "assistant", "content": turn["output"]},
        )
    ]
    record = "</s>" + "".join(
        TEMPLATES[name](turn["instruction"], turn["input"]) + turn["output"] + "</s>"
        for turn in turns
    )
    assert filled(chat_template(name), messages, more=False) == record
    prompt = "</s>" + TEMPLATES[name]("Say {{ hi }} & <b>")
    assert filled(chat_template(name), messages[:1], more=True) == prompt
    longer = record.removesuffix("So long.</s>")
    assert filled(chat_template(name), messages[:-1], more=True) == longer


def test_the_companions_say_what_other_tools_need(saved):
    folder, _ = saved
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert (config["bos_token"], config["eos_token"]) == ("</s>", "</s>")
    assert config["chat_template"] == chat_template("alpaca")
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation["eos_token_id"] == 0
    defaults = Sampling()
    assert {name: generation[name] for name in SAMPLING} == {
        name: getattr(defaults, name) for name in SAMPLING
    }
    matter = (folder / "README.md").read_text().split("---")[1]
    assert yaml.safe_load(matter)["library_name"] == "transformers"


def test_a_licence_that_binds_the_model_is_in_its_card(saved):
    folder, model = saved
    model.info["instructions"] = {"name": "alpaca", "licence": "CC BY-NC 4.0"}
    save_model(folder, model)
    matter = (folder / "README.md").read_text().split("---")[1]
    assert yaml.safe_load(matter)["license"] == "cc-by-nc-4.0"


def test_a_licence_from_elsewhere_is_text_in_the_card(saved):
    folder, model = saved
    licence = "MIT <script>alert(1)</script>\n\n# Not a heading & <b>"
    model.info["imported"] = {"name": "<i>x", "licence": licence}
    save_model(folder, model)
    body = (folder / "README.md").read_text().split("---", 2)[2]
    assert "<" not in body.replace("`</s>`", "")
    assert (
        "- &lt;i>x model: MIT &lt;script>alert(1)&lt;/script> # Not a heading &amp; &lt;b>\n"
        in body
    )


def test_other_tools_begin_every_text_with_the_end_token(saved):
    folder, _ = saved
    ours = Tokenizer.load(folder / "tokenizer.json")
    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = "The harbour, quiet."
    assert theirs.encode(text).ids == [ours.end_id, *ours.encode(text)]
    assert theirs.encode(text, add_special_tokens=False).ids == ours.encode(text).tolist()


# ---- damage


def test_no_folder():
    assert refusal("/nowhere/model").startswith(
        "/nowhere/model: no such folder; give the model folder"
    )


def test_the_folder_of_a_stage_says_where_its_model_lies(saved, tmp_path):
    shutil.copytree(saved[0], tmp_path / "sft" / "model")
    stage = tmp_path / "sft"
    expected = f"{stage}: the folder of a stage; its model lies in {stage / 'model'}"
    assert refusal(stage) == expected


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_missing_file_is_named(saved, name):
    (saved[0] / name).unlink()
    assert f"{name}: no such file" in refusal(saved[0])


@pytest.mark.parametrize("kept", [0, 5, 100, -1])
def test_weights_that_are_cut_off(saved, kept):
    weights = saved[0] / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    assert "model.safetensors: damaged or cut off" in refusal(saved[0])


def test_weights_with_a_damaged_header(saved):
    weights = saved[0] / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[20] ^= 0xFF
    weights.write_bytes(content)
    assert "model.safetensors: damaged or cut off" in refusal(saved[0])


def test_weights_of_another_type(saved):
    weights = saved[0] / "model.safetensors"
    content = weights.read_bytes()
    header_size = struct.unpack("<Q", content[:8])[0]
    header = content[8 : 8 + header_size].replace(b'"F32"', b'"I32"')
    weights.write_bytes(content[:8] + header + content[8 + header_size :])
    assert "has type I32; a nanoeuler model is stored in float32 or bf16" in refusal(saved[0])


def test_weights_of_another_shape_or_without_a_tensor(saved):
    weights = saved[0] / "model.safetensors"
    tensors = load_file(weights)
    save_file(tensors | {"model.norm.weight": np.ones(9, np.float32)}, weights)
    assert "tensor model.norm.weight has shape [9] where the config asks for [8]" in refusal(
        saved[0]
    )
    del tensors["mtp_heads.2.weight"]
    save_file(tensors, weights)
    assert "tensor mtp_heads.2.weight is missing" in refusal(saved[0])


def test_weights_with_a_layer_more_than_the_config_says(saved):
    path = saved[0] / "config.json"
    content = json.loads(path.read_text())
    content["nanoeuler"]["model"]["layers"] -= 1
    content["nanoeuler"] = seal(content["nanoeuler"])
    path.write_text(json.dumps(content))
    layer = content["nanoeuler"]["model"]["layers"]
    assert f"tensor model.layers.{layer}.input_layernorm.weight is one too many" in refusal(
        saved[0]
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "config.json: not valid JSON"),
        ("[]", "not the config of a nanoeuler model"),
        ('{"model_type": "llama"}', "not the config of a nanoeuler model"),
        ('{"nanoeuler": {"model": 3}}', "not the config of a nanoeuler model"),
        (
            '{"nanoeuler": {"model": {"preset": "small", "wide": 1}}}',
            "config.json: model.wide is no field",
        ),
        (
            '{"nanoeuler": {"model": {"preset": "small", "layers": "4"}}}',
            "config.json: model.layers is '4'",
        ),
        (
            '{"nanoeuler": {"model": {"preset": "small"}, "template": "mine"}}',
            "config.json: template is 'mine'; write one of alpaca, chat, or null",
        ),
        (
            '{"nanoeuler": {"model": {"preset": "small"}, "template": ["chat"]}}',
            "config.json: template is ['chat']; write one of alpaca, chat, or null",
        ),
        (
            '{"nanoeuler": {"model": {"preset": "small"}, "info": [1]}}',
            "config.json: stage must be a text and info an object",
        ),
    ],
)
def test_a_bad_config_gets_a_sentence_with_its_path(saved, content, words):
    (saved[0] / "config.json").write_text(content)
    assert words in refusal(saved[0])


def test_a_model_that_calls_the_calculator_says_so_in_its_card(saved, tmp_path):
    folder, model = saved
    assert "calculate" not in (folder / CARD).read_text()
    save_model(tmp_path / "calls", replace(model, calculator=True))
    assert load_model(tmp_path / "calls").calculator
    card = " ".join((tmp_path / "calls" / CARD).read_text().split())
    assert "Other programs do not calculate" in card
