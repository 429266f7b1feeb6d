"""A model reads held-out text: the bits that each token costs, and the logit lens.

The lens (nostalgebraist 2020, "interpreting GPT: the logit lens") is what the model would say if it
ended after k of its Euler steps: the final norm and head 0 on the stream x_k.
"""

from typing import Any

import numpy as np

from nanoeuler.model.documents import frame, mask_padding, windows
from nanoeuler.model.families import family_of
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.model.spec import head_name
from nanoeuler.model.transformer import Batch, Transformer
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.decoder import StreamDecoder
from nanoeuler.tokenizer.shards import TokenStore

TOKENS = 192
"""Tokens of each source whose bits are told: a paragraph or two. A book begins with its title page,
so they stand in the middle of the text."""
LENS_TOKENS = 16
"""The last of these tokens, in the first source, are seen through the lens."""
GUESSES = 3


def read(
    model: Transformer, store: TokenStore, tokenizer: Tokenizer, document_mask: bool, window: int
) -> dict[str, Any]:
    """Read a stretch in the middle of each source's held-out text. Returns JSON values:

    texts   source → {"tokens": their texts, "bits": what each cost}
    lens    {"tokens": texts read, "guesses": [point][token][guess], "shares": likewise}
    """
    texts: dict[str, Any] = {}
    lens: dict[str, Any] | None = None
    for source in store.sources("validation"):
        sequence = store.tokens("validation", source)
        start = max(0, len(sequence) - TOKENS - 1) // 2
        stretch = sequence[start : start + TOKENS + 1]
        T = min(window, TOKENS)
        index_B = np.arange(-(-len(stretch) // T))
        ids_BT, following_BK, length_B = windows(stretch, index_B, T, 1, tokenizer.end_id)
        positions_BT, starts_BT, targets_BTK = frame(
            ids_BT, following_BK, tokenizer.end_id, document_mask
        )
        mask_padding(targets_BTK, length_B)
        batch = Batch(*map(model.backend.from_host, (ids_BT, positions_BT, starts_BT)))
        points = model.forward(batch, training=True).points
        target_N = targets_BTK.reshape(-1)[:TOKENS]
        target_N = target_N[target_N >= 0]
        shares_NV = log2_shares(model, points[-1][: len(target_N)])
        bits_N = -np.take_along_axis(shares_NV, target_N[:, None], axis=1)[:, 0]
        texts[source] = {
            "tokens": shown_texts(tokenizer, target_N),
            "bits": [round(float(bits), 2) for bits in bits_N],
        }
        lens = lens or look(model, tokenizer, points, ids_BT.reshape(-1)[: len(target_N)])
    return {"texts": texts, "lens": lens}


def look(
    model: Transformer, tokenizer: Tokenizer, points: list[Any], ids_N: np.ndarray
) -> dict[str, Any]:
    """The likeliest next tokens behind each of the last tokens read, at every point."""
    chosen = slice(max(0, len(ids_N) - LENS_TOKENS), len(ids_N))
    guesses, shares = [], []
    for point in points:
        share_NV = np.exp2(log2_shares(model, point[chosen]))[:, : tokenizer.vocab_size]
        best_NG = np.argsort(-share_NV, axis=1, kind="stable")[:, :GUESSES]
        guesses.append([[spelled(tokenizer, id) for id in row] for row in best_NG.tolist()])
        best = np.take_along_axis(share_NV, best_NG, axis=1)
        shares.append([[round(share, 3) for share in row] for row in best.tolist()])
    tokens = [spelled(tokenizer, id) for id in ids_N[chosen].tolist()]
    return {"tokens": tokens, "guesses": guesses, "shares": shares}


def log2_shares(model: Transformer, x_ND: Any) -> np.ndarray:
    """Logarithms of the probabilities that the final norm and head 0 give to a stream, (N, V)."""
    config, backend = model.config, model.backend
    family, weights = family_of(config), FlatBuffer(config, model.parameters)

    def host(name: str) -> np.ndarray:
        return np.asarray(backend.to_host(weights[name]), np.float32)

    x_ND = np.asarray(backend.to_host(x_ND), np.float32)
    gain, *bias = map(host, family.FINAL_NORM)
    if bias:
        x_ND = x_ND - x_ND.mean(axis=1, keepdims=True)
    mean_N1 = np.mean(x_ND**2, axis=1, keepdims=True)
    normed_ND = x_ND / np.sqrt(mean_N1 + config.norm_epsilon) * gain + sum(bias)
    head_VD = host(family.EMBEDDING if config.tied else head_name(0))
    logits_NV = (normed_ND @ head_VD.T).astype(np.float64)
    logits_NV -= logits_NV.max(axis=1, keepdims=True)
    nats_NV = logits_NV - np.log(np.exp(logits_NV).sum(axis=1, keepdims=True))
    return nats_NV / np.log(2)


def shown_texts(tokenizer: Tokenizer, ids_N: np.ndarray) -> list[str]:
    """The text of each token; a character of several tokens comes with the last of them."""
    decoder = StreamDecoder(tokenizer)
    return ["¶\n" if id == tokenizer.end_id else decoder.push(id) for id in ids_N.tolist()]


def spelled(tokenizer: Tokenizer, id: int) -> str:
    """A token alone, its white space made visible."""
    if id == tokenizer.end_id:
        return "¶"
    text = tokenizer.token_bytes(id).decode("utf-8", "replace")
    return text.replace(" ", "␣").replace("\n", "⏎")
