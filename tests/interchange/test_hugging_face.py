"""Hugging Face's folders out and in, without any of its packages."""

import json
import shutil
import struct
from dataclasses import replace

import numpy as np
import pytest
from exported_shapes import GPT2, SHAPES
from safetensors.numpy import load_file, save_file

from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.cli import main
from nanoeuler.errors import UserError
from nanoeuler.interchange.exporting import export
from nanoeuler.interchange.importing import import_folder
from nanoeuler.interchange.plain_model import cast
from nanoeuler.model.files import load_config, load_model
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.model.transformer import Batch, Transformer
from nanoeuler.model.weights_file import from_bf16
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.training.parents import read_parent


def logits(folder):
    saved = load_model(folder)
    model = Transformer(saved.config, saved.parameters, ReferenceBackend())
    ids = np.arange(40, dtype=np.int32)[None] * 7 % saved.config.vocab_size
    positions = np.arange(40, dtype=np.int32)[None]
    buffers = model.forward(Batch(ids, positions, np.zeros_like(ids)))
    return model.first_logits(buffers.stream.normed)


LINEAR = {"rope_type": "linear", "factor": 2.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.fixture
def exported(make_model, tmp_path):
    """An export in float32 of a tuned model."""
    export(make_model({}, "chat"), "hf", "f32", tmp_path / "hf")
    return tmp_path / "hf"


@pytest.mark.parametrize("shape", SHAPES)
def test_an_export_that_is_imported_computes_the_same(shape, make_model, tmp_path):
    folder = make_model(SHAPES[shape], "alpaca")
    export(folder, "hf", "f32", tmp_path / "hf")
    import_folder(tmp_path / "hf", tmp_path / "back")
    before, after = load_model(folder), load_model(tmp_path / "back")
    assert (after.config.mtp_heads, after.config.step_size) == (1, 1.0)
    assert after.template == "alpaca"
    ours = FlatBuffer(before.config, before.parameters)
    theirs = FlatBuffer(after.config, after.parameters)
    if before.config.step_size == 1:
        for name in theirs.rows.keys() & ours.rows.keys():
            assert np.array_equal(ours[name], theirs[name])
    assert np.allclose(logits(folder), logits(tmp_path / "back"), atol=1e-4)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_a_second_export_has_the_same_bytes(dtype, exported, tmp_path):
    import_folder(exported, tmp_path / "first")
    export(tmp_path / "first", "hf", dtype, tmp_path / "second")
    import_folder(tmp_path / "second", tmp_path / "third")
    export(tmp_path / "third", "hf", dtype, tmp_path / "fourth")
    for name in ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "second" / name).read_bytes() == (
            tmp_path / "fourth" / name
        ).read_bytes()


@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_plain_rotary_positions_may_be_named(exported, change_config, tmp_path, key):
    change_config(exported, rope_scaling={key: "default"})
    import_folder(exported, tmp_path / "back")


def test_an_imported_model_is_a_parent(exported, tmp_path, tokenizer_path):
    card = exported / "README.md"
    card.write_text(card.read_text().replace("---\n", "---\nlicense: cc-by-nc-4.0\n", 1))
    import_folder(exported, tmp_path / "back")
    config = replace(load_config(tmp_path / "back"), context=32)
    parent = read_parent(tmp_path / "back", config, Tokenizer.load(tokenizer_path), tokenizer_path)
    assert parent.template == "chat"
    assert parent.inherited["imported"]["licence"] == "cc-by-nc-4.0"
    assert 'license: "cc-by-nc-4.0"' in (tmp_path / "back" / "README.md").read_text()
    assert np.array_equal(parent.weights, load_model(tmp_path / "back").parameters)


def set_template(folder, text):
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    settings.pop("chat_template")
    path.write_text(json.dumps(settings | ({} if text is None else {"chat_template": text})))


