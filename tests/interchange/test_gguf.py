"""GGUF files: what is in them, and that llama.cpp computes what we compute.

Both packages are in no lock: install gguf, and for the judge llama-cpp-python, to run these.
"""

import numpy as np
import pytest
from exported_shapes import LLAMA3, SHAPES, YARN
from grown import add_rows

from nanoeuler.cli import main
from nanoeuler.errors import UserError
from nanoeuler.inference import api
from nanoeuler.interchange.exporting import export
from nanoeuler.interchange.gguf_file import go_template, modelfile, neighbours, write_gguf
from nanoeuler.interchange.importing import import_folder
from nanoeuler.model.files import load_model
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.model.template import TEMPLATES, chat_template
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.vocabulary import build
from tests.chat_templates import filled
from tests.go_templates import rendered

TEXT = "The harbour lies below the hill; where does Bea live?"
GEMMA = {"activation": "geglu", "post_norms": True, "embedding_scale": 32**0.5, "tied": True}
GEMMA2 = GEMMA | {"windows": [24, 0], "attention_cap": 1.5, "logit_cap": 2.5, "layers": 3}
GEMMA3 = GEMMA | {
    "windows": [24] * 5 + [0],
    "window_rope_theta": 10_000.0,
    "rope_theta": 1_000.0,
    "qk_norm": "weighted",
    "layers": 7,
}


