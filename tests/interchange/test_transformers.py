"""transformers computes what we compute, from the folders that we write.

It is in no lock: install transformers and torch beside the others to run these.
"""

import json
import shutil

import numpy as np
import pytest
from checkouts import ROOT
from exported_shapes import SHAPES

from nanoeuler.inference import api
from nanoeuler.inference.conversation import Conversation
from nanoeuler.interchange.exporting import export
from nanoeuler.interchange.importing import import_folder
from nanoeuler.model.files import load_config
from nanoeuler.model.template import TEMPLATES

torch = pytest.importorskip("torch", reason="transformers needs PyTorch")
transformers = pytest.importorskip("transformers", reason="the judge is not installed")

TEXT = "The harbour lies below the hill; where does Bea live?"


LIMIT = 2e-5
"""Of the logits' difference by norm. Both are float32: in these shapes either errs by 4e-7 to
2.3e-6 beside float64, most with weighted norms and with one head of 46 elements, and processors add
up in orders of their own. Another ε or θ, or a missing factor, shows at 1e-3."""


def assert_equal(ours, folder):
    """Logits behind every token, and 256 greedy tokens, are those of transformers."""
    ids = np.array([ours.tokenizer.end_id, *ours.tokenizer.encode(TEXT)])
    how = {"attn_implementation": "eager"} if ours.config.attention_cap else {}  # others lack caps
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **how)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer(TEXT)["input_ids"] == ids.tolist()
    with torch.no_grad():
        logits = theirs(torch.tensor(ids[None])).logits[0].numpy()
    found = ours.logits(ids)
    assert np.linalg.norm(found - logits) <= LIMIT * np.linalg.norm(logits)
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
    config = load_config(folder)
    if config.step_size in (1, 0.5) and not config.post_norms:
        assert_equal(ours, folder)


def test_the_model_in_the_repository_computes_the_same():
    assert_equal(api.load(ROOT / "models" / "stories", "cpu"), ROOT / "models" / "stories")


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