@pytest.mark.parametrize("text", [None, "{{ messages }}", "\ud800", 3])
def test_a_folder_that_does_not_tell_its_template_can_be_given_it(exported, tmp_path, capsys, text):
    set_template(exported, text)
    assert main(["import", str(exported), "--output", str(tmp_path / "base")]) == 0
    assert load_model(tmp_path / "base").template is None
    assert "import it with --template alpaca or chat" in capsys.readouterr().err
    given = ["--output", str(tmp_path / "back"), "--template", "alpaca"]
    assert main(["import", str(exported), *given]) == 0
    assert load_model(tmp_path / "back").template == "alpaca"


def test_bf16_rounds_to_the_nearest_and_ties_to_even():
    values = np.array([1, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -3.14159], np.float32)
    halves = from_bf16(cast("x", values, "bf16"))
    assert halves.tolist() == [1, 1, 1 + 2**-6, 1 + 2**-7, -3.140625]


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_a_value_that_the_type_does_not_hold_is_refused(dtype):
    values = np.array([3.4e38 if dtype != "f32" else np.inf], np.float32)
    with pytest.raises(UserError, match=f"tensor x holds a value that is not finite in {dtype}"):
        cast("x", values, dtype)


def test_shards_are_read_as_one(exported, tmp_path):
    tensors = load_file(exported / "model.safetensors")
    (exported / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {f"model-{part + 1:05}-of-00003.safetensors": names[part::3] for part in range(3)}
    for shard, part in shards.items():
        save_file({name: tensors[name] for name in part}, exported / shard)
    weight_map = {name: shard for shard, part in shards.items() for name in part}
    index = {"metadata": {}, "weight_map": weight_map}
    (exported / "model.safetensors.index.json").write_text(json.dumps(index))
    import_folder(exported, tmp_path / "back")
    after = load_model(tmp_path / "back")
    theirs = FlatBuffer(after.config, after.parameters)
    assert all(np.array_equal(theirs[name], tensor) for name, tensor in tensors.items())
    save_file({names[0]: tensors[names[0]] + 1}, exported / "more.safetensors")
    weight_map["more"] = "more.safetensors"
    (exported / "model.safetensors.index.json").write_text(json.dumps(index))
    assert f"more.safetensors: tensor {names[0]} is there twice" in refusal(exported)
    (exported / "model-00002-of-00003.safetensors").unlink()
    assert "1 file of 4 with weights missing, such as model-00002-of-00003" in refusal(exported)


MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}


QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
SMOLLM3 = {"architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3"}
SLIDES = {"use_sliding_window": True, "sliding_window": 100}
KINDS = ["full_attention", "sliding_attention"]


@pytest.mark.parametrize(
    ("keys", "windows", "rope_layers"),
    [
        (MISTRAL, (4096,), ()),  # what transformers takes where the key is left out
        (MISTRAL | {"sliding_window": None}, (), ()),
        (MISTRAL | {"sliding_window": 100}, (100,), ()),
        (SLIDES, (), ()),  # a Llama has none
        (SMOLLM3 | {"sliding_window": 100}, (), (1, 0)),
        (SMOLLM3 | SLIDES, (0, 100), (1, 0)),
        (SMOLLM3 | SLIDES | {"layer_types": KINDS[::-1]}, (100, 0), (1, 0)),
        (SMOLLM3 | {"no_rope_layers": [0, 1]}, (), (0, 1)),
        (SMOLLM3 | {"no_rope_layers": [1, 1]}, (), ()),
    ],
)
def test_which_layers_have_windows_and_rotary_positions(
    exported, change_config, tmp_path, capsys, keys, windows, rope_layers
):
    path = exported / "config.json"
    kept = json.loads(path.read_text())["num_key_value_heads"]
    interval = {"no_rope_layer_interval": 2} if "SmolLM3" in str(keys) else {}
    change_config(
        exported, max_position_embeddings=8192, num_key_value_heads=kept, **interval | keys
    )
    assert main(["import", str(exported), "--output", str(tmp_path / "back")]) == 0
    config = load_config(tmp_path / "back")
    assert (config.context, config.windows, config.rope_layers) == (8192, windows, rope_layers)
    said = f"of 2 layers see {max(windows):,} tokens" if windows else "layers see"
    assert (said in capsys.readouterr().err) == bool(windows)


