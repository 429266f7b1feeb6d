"""Folders of Hugging Face's as transformers leaves them after tokens were added."""

import json

import numpy as np
from safetensors.numpy import load_file, save_file

ROWS = ("model.embed_tokens.weight", "lm_head.weight", "transformer.wte.weight")
USED = {
    "truncation": {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0},
    "padding": {
        "strategy": "BatchLongest",
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "</s>",
    },
}
"""What a tokenizer.json keeps of its last use."""


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def add_tokens(folder, *literals, special):
    """As `tokenizer.add_special_tokens` and `add_tokens` do: beside the model's vocabulary."""

    def change(content):
        ids = {entry["id"] for entry in content["added_tokens"]}
        first = max(ids | set(content["model"]["vocab"].values())) + 1
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        content["added_tokens"] += [
            {"id": id, "content": literal, **flags, "normalized": not special, "special": special}
            for id, literal in enumerate(literals, first)
        ]

    edit(folder / "tokenizer.json", change)


def add_rows(folder, count, scale=1.0):
    """As `model.resize_token_embeddings` does. `scale`: of the new rows, drawn from a normal."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name in tensors.keys() & set(ROWS):
        new = np.random.default_rng(1).normal(0, scale, (count, tensors[name].shape[1]))
        tensors[name] = np.concatenate([tensors[name], new.astype(np.float32)])
    save_file(tensors, path, {"format": "pt"})
    edit(folder / "config.json", lambda keys: keys.update(vocab_size=keys["vocab_size"] + count))