def test_without_the_package_the_sentence_says_what_to_install(make_model, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    with pytest.raises(UserError, match="the package gguf, which is not installed; install it"):
        write_gguf(tmp_path / "out", load_model(make_model({})), "f32")
    assert not (tmp_path / "out").exists()


def test_pairs_that_are_turned_together_become_neighbours():
    rows = np.arange(12)[:, None] * np.ones(3)  # two heads of size 6
    assert neighbours(rows, 6)[:, 0].tolist() == [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]


def test_the_modelfile_has_the_template_of_the_training(make_model):
    saved = load_model(make_model({}, "chat"))
    text = modelfile(saved, build([]))
    assert text.startswith("FROM ./model.gguf\n")
    assert f'TEMPLATE """{go_template("chat", "</s>")}"""\n' in text
    assert 'PARAMETER stop "</s>"\nPARAMETER num_ctx 64\n' in text
    saved.template = None
    assert 'TEMPLATE """{{ .Prompt }}"""' in modelfile(saved, build([]))


CONVERSATIONS = (
    "user",
    "system user",
    "system system user",
    "user user",
    "user assistant user",
    "system user assistant user user assistant user",
    "developer user assistant system user",
    "system",
    "assistant user",
    "user assistant",
    "user assistant assistant user",
)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("roles", CONVERSATIONS)
def test_ollama_gets_the_text_of_the_chat_template(name, roles):
    """Also where it has joined messages of a role by an empty line, as it does before it fills in.

    It begins a reply behind each message but a response. The `</s>` in front it adds itself.
    """
    said = [
        'Be "brief".',
        "Where?\nNow?",
        "%s {{ .Role }}",
        "At the mill.",
        "And {{ $said }}?",
        "",
        "Tom",
    ]
    messages = [
        {"role": role, "content": text} for role, text in zip(roles.split(), said, strict=False)
    ]
    joined: list[dict[str, str]] = []
    for message in messages:
        if joined and joined[-1]["role"] == message["role"] != "assistant":
            text = f"{joined[-1]['content']}\n\n{message['content']}"
            joined[-1] = {"role": message["role"], "content": text}
        else:
            joined.append(message)
    more = not roles.endswith("assistant")
    expected = filled(chat_template(name), messages, more=more).removeprefix("</s>")
    for given in (messages, joined):
        of_go = [{"Role": each["role"], "Content": each["content"]} for each in given]
        assert rendered(go_template(name, "</s>"), {"Messages": of_go}) == expected


def fields_and_tensors(path):
    gguf = pytest.importorskip("gguf", reason="the extra gguf is not installed")
    reader = gguf.GGUFReader(path)
    tensors = {
        tensor.name: gguf.quants.dequantize(np.asarray(tensor.data), tensor.tensor_type).reshape(
            tuple(tensor.shape[::-1].tolist())
        )
        for tensor in reader.tensors
    }
    return {name: field.contents() for name, field in reader.fields.items()}, tensors


def test_the_file_says_what_llama_cpp_asks_for(make_model, tmp_path, tokenizer_path):
    pytest.importorskip("gguf", reason="the extra gguf is not installed")
    folder = make_model({"head_size": 16, "tied": True}, "alpaca")
    export(folder, "gguf", "f32", tmp_path / "out")
    fields, tensors = fields_and_tensors(tmp_path / "out" / "model.gguf")
    ours = Tokenizer.load(tokenizer_path)
    assert fields["general.architecture"] == "llama"
    expected = {
        "block_count": 2,
        "feed_forward_length": 75,
        "attention.head_count_kv": 2,
        "attention.key_length": 16,
        "rope.dimension_count": 16,
        "vocab_size": 300,
    }
    assert {name: fields[f"llama.{name}"] for name in expected} == expected
    kinds = fields["tokenizer.ggml.token_type"]
    assert [index for index, kind in enumerate(kinds) if kind == 3] == list(range(16))
    assert fields["tokenizer.ggml.pre"] == "gpt-2"
    assert fields["tokenizer.ggml.eos_token_id"] == ours.end_id
    assert fields["tokenizer.chat_template"] == chat_template("alpaca")
    assert "output.weight" not in tensors
    assert "blk.1.ffn_down.weight" in tensors


def test_scaled_positions_are_written_as_llama_cpp_reads_them(make_model, tmp_path, capsys):
    pytest.importorskip("gguf", reason="the extra gguf is not installed")
    found = {}
    for name in ("llama3", "linear", "yarn"):
        folder = make_model(SHAPES[f"{name} positions"])
        export(folder, "gguf", "f16", tmp_path / name)
        fields, tensors = fields_and_tensors(tmp_path / name / "model.gguf")
        start = "llama.rope.scaling."
        keys = {key.removeprefix(start): fields[key] for key in fields if key.startswith(start)}
        found[name] = keys, tensors.get("rope_freqs.weight")
    divisors = found["llama3"][1]
    config = load_model(tmp_path / "model").config  # of the last shape, yarn
    assert divisors.shape == (8,)
    assert divisors[0] < 8 == divisors[-1]
    assert found["linear"] == ({"type": "linear", "factor": 2.5}, None)
    assert config.rope_scaling.attention_factor == pytest.approx(1 + 0.1 * np.log(4))
    expected = {"type": "yarn", "factor": 4.0, "original_context_length": 40}
    assert found["yarn"] == (expected, None)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rope_scaling": LLAMA3, "qk_norm": "rms"}, "llama.cpp has llama3 without QK-norm only"),
        ({"rope_scaling": YARN | {"truncate": False}}, "llama.cpp has yarn with the usual betas"),
        ({"rope_scaling": YARN | {"beta_fast": 16.0}}, "llama.cpp has yarn with the usual betas"),
        ({"rope_scaling": YARN | {"attention_factor": 1.0}}, "llama.cpp has yarn with the usual"),
        ({"windows": [9]}, "model.windows is [9], but llama.cpp computes attention without a win"),
        ({"rope_layers": [1, 0]}, "model.rope_layers is [1, 0], but llama.cpp knows [1, 1, 1, 0]"),
        (
            GEMMA2 | {"windows": [0, 24]},
            "model.windows is [0, 24], but llama.cpp's gemma2 always ha",
        ),
        (
            GEMMA2 | {"query_scalar": 9},
            "model.query_scalar is 9, but llama.cpp's gemma2 always has",
        ),
        (
            GEMMA2 | {"logit_cap": None},
            "model.logit_cap is None, but llama.cpp's gemma2 always has o",
        ),
        (GEMMA2 | {"tied": False}, "model.tied is False, but llama.cpp's gemma2 always has a tied"),
        (GEMMA3 | {"windows": [24, 0]}, "gemma3 always has one window in all but each 6th layer"),
        (
            GEMMA3 | {"logit_cap": 30.0},
            "model.logit_cap is 30.0, but llama.cpp's gemma3 always has no",
        ),
        (GEMMA3 | {"window_rope_theta": 100.0}, "gemma3 always has 10000; use --format hf"),
        (GEMMA3 | {"rope_scaling": YARN}, "llama.cpp has linear for a Gemma only; use --format hf"),
    ],
)
def test_what_llama_cpp_computes_otherwise_is_refused(fields, words, make_model, tmp_path):
    pytest.importorskip("gguf", reason="the extra gguf is not installed")
    with pytest.raises(UserError) as caught:
        export(make_model(fields), "gguf", "f16", tmp_path / "out")
    assert words in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_the_biases_of_a_qwen2_are_written(make_model, tmp_path):
    pytest.importorskip("gguf", reason="the extra gguf is not installed")
    folder = make_model({"qkv_bias": True})
    export(folder, "gguf", "f16", tmp_path / "out")
    fields, tensors = fields_and_tensors(tmp_path / "out" / "model.gguf")
    assert fields["general.architecture"] == "qwen2"
    saved = load_model(folder)
    buffer = FlatBuffer(saved.config, saved.parameters)
    for part in "qkv":
        bias = buffer[f"model.layers.1.self_attn.{part}_proj.bias"]
        np.testing.assert_array_equal(tensors[f"blk.1.attn_{part}.bias"], bias)


