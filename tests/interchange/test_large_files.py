"""Folders of strangers with files as large as can be: nothing is read that no such file has."""

import json
import struct
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

from nanoeuler.errors import UserError
from nanoeuler.inference import api
from nanoeuler.interchange.exporting import export
from nanoeuler.interchange.importing import find_licence, import_folder
from nanoeuler.model.files import load_config, load_model
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.model.weights_file import from_bf16, load_parameters, to_bf16

TERABYTE = 10**12


@pytest.fixture
def exported(make_model, tmp_path):
    export(make_model({}, "chat"), "hf", "f32", tmp_path / "hf")
    return tmp_path / "hf"


def refusal(folder):
    with pytest.raises(UserError) as caught:
        import_folder(folder, folder.parent / "refused")
    return str(caught.value)


def grow(path, size=TERABYTE):
    """Make a file as long as that; what is added takes no room on the disk."""
    with open(path, "ab") as file:
        file.truncate(size)


@pytest.mark.parametrize("size", [TERABYTE - 8, 90_000_000, 2**63])
def test_a_header_as_large_as_its_file_is_damage(exported, make_model, size):
    for folder in (exported, make_model({})):
        path = folder / "model.safetensors"
        path.write_bytes(struct.pack("<Q", size) + b'{"')
        grow(path)
    assert f"damaged or cut off (its header has {size:,} bytes)" in refusal(exported)
    with pytest.raises(UserError, match=r"damaged or cut off \(its header has"):
        load_model(folder)


def test_a_tensor_of_another_size_is_refused_before_it_is_read(exported):
    entry = {"dtype": "F32", "shape": [TERABYTE // 4], "data_offsets": [0, TERABYTE]}
    header = json.dumps({"lm_head.weight": entry}).encode()
    path = exported / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    grow(path, 8 + len(header) + TERABYTE)
    assert "tensor lm_head.weight has shape [250000000000] where config.json asks" in (
        refusal(exported)
    )


def test_a_config_of_a_model_that_no_memory_holds_is_refused_by_its_files(exported, change_config):
    change_config(exported, hidden_size=65536, intermediate_size=2**20, num_hidden_layers=1024)
    change_config(exported, num_attention_heads=1024, num_key_value_heads=1024, head_dim=64)
    assert "parameters, and its weights take 1" in refusal(exported)


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
)
def test_a_text_without_an_end_is_one_sentence(exported, name):
    grow(exported / name)
    most = {"tokenizer.json": 100, "chat_template.jinja": 1}.get(name, 10)
    assert f"{name}: more than {most} MB, too much for such a file" in refusal(exported)


def test_of_a_card_without_an_end_the_front_matter_is_read(exported):
    path = exported / "README.md"
    path.write_text("---\nlicense: mit\n---\n# A model\n")
    grow(path)
    assert find_licence(exported) == "mit"


def test_positions_take_memory_where_they_are_used(exported, change_config, tmp_path):
    """16,777,216 of them took 6.3 GB for three tokens, of heads of 64."""
    change_config(exported, max_position_embeddings=2**24)
    import_folder(exported, tmp_path / "long")
    program = (
        "import psutil, nanoeuler\n"
        f"model = nanoeuler.load({str(tmp_path / 'long')!r}, device='cpu')\n"
        "model.generate('The hill', raw=True, max_tokens=3)\n"
        "print(psutil.Process().memory_info().rss)"  # the peak counts who started the process, too
    )
    used = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert int(used.stdout) < 700e6, used.stderr


def test_a_long_text_has_the_positions_of_a_short_context(exported, change_config, tmp_path):
    """Behind the first table, which has 4,096."""
    written = []
    for name, context in (("short", 64), ("long", 2**20)):
        change_config(exported, max_position_embeddings=context)
        import_folder(exported, tmp_path / name)
        ids = np.arange(4200) * 7 % 300
        written.append(api.load(tmp_path / name, "cpu").logits(ids)[-3:])
    assert np.array_equal(*written)


def test_tensors_of_two_types_are_read_each_by_its_own(make_model):
    folder = make_model({})
    path = folder / "model.safetensors"
    tensors = load_file(path)
    header, data = {}, b""
    for number, (name, tensor) in enumerate(tensors.items()):
        half = number % 2 == 1
        added = to_bf16(tensor).tobytes() if half else tensor.tobytes()
        header[name] = {
            "dtype": "BF16" if half else "F32",
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(added)],
        }
        data += added
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    config = load_config(folder)
    read = FlatBuffer(config, load_parameters(path, config))
    for number, (name, tensor) in enumerate(tensors.items()):
        expected = from_bf16(to_bf16(tensor)) if number % 2 == 1 else tensor
        assert np.array_equal(read.in_file(name), expected)