def test_the_first_of_several_end_tokens_ends_documents(exported, change_config, tmp_path, capsys):
    change_config(exported, eos_token_id=[0, 5])
    assert main(["import", str(exported), "--output", str(tmp_path / "back")]) == 0
    assert "end  0 ends documents here; of eos_token_id, [5] do not" in capsys.readouterr().err
    assert Tokenizer.load(tmp_path / "back" / "tokenizer.json").end_id == 0
    change_config(exported, eos_token_id=[5, 0])
    import_folder(exported, tmp_path / "other")
    assert Tokenizer.load(tmp_path / "other" / "tokenizer.json").end_id == 5


@pytest.mark.parametrize(
    ("keys", "windows"),
    [
        ({"sliding_window": 9}, ()),
        ({"use_sliding_window": True, "max_window_layers": 1}, (0, 4096)),
        (SLIDES, ()),  # from layer 28 on
        (SLIDES | {"max_window_layers": 0}, (100,)),
        (SLIDES | {"max_window_layers": 1}, (0, 100)),
        (SLIDES | {"layer_types": KINDS[::-1]}, (100, 0)),
    ],
)
def test_which_layers_of_a_qwen2_have_windows(make_model, change_config, tmp_path, keys, windows):
    export(make_model({"qkv_bias": True, "context": 8192}), "hf", "f32", tmp_path / "hf")
    change_config(tmp_path / "hf", **keys)
    import_folder(tmp_path / "hf", tmp_path / "back")
    config = load_config(tmp_path / "back")
    assert (config.qkv_bias, config.windows) == (True, windows)


GEMMA3 = {
    "activation": "geglu",
    "post_norms": True,
    "embedding_scale": 32**0.5,
    "qk_norm": "weighted",
    "windows": [9, 0],
    "window_rope_theta": 100.0,
}


@pytest.mark.parametrize(
    ("keys", "fields"),
    [
        ({}, {"windows": (9, 0), "window_rope_theta": 100.0, "query_scalar": None}),
        ({"sliding_window": 7}, {"windows": (7, 0)}),
        ({"query_pre_attn_scalar": 144}, {"query_scalar": 144}),
        (
            {"final_logit_softcapping": 30.0, "attn_logit_softcapping": None},
            {"logit_cap": 30.0, "attention_cap": None},
        ),
        ({"layer_types": None, "sliding_window_pattern": 3}, {"windows": (9,)}),
        (
            {
                "rope_local_base_freq": None,
                "rope_parameters": {
                    "full_attention": {"rope_type": "default", "rope_theta": 50.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 60.0},
                },
            },
            {"rope_theta": 50.0, "window_rope_theta": 60.0},
        ),
    ],
)
def test_the_keys_of_a_gemma3(make_model, change_config, tmp_path, keys, fields):
    export(make_model(GEMMA3), "hf", "f32", tmp_path / "hf")
    change_config(tmp_path / "hf", **keys)
    import_folder(tmp_path / "hf", tmp_path / "back")
    config = load_config(tmp_path / "back")
    assert {key: getattr(config, key) for key in fields} == fields


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0: it must be above 0"),
        ({"final_logit_softcapping": "30"}, "final_logit_softcapping is '30': it must be a number"),
        ({"hidden_activation": "gelu"}, "hidden_activation is 'gelu', which a nanoeuler model doe"),
        ({"sliding_window_pattern": 0}, "sliding_window_pattern is 0, which is no number of layer"),
        (
            {"rope_parameters": {"full_attention": {}, "sliding_attention": {"rope_type": "yarn"}}},
            "rope_parameters.sliding_attention is {'rope_type': 'yarn'}, but positions in windows",
        ),
    ],
)
def test_another_gemma3_is_refused_by_name(make_model, change_config, tmp_path, keys, words):
    export(make_model(GEMMA3), "hf", "f32", tmp_path / "hf")
    change_config(tmp_path / "hf", **keys)
    assert words in refusal(tmp_path / "hf")