def test_rows_that_no_token_has_are_called_unused(make_model, tmp_path):
    pytest.importorskip("gguf", reason="the extra gguf is not installed")
    export(make_model({}), "hf", "f32", tmp_path / "hf")
    add_rows(tmp_path / "hf", 20)
    import_folder(tmp_path / "hf", tmp_path / "back")
    export(tmp_path / "back", "gguf", "f32", tmp_path / "out")
    fields, tensors = fields_and_tensors(tmp_path / "out" / "model.gguf")
    assert len(fields["tokenizer.ggml.tokens"]) == len(tensors["token_embd.weight"]) == 320
    assert fields["tokenizer.ggml.tokens"][300:302] == ["[PAD300]", "[PAD301]"]
    assert fields["tokenizer.ggml.token_type"][298:302] == [1, 1, 5, 5]


@pytest.mark.parametrize("dtype", ["f16", "bf16", "q8_0"])
def test_smaller_types_are_near_the_weights(dtype, make_model, tmp_path):
    pytest.importorskip("gguf", reason="the extra gguf is not installed")
    folder = make_model({"qk_norm": "weighted", "step_size": 0.5})
    for name in ("f32", dtype):
        export(folder, "gguf", name, tmp_path / name)
    fields, exact = fields_and_tensors(tmp_path / "f32" / "model.gguf")
    near = fields_and_tensors(tmp_path / dtype / "model.gguf")[1]
    assert fields["general.architecture"] == "qwen3"
    for name, tensor in exact.items():
        cut = near[name][tuple(map(slice, tensor.shape))]  # ffn is filled up for blocks
        assert np.abs(cut - tensor).max() <= 0.008 * np.abs(tensor).max()


def test_rows_that_blocks_do_not_divide_are_refused(make_model, tmp_path, capsys):
    pytest.importorskip("gguf", reason="the extra gguf is not installed")
    folder = make_model({"dim": 48})
    out = tmp_path / "out"
    options = ["--format", "gguf", "--dtype", "q8_0", "--output", str(out)]
    assert main(["export", str(folder), *options]) == 1
    assert "blocks of 32 weights, which don't divide the model's dim of 48" in (
        capsys.readouterr().err
    )
    assert not out.exists()


# ---- llama.cpp


def judge(folder):
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama.cpp is not installed")
    return llama_cpp.Llama(
        str(folder / "model.gguf"),
        n_ctx=512,
        logits_all=True,
        verbose=False,
        n_threads=1,
        type_k=llama_cpp.GGML_TYPE_F32,  # its cache is in f16 otherwise
        type_v=llama_cpp.GGML_TYPE_F32,
    )


