"""PEFT reads the adapters that we write, and we those that it writes: both compute the same.

It is in no lock: install peft, transformers and torch beside the others to run these.
"""

import numpy as np
import pytest
from exported_shapes import SHAPES

from nanoeuler.config.settings import Lora
from nanoeuler.inference import api
from nanoeuler.interchange.adapters import import_adapters
from nanoeuler.interchange.exporting import export
from nanoeuler.model.adapters import adapted, merge, save_adapters
from nanoeuler.model.files import load_config, load_model, save_model
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.storage.files import sha256_file

torch = pytest.importorskip("torch", reason="peft needs PyTorch")
transformers = pytest.importorskip("transformers", reason="peft needs transformers")
peft = pytest.importorskip("peft", reason="the judge is not installed")

TEXT = "The harbour lies below the hill; where does Bea live?"
LIMIT = 1e-5
"""Of the logits' difference by norm, in float32: see `test_transformers.py`.

With adapters three times as wide as here, whose logits are far from those of the model, one shape
misses it: YaRN's positions, by 1.3e-5. That is float32's rounding: there, each side differs from
itself in float64 by 5.5e-6 and 7.0e-6. In float64 both agree to 1e-14 for a GPT-2, and to 5e-6 for
all other shapes, where transformers computes norms and rotary tables in float32 whatever the model.
"""


def logits_of(ours):
    ids = np.array([ours.tokenizer.end_id, *ours.tokenizer.encode(TEXT)])
    return ids, ours.logits(ids)


def judged(ids, folder, adapter):
    """Logits of the model in `folder` by PEFT: with the adapters in `adapter`, and without."""
    base = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    batch = torch.tensor(ids[None])
    with torch.no_grad():
        plain = base(batch).logits[0].numpy()
        model = peft.PeftModel.from_pretrained(base, adapter)
        return model(batch).logits[0].numpy(), plain


def assert_close(found, expected):
    assert np.linalg.norm(found - expected) <= LIMIT * np.linalg.norm(expected)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("targets", ["all", "some"])
def test_peft_computes_what_we_do(shape, targets, make_model, tmp_path, recwarn):
    folder = make_model(SHAPES[shape])
    saved = load_model(folder)
    names = ["c_attn", "c_fc"] if saved.config.family == "gpt2" else ["q_proj", "down_proj"]
    config = adapted(saved.config, Lora(rank=3, targets="all" if targets == "all" else names))
    part = np.zeros(FlatBuffer.trained_elements(config), np.float32)
    buffer, random = FlatBuffer(config, part), np.random.default_rng(2)
    for name in buffer.rows:
        buffer[name][...] = random.standard_normal(buffer[name].shape) * 0.1
    sha256 = sha256_file(folder / "model.safetensors")
    save_adapters(tmp_path / "adapter", config, part, folder, sha256)
    merge(config, saved.parameters, part)
    save_model(tmp_path / "merged", saved)
    ids, found = logits_of(api.load(tmp_path / "merged", "cpu"))
    bases = [folder] if load_config(folder).step_size in (1, 0.5) else []
    export(folder, "hf", "f32", tmp_path / "hf")
    for each in (*bases, tmp_path / "hf"):
        expected, plain = judged(ids, each, tmp_path / "adapter")
        assert_close(found, expected)
        assert np.linalg.norm(found - plain) > 0.01 * np.linalg.norm(plain)
    assert not [each for each in recwarn if "nexpected" in str(each.message)]


@pytest.mark.parametrize("shape", SHAPES)
def test_we_compute_what_peft_does(shape, make_model, tmp_path):
    folder = make_model(SHAPES[shape])
    export(folder, "hf", "f32", tmp_path / "hf")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32)
    gpt2 = load_config(folder).family == "gpt2"
    settings = peft.LoraConfig(
        r=4,
        lora_alpha=6,
        target_modules=["c_attn", "c_proj"] if gpt2 else ["v_proj", "o_proj", "up_proj"],
        lora_dropout=0.1,
        init_lora_weights=False,
        fan_in_fan_out=gpt2,
    )
    torch.manual_seed(1)
    model = peft.get_peft_model(theirs, settings)
    model.save_pretrained(tmp_path / "adapter")
    import_adapters(tmp_path / "adapter", folder, tmp_path / "merged")
    ids, found = logits_of(api.load(tmp_path / "merged", "cpu"))
    expected, plain = judged(ids, tmp_path / "hf", tmp_path / "adapter")
    assert_close(found, expected)
    assert np.linalg.norm(found - plain) > 0.01 * np.linalg.norm(plain)