GEMMA2 = {
    "activation": "geglu",
    "post_norms": True,
    "embedding_scale": 32**0.5,
    "windows": [9, 0],
    "attention_cap": 50.0,
    "logit_cap": 30.0,
    "query_scalar": 5,
}


@pytest.mark.parametrize(
    ("keys", "fields"),
    [
        ({}, GEMMA2 | {"windows": (9, 0), "window_rope_theta": 0.0, "qk_norm": "none"}),
        ({"layer_types": None, "sliding_window_pattern": 3}, {"windows": (9, 0)}),
        ({"layer_types": ["full_attention"] * 2}, {"windows": ()}),
        ({"attn_logit_softcapping": None}, {"attention_cap": None, "logit_cap": 30.0}),
        ({"query_pre_attn_scalar": 8}, {"query_scalar": None}),
    ],
)
def test_the_keys_of_a_gemma2(make_model, change_config, tmp_path, keys, fields):
    export(make_model(GEMMA2), "hf", "f32", tmp_path / "hf")
    change_config(tmp_path / "hf", **keys)
    import_folder(tmp_path / "hf", tmp_path / "back")
    config = load_config(tmp_path / "back")
    assert {key: getattr(config, key) for key in fields} == fields


def test_a_gemma2_that_does_not_name_its_caps_has_them(make_model, tmp_path):
    export(make_model(GEMMA2), "hf", "f32", tmp_path / "hf")
    path = tmp_path / "hf" / "config.json"
    keys = json.loads(path.read_text())
    del keys["attn_logit_softcapping"], keys["final_logit_softcapping"], keys["sliding_window"]
    path.write_text(json.dumps(keys | {"max_position_embeddings": 9000}))
    import_folder(tmp_path / "hf", tmp_path / "back")
    config = load_config(tmp_path / "back")
    assert (config.attention_cap, config.logit_cap, config.windows) == (50.0, 30.0, (4096, 0))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"attn_logit_softcapping": 0}, "attn_logit_softcapping is 0: it must be above 0"),
        ({"attn_logit_softcapping": -50.0}, "attn_logit_softcapping is -50.0: it must be above 0"),
        ({"attn_logit_softcapping": float("nan")}, "attn_logit_softcapping is nan: it must be a n"),
        ({"final_logit_softcapping": "30"}, "final_logit_softcapping is '30': it must be a number"),
        ({"query_pre_attn_scalar": [256]}, "query_pre_attn_scalar is [256]: it must be a number"),
        ({"attention_bias": True}, "attention_bias is True, which a nanoeuler model does not have"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention is True, which a nan"),
        (
            {"layer_types": ["chunked_attention"] * 2},
            "layer_types has 'chunked_attention', which a",
        ),
    ],
)
def test_another_gemma2_is_refused_by_name(make_model, change_config, tmp_path, keys, words):
    export(make_model(GEMMA2), "hf", "f32", tmp_path / "hf")
    change_config(tmp_path / "hf", **keys)
    assert words in refusal(tmp_path / "hf")


@pytest.mark.parametrize(
    "fields",
    [
        {"attention_cap": 50.0},
        {"query_scalar": 5.0},
        GEMMA2 | {"query_scalar": 5.5},
        GEMMA2 | {"window_rope_theta": 100.0},
        GEMMA2 | {"embedding_scale": 1.0},
    ],
)
def test_caps_that_no_class_has_are_refused(make_model, tmp_path, fields):
    with pytest.raises(UserError, match="no other program computes a model of this form"):
        export(make_model(fields), "hf", "f32", tmp_path / "out")


def test_fields_that_no_class_has_together_are_refused(make_model, tmp_path):
    folder = make_model({"qkv_bias": True, "qk_norm": "rms"})
    with pytest.raises(UserError, match="no other program computes a model of this form"):
        export(folder, "hf", "f32", tmp_path / "out")
    assert "architectures" not in json.loads((folder / "config.json").read_text())


