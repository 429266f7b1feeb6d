"""Small models that several folders of tests share."""

from pathlib import Path

import numpy as np

from nanoeuler.backend.ops import Backend
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.families import FAMILIES
from nanoeuler.model.files import SavedModel, save_model
from nanoeuler.model.flat import FlatBuffer, initial_parameters
from nanoeuler.model.transformer import Transformer
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.bpe import learn
from nanoeuler.tokenizer.counting import count_words
from nanoeuler.tokenizer.vocabulary import build

ODD = {
    "vocab_size": 300,
    "dim": 48,
    "layers": 2,
    "heads": 6,
    "kv_heads": 2,
    "ffn": 50,
    "context": 37,
    "mtp_heads": 3,
    "step_size": 0.5,
    "tied": True,
}
"""Sizes that no vector, block or number of threads divides."""
TINY = ModelConfig(
    vocab_size=50, dim=16, layers=2, heads=4, kv_heads=2, ffn=20, context=8, mtp_heads=2
)

PROSE = "".join(
    f"The ferry came to the quay on day {day} of the long winter.\n\n" for day in range(300)
)
NAMES = ("Bea", "Bram", "Hild", "Amos", "Wren")
PLACES = ("quay", "inn", "mill", "harbour", "lighthouse", "market", "school")
DIARY = "\n\n".join(
    f"On day {day} of that winter {NAMES[day % 5]} walked from the {PLACES[day % 7]} "
    f"to the {PLACES[day % 4]} and met {NAMES[day % 3]}."
    for day in range(300)
)
"""24 kB to train on, as if they were one's own."""
FIELDS = {"dim": 16, "layers": 2, "heads": 2, "ffn": 20, "context": 32, "vocab_size": 300}
LLAMA = {**FIELDS, "kv_heads": 1, "mtp_heads": 2}
GPT2 = {**FIELDS, "family": "gpt2", "kv_heads": 2, "tied": True}


def model_in(folder: Path, fields: dict, template: str | None = None) -> Path:
    """The folder of a model with random weights and a tokenizer of 300 entries."""
    config = ModelConfig.from_dict(fields)
    given = folder.parent / "tokenizer.json"
    Tokenizer(build(learn(count_words([PROSE.encode()]), 300))).save(given)
    weights = initial_parameters(config, seed=1)
    save_model(folder, SavedModel(config, weights, given, "sft", template, {}))
    return folder


def wide_transformer(**changes: object) -> Transformer:
    """A model of 19 tokens, eight times as wide as a fresh one: its predictions differ clearly."""
    fields = {
        "vocab_size": 19,
        "dim": 16,
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "ffn": 11,
        "context": 8,
        "mtp_heads": 3,
    }
    config = ModelConfig.from_dict(fields | changes)
    parameters = initial_parameters(config, seed=3) * np.float32(8)
    return Transformer(config, parameters, ReferenceBackend())


def transitions(size: int, sharpness: float) -> np.ndarray:
    """Chances of each token behind each other one, (V, V)."""
    weights = np.exp(sharpness * np.random.default_rng(2).standard_normal((size, size)))
    return weights / weights.sum(axis=1, keepdims=True)


def cycle(size: int, share: float) -> np.ndarray:
    """Chances by which each token is followed by the next, but by any token in that share."""
    return (1 - share) * np.roll(np.eye(size), 1, axis=1) + share / size


def chain(
    backend: Backend,
    transitions_VV: np.ndarray,
    *,
    noise: float = 0.0,
    mixing: float = 0.0,
    context: int = 40,
    dim: int = 32,
    qk_norm: str = "none",
    family: str = "llama",
    mtp_heads: int = 4,
) -> Transformer:
    """A model of a Markov chain: head k knows the chances of the token k + 1 places ahead.

    `noise` makes the MTP heads worse. `mixing` is the spread of the blocks' matrices, by which
    a token depends on all tokens before it; without, on the last one alone.
    """
    V, random = len(transitions_VV), np.random.default_rng(1)
    heads = max(2, dim // 64)
    sizes = {"dim": dim, "layers": 2, "heads": heads, "ffn": 20, "mtp_heads": mtp_heads}
    kind = {"family": family, "kv_heads": heads if family == "gpt2" else 1, "qk_norm": qk_norm}
    config = ModelConfig(vocab_size=V, context=context, **kind, **sizes)
    names = FAMILIES[family]
    buffer = FlatBuffer(config, initial_parameters(config, 1))
    for name in buffer.rows:
        if buffer[name].ndim > 1:
            buffer[name][...] *= 50 * mixing / np.sqrt(dim)
    embedding = random.standard_normal((V, dim))
    buffer[names.embedding][...] = embedding
    if names.positions:  # a LayerNorm's family
        buffer[names.positions][...] = 0
        embedding = embedding - embedding.mean(axis=1, keepdims=True)
    normed = embedding / np.sqrt((embedding**2).mean(axis=1, keepdims=True) + config.norm_epsilon)
    power = np.eye(V)
    for head in range(mtp_heads):
        power = power @ transitions_VV
        logits = np.log(power) + (head > 0) * noise * random.standard_normal((V, V))
        name = "lm_head.weight" if head == 0 else f"mtp_heads.{head}.weight"
        buffer[name][...] = np.linalg.lstsq(normed, logits, rcond=None)[0].T
    return Transformer(config, backend.from_host(buffer.array), backend)