GEMMAS = {
    "gemma2": GEMMA2,
    "gemma2 with heads of 256, as released": GEMMA2 | {"head_size": 256, "heads": 2, "kv_heads": 1},
    "gemma2 whose windows are its context": GEMMA2 | {"windows": []},
    "gemma2 with linear positions": GEMMA2 | {"rope_scaling": {"type": "linear", "factor": 2.5}},
    "gemma2 of 46 layers, whose scores are divided by another root": GEMMA2
    | {"layers": 46, "head_size": 16, "query_scalar": 8},
    "gemma3": GEMMA3,
    "gemma3 with heads of 256, as released": GEMMA3 | {"head_size": 256, "heads": 2, "kv_heads": 1},
    "gemma3 with linear positions": GEMMA3 | {"rope_scaling": {"type": "linear", "factor": 8.0}},
    "gemma3, untied": GEMMA3 | {"tied": False},
    "gemma3 without windows": GEMMA3 | {"windows": [], "window_rope_theta": 0.0},
    "gemma3 of 62 layers, whose scores are divided by another root": GEMMA3
    | {"layers": 62, "head_size": 16, "query_scalar": 8},
}
JUDGED = {name: SHAPES[name] for name in SHAPES if "windows" not in SHAPES[name]} | GEMMAS


@pytest.mark.parametrize("shape", JUDGED)
def test_llama_cpp_writes_the_same_greedy_tokens(shape, make_model, tmp_path):
    pytest.importorskip("llama_cpp", reason="llama.cpp is not installed")
    folder = make_model(JUDGED[shape] | {"context": 512}, calm=shape in GEMMAS)
    export(folder, "gguf", "f32", tmp_path / "out")
    ours, theirs = api.load(folder, device="cpu"), judge(tmp_path / "out")
    ids = [ours.tokenizer.end_id, *ours.tokenizer.encode(TEXT).tolist()]
    assert theirs.tokenize(TEXT.encode(), special=False) == ids
    reply = ours.stream(TEXT, raw=True, max_tokens=200, temperature=0)
    list(reply)
    whole = ids + reply.ids
    theirs.eval(whole)
    logits = ours.logits(whole)
    # llama.cpp reads GELU from a table of float16
    limit = 1e-2 if shape.startswith(("gpt2", "gemma")) else 1e-3
    assert np.abs(theirs.scores[: len(whole)] - logits).max() <= limit
    choices = theirs.scores[len(ids) - 1 : len(whole) - 1, :].copy()
    choices[:, 1:16] = -np.inf  # `generate` chooses no reserved token
    likeliest = np.sort(logits[len(ids) - 1 : -1], axis=1)[:, -2:]
    decided = np.diff(likeliest)[:, 0] > (2 * limit if shape in GEMMAS else 0)
    assert decided.mean() > 0.7
    assert (choices.argmax(axis=1) == reply.ids)[decided].all()


@pytest.mark.parametrize("fields", [{}, GEMMA2], ids=["plain", "gemma2"])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "q8_0"])
def test_llama_cpp_reads_smaller_types(dtype, fields, make_model, tmp_path):
    """The perplexity of a text is within one percent."""
    pytest.importorskip("llama_cpp", reason="llama.cpp is not installed")
    folder = make_model(fields | {"context": 512, "ffn": 90}, calm=bool(fields))
    export(folder, "gguf", dtype, tmp_path / "out")
    ours, theirs = api.load(folder, device="cpu"), judge(tmp_path / "out")
    ids = np.array([ours.tokenizer.end_id, *ours.tokenizer.encode(TEXT * 6)])
    theirs.eval(ids.tolist())
    losses = [loss(logits, ids) for logits in (ours.logits(ids), theirs.scores[: len(ids)])]
    assert abs(losses[1] - losses[0]) <= 0.01


def loss(logits, ids):
    """Nats per token."""
    logits = logits[:-1].astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return -logprobs[np.arange(len(ids) - 1), ids[1:]].mean()


def test_llama_cpp_fills_in_the_chat_template(make_model, tmp_path):
    pytest.importorskip("llama_cpp", reason="llama.cpp is not installed")
    folder = make_model({"context": 512}, "alpaca")
    export(folder, "gguf", "f32", tmp_path / "out")
    ours, theirs = api.load(folder, device="cpu"), judge(tmp_path / "out")
    said = [{"role": "user", "content": TEXT}]
    answer = theirs.create_chat_completion(said, temperature=0, max_tokens=1)
    assert answer["usage"]["prompt_tokens"] == len(ours.writer.frame(ours.prompt(TEXT)))
