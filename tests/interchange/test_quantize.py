"""`nanoeuler quantize`, and that a GGUF file has the numbers that the model has in memory."""

import re

import numpy as np
import pytest
from exported_shapes import LLAMA3
from test_gguf import fields_and_tensors

from nanoeuler.interchange.gguf_file import neighbours
from nanoeuler.model.files import load_model, quantized
from nanoeuler.model.flat import FlatBuffer

SHAPES = {
    "llama": {"head_size": 16, "step_size": 0.7},
    "tied qwen3": {"qk_norm": "weighted", "tied": True},
    "qwen3 without weights": {"qk_norm": "rms"},
    "llama3 positions": {"rope_scaling": LLAMA3, "head_size": 16, "mtp_heads": 1},
    "qwen2": {"qkv_bias": True, "mtp_heads": 1},
    "gpt2": {"family": "gpt2", "kv_heads": 4, "mtp_heads": 1, "tied": True, "ffn": 96},
}
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "lm_head.weight": "output.weight",
    "model.layers.1.self_attn.q_proj.weight": "blk.1.attn_q.weight",
    "model.layers.1.self_attn.q_proj.bias": "blk.1.attn_q.bias",
    "model.layers.1.self_attn.o_proj.weight": "blk.1.attn_output.weight",
    "model.layers.0.mlp.gate_proj.weight": "blk.0.ffn_gate.weight",
    "model.layers.0.mlp.down_proj.weight": "blk.0.ffn_down.weight",
    "transformer.wte.weight": "token_embd.weight",
    "transformer.h.1.attn.c_attn.weight": "blk.1.attn_qkv.weight",
    "transformer.h.0.mlp.c_proj.weight": "blk.0.ffn_down.weight",
    "transformer.h.0.mlp.c_proj.bias": "blk.0.ffn_down.bias",
}


@pytest.mark.parametrize(("dtype", "scheme"), [("q8_0", "int8"), ("q4_0", "int4")])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_gguf_file_has_the_numbers_of_the_model(
    shape, dtype, scheme, make_model, tmp_path, command
):
    """Read by the dequantizer of the package gguf; exported from floats, and from the folder."""
    pytest.importorskip("gguf", reason="the extra gguf is not installed")
    folder, small = make_model(SHAPES[shape]), tmp_path / "small"
    assert command("quantize", folder, small, "--to", scheme)[0] == 0
    found = []
    for given, out in ((folder, tmp_path / "a"), (small, tmp_path / "b")):
        options = ["--format", "gguf", "--dtype", dtype, "--output", out]
        assert command("export", given, *options)[0] == 0
        found.append(fields_and_tensors(out / "model.gguf")[1])
    weights = quantized(load_model(folder), scheme).quantized
    expected = FlatBuffer(weights.config, weights.dense())
    known = {theirs: ours for ours, theirs in NAMES.items() if ours in expected.rows}
    assert len(known) >= 4
    for tensors in found:
        for theirs, ours in known.items():
            numbers = expected[ours]
            if theirs.endswith("attn_q.weight") and shape.startswith("llama"):
                numbers = neighbours(numbers, weights.config.head_size)
            cut = tuple(map(slice, numbers.shape))  # ffn is filled up for blocks
            assert np.array_equal(tensors[theirs][cut], numbers), theirs
            rest = tensors[theirs].copy()
            rest[cut] = 0
            assert not rest.any()


def test_bits_per_byte_are_printed(make_model, tmp_path, command):
    folder = make_model({})
    text = tmp_path / "text.txt"
    text.write_text("The harbour lies below the hill; where does Bea live?\n" * 40)
    options = ["--to", "int8", "--text", text]
    status, _, said = command("quantize", folder, tmp_path / "small", *options)
    assert status == 0
    before, after, change = map(
        float, re.search(r"([\d.]+) before, ([\d.]+) in int8 \(([+-][\d.]+)%\)", said).groups()
    )
    assert before == pytest.approx(after, rel=0.01)
    assert change == pytest.approx(100 * (after / before - 1), abs=0.01)
    assert "bits_per_weight=" in said


def test_the_other_formats_have_the_same_numbers_as_floats(make_model, tmp_path, command):
    folder, small = make_model({}), tmp_path / "small"
    assert command("quantize", folder, small, "--to", "int4")[0] == 0
    out = tmp_path / "floats"
    assert command("export", small, "--format", "nanoeuler", "--output", out)[0] == 0
    assert np.array_equal(load_model(out).parameters, load_model(small).parameters)
    assert load_model(out).quantized is None


def test_what_cannot_be_had_is_one_sentence(make_model, tmp_path, command):
    folder, small = make_model({}), tmp_path / "small"
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    for words, sentence in (
        (["--to", "int4", "--text", tmp_path / "none.txt"], "none.txt: No such file"),
        (["--to", "int4", "--text", tmp_path / "empty.txt"], "empty.txt: is empty; give a text"),
        (["--to", "int4", "--text", tmp_path / "latin.txt"], "latin.txt: is not UTF-8"),
        (["--to", "int2"], "--to is 'int2'; it must be one of int8, int4"),
    ):
        status, _, said = command("quantize", folder, small, *words)
        assert status in (1, 2)
        assert sentence in said
        assert not small.exists()
    assert command("quantize", folder, small, "--to", "int8")[0] == 0
    status, _, said = command("quantize", small, tmp_path / "again", "--to", "int4")
    assert (status, "its weights are int8 already" in said) == (1, True)
    status, _, said = command("quantize", folder, small, "--to", "int4")
    assert (status, "holds files already" in said) == (1, True)