LLAMA31 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
RELEASED = {
    "Llama 3.1 8B": (
        "Llama",
        {"head_dim": 128, "rope_theta": 500_000.0, "rope_scaling": LLAMA31},
    ),
    "Llama 3.2 1B": (
        "Llama",
        {
            "head_dim": 64,
            "rope_theta": 500_000.0,
            "rope_scaling": LLAMA31 | {"factor": 32.0},
            "tie_word_embeddings": True,
        },
    ),
    "TinyLlama 1.1B": ("Llama", {"head_dim": 64, "max_position_embeddings": 2048}),
    "SmolLM2 135M": (
        "Llama",
        {
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "hidden_size": 48,
            "head_dim": 64,
            "rope_theta": 100_000.0,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
        },
    ),
    "Llama 2 7B": ("Llama", {"num_key_value_heads": 4, "max_position_embeddings": 4096}),
    "SmolLM 135M": ("Llama", {"head_dim": 64, "tie_word_embeddings": True}),
    "SmolLM3 3B": (
        "SmolLM3",
        {
            "num_hidden_layers": 5,
            "max_position_embeddings": 65_536,
            "no_rope_layers": [1, 1, 1, 0, 1],
            "rope_theta": 5e6,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": True,
            "pad_token_id": None,
        },
    ),
    "Mistral 7B v0.1": (
        "Mistral",
        {"head_dim": 128, "sliding_window": 4096, "max_position_embeddings": 32_768},
    ),
    "Mistral 7B v0.3": (
        "Mistral",
        {"head_dim": 128, "sliding_window": None, "max_position_embeddings": 32_768},
    ),
    "a Mistral with a short window": (
        "Mistral",
        {"head_dim": 16, "sliding_window": 24, "max_position_embeddings": 512},
    ),
    "Qwen2 0.5B": (
        "Qwen2",
        {"rope_theta": 1e6, "rms_norm_eps": 1e-6, "tie_word_embeddings": True},
    ),
    "Qwen2.5 7B": (
        "Qwen2",
        {"rope_theta": 1e6, "rms_norm_eps": 1e-6, "sliding_window": 131_072},
    ),
    "Gemma 2 2B": (
        "Gemma2",
        {
            "hidden_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-6,
            "pad_token_id": None,
            "tie_word_embeddings": True,
        },
    ),
    "Gemma 2 9B, with a short window and low caps": (
        "Gemma2",
        {
            "hidden_size": 64,
            "num_hidden_layers": 4,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 256,
            "query_pre_attn_scalar": 256,
            "sliding_window": 24,
            "attn_logit_softcapping": 1.5,
            "final_logit_softcapping": 2.5,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-6,
            "pad_token_id": None,
        },
    ),
    "Gemma 2 27B, whose scores have a scale of their own": (
        "Gemma2",
        {
            "hidden_size": 64,
            "num_attention_heads": 32,
            "num_key_value_heads": 16,
            "head_dim": 128,
            "query_pre_attn_scalar": 144,
            "attn_logit_softcapping": None,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-6,
            "pad_token_id": None,
        },
    ),
    "Gemma 3 27B's scale of scores": (
        "Gemma3",
        {"head_dim": 128, "query_pre_attn_scalar": 168, "pad_token_id": None},
    ),
    "Gemma 3 1B": (
        "Gemma3",
        {
            "hidden_size": 48,
            "num_hidden_layers": 7,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "max_position_embeddings": 32_768,
            "sliding_window": 512,
            "rms_norm_eps": 1e-6,
            "pad_token_id": None,
            "tie_word_embeddings": True,
        },
    ),
    "a Gemma 3 4B's text, with a short window": (
        "Gemma3",
        {
            "num_hidden_layers": 6,
            "query_pre_attn_scalar": 16,
            "head_dim": 16,
            "sliding_window": 24,
            "rms_norm_eps": 1e-6,
            "pad_token_id": None,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "tie_word_embeddings": True,
        },
    ),
    "a Qwen2 with windows": (
        "Qwen2",
        {
            "num_hidden_layers": 4,
            "use_sliding_window": True,
            "sliding_window": 24,
            "max_window_layers": 2,
        },
    ),
    "a Qwen3 with windows": (
        "Qwen3",
        {
            "head_dim": 16,
            "num_hidden_layers": 4,
            "use_sliding_window": True,
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
    ),
    "Qwen3 0.6B": (
        "Qwen3",
        {"head_dim": 128, "rope_theta": 1e6, "rms_norm_eps": 1e-6, "tie_word_embeddings": True},
    ),
    "Qwen3 8B with YaRN": (
        "Qwen3",
        {"head_dim": 128, "rope_theta": 1e6, "rms_norm_eps": 1e-6, "rope_scaling": YARN},
    ),
    "linear, as Vicuna": (
        "Llama",
        {"head_dim": 128, "rope_scaling": {"type": "linear", "factor": 4.0}},
    ),
}
"""Configurations of released models, but for widths and layers: class in transformers, and keys.
Scalings, bases and head sizes are exactly theirs."""


@pytest.mark.parametrize("name", RELEASED)
def test_a_released_configuration_computes_the_same_and_comes_back(name, make_model, tmp_path):
    kind, keys = RELEASED[name]
    sizes = {
        "vocab_size": 300,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    torch.manual_seed(3)
    suffix = "TextConfig" if kind == "Gemma3" else "Config"
    config = getattr(transformers, f"{kind}{suffix}")(**sizes | keys)
    if getattr(config, "attn_logit_softcapping", None):
        config._attn_implementation = "eager"  # the others lack it
    theirs = getattr(transformers, f"{kind}ForCausalLM")(config)
    for parameter in theirs.parameters():
        parameter.data *= 5 if parameter.ndim > 1 else 1
        if kind.startswith("Gemma") and parameter.ndim == 1:  # 1 is added to it, which bf16 stands
            parameter.data += torch.randint(-50, 50, parameter.shape) / 128
    theirs.save_pretrained(tmp_path / "theirs")
    model = make_model({})
    transformers.AutoTokenizer.from_pretrained(model).save_pretrained(tmp_path / "theirs")
    shutil.copy(model / "generation_config.json", tmp_path / "theirs")  # no reserved tokens
    import_folder(tmp_path / "theirs", tmp_path / "ours")
    ours = api.load(tmp_path / "ours", device="cpu")
    assert (ours.config.rope_scaling is None) == ("rope_scaling" not in keys)
    assert ours.config.context == config.max_position_embeddings
    assert_equal(ours, tmp_path / "theirs")
    ids = np.arange(200) * 7 % 300
    with torch.no_grad():
        logits = theirs(torch.tensor(ids[None])).logits[0].numpy()
    assert np.abs(ours.logits(ids) - logits).max() <= 1e-4
    export(tmp_path / "ours", "hf", "f32", tmp_path / "again")
    again = type(theirs).from_pretrained(tmp_path / "again")
    for key, parameter in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[key], parameter)
    for made in (again, theirs):
        made.turns = {k: v for k, v in vars(made.model.rotary_emb).items() if "scaling" in k}
        made.turns |= {k: v.tolist() for k, v in made.model.rotary_emb.named_buffers()}
    assert again.turns == theirs.turns
    import_folder(tmp_path / "again", tmp_path / "twice")
    assert load_config(tmp_path / "twice") == ours.config


@pytest.mark.parametrize("shape", ["plain", "weighted norms", "gpt2"])
def test_a_folder_that_was_used_and_grown_comes_back(shape, make_model, tmp_path):
    """Padding and truncation, [PAD] and words added, and rows that no token has."""
    export(make_model(SHAPES[shape] | {"context": 512}, "alpaca"), "hf", "f32", tmp_path / "hf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")

    def back(name):
        theirs.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        import_folder(tmp_path / name, tmp_path / f"{name}-back")
        # our own generate never writes special tokens and spare rows, theirs neither
        saved = json.loads((tmp_path / f"{name}-back" / "generation_config.json").read_text())
        (tmp_path / name / "generation_config.json").write_text(json.dumps(saved))
        ours = api.load(tmp_path / f"{name}-back", device="cpu")
        assert_equal(ours, tmp_path / name)
        assert ours.template == "alpaca"
        return ours

    tokenizer(["a", TEXT], padding=True, truncation=True, max_length=8)
    back("used")
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    theirs.resize_token_embeddings(len(tokenizer))
    assert back("pad").tokenizer.special_ids["[PAD]"] == 300
    tokenizer.add_tokens(["<tool>", "harbour"])
    theirs.resize_token_embeddings(len(tokenizer))
    assert 302 in back("words").tokenizer.encode(TEXT)
    theirs.resize_token_embeddings(len(tokenizer), pad_to_multiple_of=64)
    assert back("rows").config.vocab_size == 320


def test_a_mistral_that_does_not_name_its_window_has_one(make_model, tmp_path):
    """The key left out means 4,096 tokens."""
    shape = SHAPES["plain"] | {"context": 512, "heads": 8, "kv_heads": 8, "head_size": 4}
    export(make_model(shape), "hf", "f32", tmp_path / "hf")
    path = tmp_path / "hf" / "config.json"
    named = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    keys = json.loads(path.read_text()) | named | {"max_position_embeddings": 9000}
    path.write_text(json.dumps(keys))
    assert transformers.AutoConfig.from_pretrained(tmp_path / "hf").sliding_window == 4096
    import_folder(tmp_path / "hf", tmp_path / "back")
    config = load_config(tmp_path / "back")
    assert (config.context, config.windows) == (9000, (4096,))


@pytest.mark.parametrize("tied", [True, False])
def test_documents_that_begin_with_another_token_than_they_end_with(tied, make_model, tmp_path):
    """As in Llama 3.2 and Gemma, whose embedding is the head, too."""
    shape = SHAPES["plain"] | {"mtp_heads": 1, "context": 512, "tied": tied}
    export(make_model(shape), "hf", "f32", tmp_path / "hf")
    path = tmp_path / "hf" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"bos_token_id": 2}))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    import_folder(tmp_path / "hf", tmp_path / "back")
    ours = api.load(tmp_path / "back", device="cpu")
    assert not ours.config.tied
    text = ours.tokenizer.encode(TEXT)
    with torch.no_grad():
        logits = theirs(torch.tensor([[2, *text]])).logits[0].numpy()
    found = ours.logits(np.array([ours.tokenizer.end_id, *text]))
    assert np.linalg.norm(found - logits) <= LIMIT * np.linalg.norm(logits)
    export(tmp_path / "back", "hf", "f32", tmp_path / "again")
    assert_equal(ours, tmp_path / "again")


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
