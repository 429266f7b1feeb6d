"""transformers computes what we compute, from the folders that we write.

It is in no lock: install transformers and torch beside the others to run these.
"""

import shutil

import numpy as np
import pytest
from exported_shapes import SHAPES

from nanoeuler import api
from nanoeuler.inference.conversation import Conversation
from nanoeuler.interchange.exporting import export
from nanoeuler.interchange.importing import import_folder
from nanoeuler.model.files import load_config, transformers_keys
from nanoeuler.model.template import TEMPLATES

torch = pytest.importorskip("torch", reason="transformers needs PyTorch")
transformers = pytest.importorskip("transformers", reason="the judge is not installed")

TEXT = "The harbour lies below the hill; where does Bea live?"


def assert_equal(ours, folder):
    """Logits behind every token, and 256 greedy tokens, are those of transformers."""
    ids = np.array([ours.tokenizer.end_id, *ours.tokenizer.encode(TEXT)])
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer(TEXT)["input_ids"] == ids.tolist()
    with torch.no_grad():
        logits = theirs(torch.tensor(ids[None])).logits[0].numpy()
    assert np.abs(logits - ours.logits(ids)).max() <= 1e-4
    written = theirs.generate(
        torch.tensor(ids[None]), do_sample=False, max_new_tokens=256, temperature=None, top_p=None
    )
    reply = ours.stream(TEXT, raw=True, max_tokens=256, temperature=0)
    list(reply)
    assert written[0, len(ids) :].tolist()[: len(reply.ids)] == reply.ids
    assert reply.ended or len(reply.ids) == 256


@pytest.mark.parametrize("shape", SHAPES)
def test_an_export_computes_the_same(shape, make_model, tmp_path, capfd):
    folder = make_model(SHAPES[shape] | {"context": 512})
    export(folder, "hf", "f32", tmp_path / "hf")
    ours = api.load(folder, device="cpu")
    capfd.readouterr()
    assert_equal(ours, tmp_path / "hf")
    assert "UNEXPECTED" not in "".join(capfd.readouterr())
    if transformers_keys(load_config(folder), 0):
        assert_equal(ours, folder)


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_chat_template_gives_the_prompts_of_chat(name, make_model):
    folder = make_model({}, name)
    ours = api.load(folder, device="cpu")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    said = [{"role": "user", "content": TEXT}]
    ids = theirs.apply_chat_template(said, add_generation_prompt=True, return_dict=False)
    assert ids == ours.writer.frame(ours.prompt(TEXT))
    conversation = Conversation(ours.writer, ours.prompt, history=True)
    conversation.say(TEXT)
    turn = conversation.turns[0]
    turn.reply, turn.ended = [*ours.tokenizer.encode("In the mill."), ours.tokenizer.end_id], True
    conversation.say("And Tom?")
    whole = "".join(ours.tokenizer.decode(turn.ids) for turn in conversation.turns)
    # our later turns begin with the </s> that ended the one before
    whole = whole.replace("</s></s>", "</s>")
    said += [
        {"role": "assistant", "content": "In the mill."},
        {"role": "user", "content": "And Tom?"},
    ]
    text = theirs.apply_chat_template(said, add_generation_prompt=True, tokenize=False)
    assert text == whole


def test_what_transformers_saves_is_imported(make_model, tmp_path):
    """Its own files: sharded, in bfloat16, with a config of its making."""
    config = transformers.Qwen3Config(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        rope_theta=1234.0,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    )
    torch.manual_seed(3)
    theirs = transformers.Qwen3ForCausalLM(config).to(torch.bfloat16)
    for parameter in theirs.parameters():
        parameter.data *= 5 if parameter.ndim > 1 else 1
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 1
    model = make_model({})
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    tokenizer.save_pretrained(tmp_path / "theirs")
    import_folder(tmp_path / "theirs", tmp_path / "ours")
    assert_equal(api.load(tmp_path / "ours", device="cpu"), tmp_path / "theirs")


@pytest.mark.parametrize("sizes", [(32, 4, 2, None), (48, 3, 3, 100), (96, 6, 1, 50)])
def test_a_gpt2_that_transformers_saves_is_imported(sizes, make_model, tmp_path):
    """And written again, it is the same."""
    dim, heads, layers, inner = sizes
    model = make_model({})
    config = transformers.GPT2Config(
        vocab_size=300,
        n_embd=dim,
        n_head=heads,
        n_layer=layers,
        n_inner=inner,
        n_positions=512,
        bos_token_id=0,
        eos_token_id=0,
    )
    torch.manual_seed(3)
    theirs = transformers.GPT2LMHeadModel(config)
    for parameter in theirs.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    theirs.save_pretrained(tmp_path / "theirs")
    transformers.AutoTokenizer.from_pretrained(model).save_pretrained(tmp_path / "theirs")
    shutil.copy(model / "generation_config.json", tmp_path / "theirs")  # no reserved tokens
    import_folder(tmp_path / "theirs", tmp_path / "ours")
    assert_equal(api.load(tmp_path / "ours", device="cpu"), tmp_path / "theirs")
    export(tmp_path / "ours", "hf", "f32", tmp_path / "again")
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "again")
    for name, parameter in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[name], parameter)
