"""What `import --base` refuses in a sentence: folders of adapters that do not fit."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from nanoeuler.cli import main
from nanoeuler.config.settings import Lora
from nanoeuler.errors import UserError
from nanoeuler.interchange.adapters import import_adapters
from nanoeuler.interchange.importing import import_folder
from nanoeuler.model.adapters import adapted, save_adapters
from nanoeuler.model.files import load_model
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.storage.files import sha256_file

NAME = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.fixture
def base(make_model):
    return make_model({})


@pytest.fixture
def adapter(base, tmp_path):
    config = adapted(load_model(base).config, Lora(rank=2, targets=["q_proj"]))
    values = np.random.default_rng(1).standard_normal(FlatBuffer.trained_elements(config))
    buffer = FlatBuffer(config, np.zeros(len(values), np.float32))
    for tensor in buffer.table:
        buffer[tensor.name][...] = values[: tensor.size].reshape(tensor.shape)
    folder = tmp_path / "adapter"
    sha256 = sha256_file(base / "model.safetensors")
    save_adapters(folder, config, buffer.array, base, sha256)
    return folder


def change(adapter, **keys):
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def test_the_command_merges_adapters(base, adapter, tmp_path, capsys):
    output = str(tmp_path / "merged")
    assert main(["import", str(adapter), "--base", str(base), "--output", output]) == 0
    before, after = load_model(base), load_model(output)
    assert (before.parameters != after.parameters).any()
    assert after.template == before.template
    assert after.info["adapters"]["name"] == "adapter"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"r": 0}, "adapter_config.json: r is 0: it must be a whole number from 1 on"),
        ({"r": 99_999}, "adapter_config.json: r is 99999, above model.dim"),
        ({"r": 3}, f"tensor {NAME} has shape [2, "),
        ({"lora_alpha": "much"}, "lora_alpha is 'much': it must be above 0 and at most 1e+06"),
        ({"lora_alpha": 10**400}, ": it must be above 0 and at most 1e+06"),
        ({"target_modules": ["query"]}, "lora.targets has 'query', and the blocks of this model"),
        ({"target_modules": "q.*"}, "target_modules is 'q.*': it must be a list of names"),
        ({"target_modules": ["k_proj"]}, f"has a tensor '{NAME[:20]}"),
        ({"target_modules": ["q_proj", "k_proj"]}, "lacks the tensor base_model.model.model."),
        ({"use_dora": True}, "use_dora is True, which adapters of a nanoeuler model do not have"),
        ({"rank_pattern": {"q_proj": 4}}, "rank_pattern is {'q_proj': 4}, which adapters"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is 'pissa_niter_4', which"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3', which adapters"),
        ({"revision": "0" * 64}, "were trained on another model than"),
    ],
)
def test_adapters_that_do_not_fit_are_refused(base, adapter, tmp_path, keys, said):
    change(adapter, **keys)
    with pytest.raises(UserError) as refused:
        import_adapters(adapter, base, tmp_path / "merged")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "merged").exists()


def test_values_that_are_not_finite_are_refused(base, adapter, tmp_path):
    path = adapter / "adapter_model.safetensors"
    tensors = load_file(path)
    tensors[NAME][0, 0] = np.nan
    save_file(tensors, path)
    with pytest.raises(UserError, match="holds values that are not finite"):
        import_adapters(adapter, base, tmp_path / "merged")


def test_a_folder_of_adapters_is_told_from_a_model(adapter, tmp_path):
    with pytest.raises(UserError, match="a folder of adapters; name the model that they belong"):
        import_folder(adapter, tmp_path / "merged")