def test_what_a_key_means_that_is_left_out(exported, change_config, tmp_path):
    """8 key heads of a Mistral, 4,096 tokens, as many key heads as query heads of a Llama."""
    path = exported / "config.json"
    keys = json.loads(path.read_text()) | MISTRAL
    del keys["num_key_value_heads"]
    path.write_text(json.dumps(keys))
    assert "model.kv_heads is 8, which does not divide model.heads = 4" in refusal(exported)
    change_config(exported, architectures=["LlamaForCausalLM"])
    assert "has shape [16, 32] where config.json asks for [32, 32]" in refusal(exported)


# ---- refusals


def refusal(folder):
    """The sentence of an import, which leaves nothing."""
    output = folder.parent / "refused"
    with pytest.raises(UserError) as caught:
        import_folder(folder, output)
    assert not output.exists()
    return str(caught.value)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"architectures": ["GPTNeoForCausalLM"]}, "its architecture is 'GPTNeoForCausalLM'; imp"),
        ({"architectures": None}, "its architecture is None"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "config.json: rope_scaling lacks factor, which"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
            "config.json: rope_parameters.rope_type is 'dynamic', which a nanoeuler model does not "
            "have, because its frequencies change with the length",
        ),
        ({"rope_scaling": {"type": "longrope"}}, "rope_scaling.type is 'longrope', which a nanoeu"),
        ({"rope_scaling": LINEAR | {"factor": 1e30}}, "config.json: rope_scaling.factor is 1e+30"),
        ({"rope_scaling": LINEAR | {"low": 1}}, "rope_scaling.low is no key of the type linear"),
        (
            {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 0}},
            "rope_scaling.original_max_position_embeddings is 0: it must be a whole number from 1",
        ),
        (
            {"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}},
            "rope_scaling.low_freq_factor is 1.0: it must be below high_freq_factor, which is 1.0",
        ),
        ({"rope_scaling": [2.0]}, "rope_scaling is [2.0]: it must be an object"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_parameters has 'partial_ro"),
        ({"attention_bias": True}, "attention_bias is True, which a nanoeuler model does not have"),
        ({"mlp_bias": True}, "mlp_bias is True"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        (MISTRAL | {"sliding_window": "all"}, "sliding_window is 'all', which is no number of tok"),
        (
            SMOLLM3 | {"no_rope_layers": [1]},
            "no_rope_layers is [1]: it must be a list for 2 layers",
        ),
        (
            SMOLLM3 | {"no_rope_layers": [1, 2]},
            "no_rope_layers has 2, which a nanoeuler model does",
        ),
        (
            SMOLLM3 | {"no_rope_layer_interval": 0},
            "no_rope_layer_interval is 0, which is no number",
        ),
        (QWEN2 | {"max_window_layers": "all"}, "max_window_layers is 'all', which is no number of"),
        (QWEN2 | SLIDES | {"layer_types": ["chunked_attention"] * 2}, "has 'chunked_attention'"),
        (QWEN2, "lack 6 tensors, such as model.layers.0.self_attn.k_proj.bias"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is {'bits': 4}"),
        ({"hidden_size": "32"}, "lacks hidden_size, or it is no whole number"),
        ({"num_attention_heads": 5}, "config.json: model."),
        ({"hidden_size": 64}, "has shape [300, 32] where config.json asks for [300, 64]"),
        ({"num_hidden_layers": 10**400}, "it must be at least 1 and at most 1024"),
        ({"hidden_size": 0}, "hidden_size is 0: it must be at least 1 and at most 65536"),
        ({"num_hidden_layers": 3}, "its weights lack 9 tensors, such as model.layers.2."),
        ({"num_hidden_layers": 1}, "has a tensor 'model.layers.1."),
        ({"vocab_size": 320}, "has shape [300, 32] where config.json asks for [320, 32]"),
        ({"vocab_size": 299}, "has 300 ids where the model's embedding has 299 rows"),
        ({"bos_token_id": 20}, "bos_token_id is 20, which is no special token"),
        ({"nanoeuler": {}}, "a nanoeuler model already"),
    ],
)
def test_what_we_cannot_do_is_refused_by_name(exported, change_config, keys, words):
    change_config(exported, **keys)
    assert words in refusal(exported)


def test_a_head_that_is_tied_and_not_the_embedding_is_refused(make_model, tmp_path):
    export(make_model({"tied": True}), "hf", "f32", tmp_path / "hf")
    weights = tmp_path / "hf/model.safetensors"
    tensors = load_file(weights)
    head = tensors["model.embed_tokens.weight"].copy()
    save_file(tensors | {"lm_head.weight": head}, weights)
    import_folder(tmp_path / "hf", tmp_path / "again")
    head[0, 0] += 1
    save_file(tensors | {"lm_head.weight": head}, weights)
    assert "lm_head.weight is not the embedding, where config.json" in refusal(tmp_path / "hf")


def test_damaged_and_foreign_files_are_refused(exported, tmp_path):
    weights = exported / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-7])
    assert "model.safetensors: damaged or cut off" in refusal(exported)
    (size,) = struct.unpack("<Q", content[:8])
    weights.write_bytes(content[: 8 + size] + b"\xff" * (len(content) - 8 - size))
    assert "holds values that are not finite" in refusal(exported)
    weights.unlink()
    assert "there is no model.safetensors; save the model" in refusal(exported)
    (exported / "pytorch_model.bin").touch()
    assert "its weights are in another format" in refusal(exported)
    (exported / "config.json").write_text("[]")
    assert "not the config of a model" in refusal(exported)


