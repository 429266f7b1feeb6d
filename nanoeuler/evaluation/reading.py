"""A model reads held-out text: the bits that each token costs, the logit lens, and attention.

The lens (nostalgebraist 2020, "interpreting GPT: the logit lens") is what the model would say if it
ended after k of its Euler steps: the final norm and head 0 on the stream x_k.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from nanoeuler.backend.records import AttentionArrays
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.model.documents import frame, mask_padding, windows
from nanoeuler.model.families import family_of
from nanoeuler.model.flat import FlatBuffer
from nanoeuler.model.quantized import QuantizedBuffer
from nanoeuler.model.spec import head_name
from nanoeuler.model.transformer import Batch, Transformer
from nanoeuler.tokenizer import StreamDecoder, Tokenizer
from nanoeuler.tokenizer.shards import TokenStore

TOKENS = 192
"""Tokens of each source whose bits are told: a paragraph or two. A book begins with its title page,
so they stand in the middle of the text."""
LENS_TOKENS = 16
"""The last of these tokens, in the first source, whose way through the layers is told."""
GUESSES = 3


def read(
    model: Transformer, store: TokenStore, tokenizer: Tokenizer, document_mask: bool, window: int
) -> dict[str, Any]:
    """Read a stretch in the middle of each source's held-out text, with the specification in
    float32 on whatever engine the model is: these are few tokens. Returns JSON values:

    texts   source → {"tokens": their texts, "bits": what each cost}
    lens    {"tokens": texts read, "guesses": [point][token][guess], "shares": likewise,
             "attention": [layer][head][token], as `attention` says}
    """
    if isinstance(model.parameters, QuantizedBuffer):
        parameters = model.parameters.dense()
    else:
        parameters = np.asarray(model.backend.to_host(model.parameters), np.float32)
    model = Transformer(model.config, parameters, ReferenceBackend())
    texts: dict[str, Any] = {}
    lens: dict[str, Any] | None = None
    log2_shares = last_layer(model)
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
        buffers = model.forward(Batch(ids_BT, positions_BT, starts_BT), training=True)
        target_N = targets_BTK.reshape(-1)[:TOKENS]
        target_N = target_N[target_N >= 0]
        shares_NV = log2_shares(buffers.points[-1][: len(target_N)])
        bits_N = -np.take_along_axis(shares_NV, target_N[:, None], axis=1)[:, 0]
        texts[source] = {
            "tokens": shown_texts(tokenizer, target_N),
            "bits": [round(float(bits), 2) for bits in bits_N],
        }
        if lens is None:
            last = slice(max(0, len(target_N) - LENS_TOKENS), len(target_N))
            read_N = ids_BT.reshape(-1)[last]
            lens = {
                "tokens": [spelled(tokenizer, id) for id in read_N.tolist()],
                **look(log2_shares, tokenizer, [point[last] for point in buffers.points]),
                "attention": [
                    attention(block.heads, starts_BT, range(last.start, last.stop))
                    for block in buffers.blocks[::2]
                ],
            }
    return {"texts": texts, "lens": lens}


def look(
    log2_shares: Callable[[np.ndarray], np.ndarray], tokenizer: Tokenizer, points: list[np.ndarray]
) -> dict[str, Any]:
    """The likeliest next tokens behind each token, at every point of the stream, (N, dim)."""
    guesses, shares = [], []
    for point in points:
        share_NV = np.exp2(log2_shares(point))[:, : tokenizer.vocab_size]
        best_NG = np.argsort(-share_NV, axis=1, kind="stable")[:, :GUESSES]
        guesses.append([[spelled(tokenizer, id) for id in row] for row in best_NG.tolist()])
        best = np.take_along_axis(share_NV, best_NG, axis=1)
        shares.append([[round(share, 3) for share in row] for row in best.tolist()])
    return {"guesses": guesses, "shares": shares}


def last_layer(model: Transformer) -> Callable[[np.ndarray], np.ndarray]:
    """A function from a stream (N, dim) to the binary logarithms of the probabilities that the
    final norm and head 0 make of it, (N, V)."""
    config = model.config
    family, weights = family_of(config), FlatBuffer(config, model.parameters)
    gain, *bias = (weights[name] for name in family.final_norm)
    head_VD = weights[family.embedding if config.tied else head_name(0)]

    def log2_shares(x_ND: np.ndarray) -> np.ndarray:
        if bias:
            x_ND = x_ND - x_ND.mean(axis=1, keepdims=True)
        mean_N1 = np.mean(x_ND**2, axis=1, keepdims=True)
        normed_ND = x_ND / np.sqrt(mean_N1 + config.norm_epsilon) * gain + sum(bias)
        logits_NV = (normed_ND @ head_VD.T).astype(np.float64)
        logits_NV -= logits_NV.max(axis=1, keepdims=True)
        nats_NV = logits_NV - np.log(np.exp(logits_NV).sum(axis=1, keepdims=True))
        return nats_NV / math.log(2)

    return log2_shares


def attention(
    arrays: AttentionArrays, starts_BT: np.ndarray, chosen: range
) -> list[list[list[int]]]:
    """Attention of each head of a layer from each of the `chosen` tokens: [head][token] → percent
    for all tokens before the chosen ones together, then for each chosen one up to itself.
    """
    query_BTHE, key_BTGE = arrays.query, arrays.key
    T, H, E = query_BTHE.shape[1:]
    found: list[list[list[int]]] = [[] for _ in range(H)]
    for token in chosen:
        row, at = divmod(token, T)
        start = int(starts_BT[row, at])
        key_SHE = np.repeat(key_BTGE[row, start : at + 1], H // key_BTGE.shape[2], axis=1)
        scores_HS = np.einsum("he,she->hs", query_BTHE[row, at], key_SHE) / math.sqrt(E)
        powers_HS = np.exp(scores_HS - scores_HS.max(axis=1, keepdims=True))
        share_HS = powers_HS / powers_HS.sum(axis=1, keepdims=True)
        first = max(chosen[0] - row * T, start)  # slot of the first chosen token that is seen
        seen_HC = np.zeros((H, token - chosen[0] + 1))
        seen_HC[:, row * T + first - chosen[0] :] = share_HS[:, first - start :]
        earlier_H1 = share_HS[:, : first - start].sum(axis=1, keepdims=True)
        percent = np.rint(100 * np.concatenate([earlier_H1, seen_HC], axis=1))
        for head, shares in enumerate(np.nan_to_num(percent).astype(int).tolist()):
            found[head].append(shares)
    return found


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