@pytest.mark.parametrize("kind", ["I8", "F64", "F8_E4M3", "F4", "nf4", "", 3])
def test_a_type_that_we_do_not_read_is_refused_by_name(exported, kind):
    """Those that the safetensors package knows, and those that it does not."""
    weights = exported / "model.safetensors"
    content = weights.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    name = "model.layers.1.mlp.up_proj.weight"
    header[name]["dtype"] = kind
    text = json.dumps(header).encode()
    weights.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size :])
    said = f"tensor {name!r} has type {kind!r}; import reads F32, F16, BF16, so give a model"
    assert refusal(exported).startswith(f"{weights}: {said}")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x10",
        b"\xff" * 8,
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 4) + b"\xff\xfe{}",
        struct.pack("<Q", 40_000) + b"[" * 40_000,
        struct.pack("<Q", 13) + b'{"a": "dtype"}',
        struct.pack("<Q", 16) + b'{"a": {"b": {}}}',
    ],
)
def test_a_header_that_is_none_is_damage(exported, content):
    (exported / "model.safetensors").write_bytes(content)
    assert "model.safetensors: damaged or cut off" in refusal(exported)


def test_a_tokenizer_of_another_kind_is_refused(exported):
    path = exported / "tokenizer.json"
    content = json.loads(path.read_text())
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": []}
    path.write_text(json.dumps(content))
    assert "import reads byte-level BPE, and" in refusal(exported)
    path.unlink()
    assert "tokenizer.json: no such file" in refusal(exported)


def test_what_is_no_folder_of_a_model_is_refused(tmp_path):
    assert "nowhere: no such folder" in refusal(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "empty: holds no config.json" in refusal(tmp_path / "empty")
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF\x03\x00\x00\x00")
    assert "model.gguf: a GGUF file; give Hugging Face's folder" in refusal(file)
    shutil.move(file, tmp_path / "empty" / "model.gguf")
    assert "a folder of GGUF files" in refusal(tmp_path / "empty")


def test_the_commands_refuse_in_one_sentence(make_model, tmp_path, capsys):
    model, file = make_model({}), tmp_path / "file"
    file.write_text("mine")

    def said(*arguments):
        assert main([*map(str, arguments)]) in (1, 2)
        return capsys.readouterr().err

    def refused(*arguments):
        return said("export", model, *arguments)

    hf = ("--format", "hf", "--output")
    assert "file: a file; give the name of a new folder" in refused(*hf, file)
    assert file.read_text() == "mine"
    assert "model: holds files already" in refused(*hf, model)
    assert "--dtype is q8_0, which the format hf does not have" in refused(
        *hf, tmp_path / "x", "--dtype", "q8_0"
    )
    assert "--dtype is 'int4'" in refused(*hf, tmp_path / "x", "--dtype", "int4")
    assert "no such folder" in said("export", tmp_path / "nowhere", *hf, tmp_path / "x")
    assert "no such folder" in said("import", tmp_path / "nowhere", "--output", tmp_path / "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "model"]


def test_gpt2_is_imported_as_it_was_released(make_model, tmp_path):
    """Names without their prefix, the causal masks beside them, and no width of the MLP."""
    folder, released = make_model(GPT2 | {"ffn": 128}), tmp_path / "hf"
    export(folder, "hf", "f32", released)
    tensors = load_file(released / "model.safetensors")
    assert tensors["transformer.h.0.mlp.c_fc.weight"].shape == (32, 128)  # (in, out)
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    for layer in range(2):
        tensors[f"h.{layer}.attn.bias"] = np.ones((1, 1, 64, 64), (np.float32, bool)[layer])
        tensors[f"h.{layer}.attn.masked_bias"] = np.float32(-1e4).reshape(1)
    save_file(tensors, released / "model.safetensors")
    config = json.loads((released / "config.json").read_text())
    del config["n_inner"], config["tie_word_embeddings"], config["n_ctx"]
    (released / "config.json").write_text(json.dumps(config))
    import_folder(released, tmp_path / "back")
    before, after = load_model(folder), load_model(tmp_path / "back")
    assert after.config == before.config
    assert np.array_equal(after.parameters, before.parameters)


def test_gpt2s_vocabulary_may_be_in_its_own_two_files(make_model, tmp_path):
    folder, released = make_model(GPT2), tmp_path / "hf"
    export(folder, "hf", "f32", released)
    content = json.loads((released / "tokenizer.json").read_text())
    (released / "tokenizer.json").unlink()
    vocab = content["model"]["vocab"]
    ids = {name.replace("</s>", "<|endoftext|>"): index for name, index in vocab.items()}
    (released / "vocab.json").write_text(json.dumps(ids))
    with pytest.raises(UserError, match="no such file; import reads a tokenizer in this form"):
        import_folder(released, tmp_path / "back")
    merges = ["#version: 0.2", *(" ".join(each) for each in map(pair, content["model"]["merges"]))]
    (released / "merges.txt").write_text("\n".join(merges) + "\n")
    import_folder(released, tmp_path / "back")
    tokenizer = Tokenizer.load(tmp_path / "back" / "tokenizer.json")
    ours = Tokenizer.load(folder / "tokenizer.json")
    text = "The harbour lies below the hill."
    assert tokenizer.special_ids == {"<|endoftext|>": 0}
    assert np.array_equal(tokenizer.encode(text), ours.encode(text))


def pair(merge):
    return merge.split(" ") if isinstance(merge, str) else merge


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"activation_function": "gelu"}, "activation_function is 'gelu', which a nanoeuler model"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        ({"n_head": None}, "lacks n_head, or it is no whole number"),
        ({"n_positions": 32}, "has shape [64, 32] where config.json asks for [32, 32]"),
    ],
)
def test_another_gpt2_is_refused_by_name(make_model, change_config, tmp_path, keys, words):
    export(make_model(GPT2), "hf", "f32", tmp_path / "hf")
    change_config(tmp_path / "hf", **keys)
    assert words in refusal(tmp_path / "hf")


def test_learned_positions_keep_their_number(make_model):
    folder = make_model(GPT2)
    config = load_config(folder)
    tokenizer = Tokenizer.load(folder / "tokenizer.json"), folder / "tokenizer.json"
    assert read_parent(folder, config, *tokenizer).weights.size
    with pytest.raises(UserError, match="context 64 there, 32 here"):
        read_parent(folder, replace(config, context=32), *tokenizer)
