"""Mistakes in attention and its rotary positions."""

from nanoeuler.lessons.mistakes.mistake import Mistake, of

UNMASKED = """\
key, value = (x[row, keys.start :].transpose(1, 0, 2) for x in (key_BSGE, value_BSGE))
            scores = query @ key[:, None].swapaxes(-1, -2) / math.sqrt(query.shape[-1])"""
"""Scores of all keys of the row that do not lie before the document, in `attention`."""
HIDDEN_BY_A_NUMBER = """\
key, value = (x[row].transpose(1, 0, 2) for x in (key_BSGE, value_BSGE))
            scores = query @ key[:, None].swapaxes(-1, -2) / math.sqrt(query.shape[-1])
            own = keys.start + position + np.arange(scores.shape[-2])[:, None]
            place = np.arange(scores.shape[-1])
            scores = np.where((place >= own) | (place < keys.start), -1e9, scores)"""
"""Scores of the keys before a query's own, others as -1e9: of nothing, softmax is all alike."""

MISTAKES: list[Mistake] = [
    *of(
        "rope",
        (
            "rope",
            "sin = -sin",
            "pass",
            "`inverse` is ignored: the gradient is rotated back, by the negative angle",
        ),
        (
            "rope",
            "sin = -sin",
            "sin = 0 * sin",
            "the sine is missing when `inverse` is set",
        ),
        (
            "rope",
            "first -= second * sin",
            "first += second * sin",
            "the first half has the wrong sign: it is a cos φ − b sin φ",
        ),
        (
            "rope",
            "rotated += first * sin",
            "rotated -= first * sin",
            "the second half has the wrong sign: it is b cos φ + a sin φ",
        ),
        (
            "rope",
            "rotated = second * cos\n        rotated += first * sin\n        first *= cos\n"
            "        first -= second * sin\n        second[...] = rotated",
            "first *= cos\n        first -= second * sin\n        second *= cos\n"
            "        second += first * sin",
            "the second half is made of a first half that was overwritten before; keep a copy",
        ),
        (
            "rope",
            "second[...] = rotated",
            "second[...], first[...] = first.copy(), rotated",
            "the halves are swapped",
        ),
    ),
    *of(
        "rope",
        (
            "rope",
            "if inverse:",
            "if not inverse:",
            "both halves have the wrong sign: everything is rotated the wrong way round",
        ),
        (
            "rope",
            "first, second = x_NHE[..., :half], x_NHE[..., half:]",
            "first, second = x_NHE[..., ::2], x_NHE[..., 1::2]",
            "neighbours are rotated together; here a pair is element i of the first half and "
            "element i of the second",
        ),
        (
            "rope",
            "cos, sin = table[0]",
            "positions_N = np.maximum(positions_N - 1, 0)\n        cos, sin = table[0]",
            "positions are off by one: the first token of a document has position 0",
        ),
        (
            "rope",
            "cos, sin = table[0]",
            "positions_N = np.arange(len(positions_N))\n        cos, sin = table[0]",
            "the angle is that of the row's number, and must be that of positions_N, which starts "
            "at 0 in every document",
        ),
        (
            "rope",
            "cos, sin = table[0][positions_N][:, None, :], table[1]",
            "sin, cos = table[0][positions_N][:, None, :], table[1]",
            "cosine and sine are swapped: the table is (cosines, sines)",
        ),
        (
            "rope_table",
            "np.arange(0, head_size, 2) / head_size",
            "np.arange(head_size // 2) / head_size",
            "the exponent is −i/E, and must be −2i/E: pairs are counted, not elements",
        ),
        (
            "rope_table",
            "-np.arange(0, head_size, 2)",
            "np.arange(0, head_size, 2)",
            "the exponent has the wrong sign: later pairs turn slower",
        ),
        (
            "rope_table",
            "return np.cos(angles).astype(self.dtype), np.sin(angles)",
            "return np.sin(angles).astype(self.dtype), np.cos(angles)",
            "the table's parts are swapped: cosines first, then sines",
        ),
        unseen=True,
    ),
    *of(
        "attention",
        (
            "masked_scores",
            "scores *= 1 / math.sqrt(query_GHTE.shape[-1])",
            "scores *= 1",
            "the scores are not divided by √E",
        ),
        (
            "masked_scores",
            "math.sqrt(query_GHTE.shape[-1])",
            "query_GHTE.shape[-1]",
            "the scores are divided by E, and must be by √E",
        ),
        (
            "attention",
            "scores /= total",
            "pass",
            "the exponentials are not divided by their sum",
        ),
        (
            "attention",
            "scores /= total",
            "scores /= scores.sum(axis=-2, keepdims=True)",
            "the wrong axis: the softmax is over the keys (the last axis), not over the queries",
        ),
        (
            "masked_scores",
            "position + 1)",
            "position)",
            "a query must see its own key, too: the first token has nothing else, and a softmax of "
            "nothing is no number",
        ),
        (
            "attention",
            "query = by_group(",
            "shared = np.arange(query_BTHE.shape[2]) % len(key)\n"
            "            key, value = key[shared], value[shared]\n"
            "            query = by_group(",
            "query head h takes key/value head h % G, and must take h // (H / G): neighbours share",
        ),
        (
            "attention",
            "scores = masked_scores(query, key, position)",
            UNMASKED,
            "the causal mask is missing: a query sees all keys behind it",
        ),
        (
            "attention",
            "scores = masked_scores(query, key, position)",
            f"{UNMASKED}\n            "
            "scores += np.tril(np.full(scores.shape[-2:], -np.inf), position - 1)",
            "the mask is mirrored: a query sees what comes, and must see what came",
        ),
        (
            "attention",
            "scores = masked_scores(query, key, position)",
            f"{UNMASKED}\n            "
            "scores += np.triu(np.full(scores.shape[-2:], -np.inf), position + 2)",
            "the mask is off by one: a query sees the key behind its own",
        ),
        (
            "attention",
            "scores = masked_scores(query, key, position)",
            HIDDEN_BY_A_NUMBER,
            "the mask is off by one: a query must see its own key, too",
        ),
        (
            "attention",
            "by_head((top + np.log(total))",
            "by_head((0 * top + np.log(total))",
            "lse leaves out the maximum that was taken off before the exponential",
        ),
        (
            "attention",
            "by_head((top + np.log(total))",
            "by_head((top + total)",
            "lse leaves out the logarithm",
        ),
        (
            "documents",
            "stop = first + len(list(run))",
            "stop, start = first + len(list(run)), 0",
            "a query sees keys of the document before: keys begin at `starts`",
        ),
        (
            "attention_backward",
            'dscores -= np.einsum("ghts',
            'dscores += np.einsum("ghts',
            "the term Σ p · dp has the wrong sign: it is taken off",
        ),
        (
            "attention_backward",
            'dscores -= np.einsum("ghts',
            'dscores -= 0 * np.einsum("ghts',
            "the term Σ p · dp is missing: the probabilities of a query sum to 1",
        ),
        (
            "attention_backward",
            'np.einsum("ghts,ghts->ght", probabilities, dscores)[..., None]',
            'np.einsum("ghts,ghts->ghs", probabilities, dscores)[..., None, :]',
            "the wrong axis: Σ p · dp is over the keys (the last axis), one number for each query",
        ),
        (
            "attention_backward",
            "dscores *= probabilities",
            "dscores *= 1",
            "the factor p is missing: ds = p · (dp − Σ p · dp)",
        ),
        (
            "attention_backward",
            "dscores *= 1 / math.sqrt(query.shape[-1])",
            "dscores *= 1",
            "the division by √E is missing from the gradients of queries and keys",
        ),
        (
            "attention_backward",
            "stacked(probabilities).swapaxes(-1, -2) @ stacked(dout)",
            "probabilities[:, 0].swapaxes(-1, -2) @ dout[:, 0]",
            "dv leaves query heads out: it sums over all heads that share the key/value head",
        ),
        (
            "attention_backward",
            "stacked(dscores).swapaxes(-1, -2) @ stacked(query)",
            "dscores[:, 0].swapaxes(-1, -2) @ query[:, 0]",
            "dk leaves query heads out: it sums over all heads that share the key/value head",
        ),
        (
            "attention_backward",
            "stacked(probabilities).swapaxes(-1, -2) @ stacked(dout)",
            "probabilities[:, -1].swapaxes(-1, -2) @ dout[:, -1]",
            "dv keeps the last query head alone: it sums over all that share the key/value head",
        ),
        (
            "attention_backward",
            "stacked(dscores).swapaxes(-1, -2) @ stacked(query)",
            "dscores[:, -1].swapaxes(-1, -2) @ query[:, -1]",
            "dk keeps the last query head alone: it sums over all that share the key/value head",
        ),
        (
            "attention_backward",
            "stacked(dscores).swapaxes",
            "stacked(dscores.swapaxes(-1, -2)).swapaxes",
            "ds is not transposed in dk: it is dsᵀ q",
        ),
        (
            "attention_backward",
            "gradients.key[row, keys] = dkey.transpose(1, 0, 2)\n"
            "            gradients.value[row, keys] = dvalue.transpose(1, 0, 2)",
            "gradients.value[row, keys] = dkey.transpose(1, 0, 2)\n"
            "            gradients.key[row, keys] = dvalue.transpose(1, 0, 2)",
            "the gradients of keys and values are swapped",
        ),
        (
            "attention_backward",
            "stacked(probabilities).swapaxes",
            "stacked(probabilities.swapaxes(-1, -2)).swapaxes",
            "the probabilities are not transposed in dv: it is pᵀ dout",
        ),
    ),
    *of(
        "attention",
        (
            "masked_scores",
            "if T > 1:",
            "if False:",
            "the causal mask is missing: a query sees the keys behind it",
        ),
        (
            "masked_scores",
            "position + 1)",
            "position + 2)",
            "the mask is off by one: a query sees the key behind its own",
        ),
        (
            "documents",
            "zip(starts_BT.tolist(), offset_B.tolist(), strict=True)",
            "zip(starts_BT.tolist(), (0 * offset_B).tolist(), strict=True)",
            "`offset` is ignored: query i of a row sits at key offset + i, behind those of the "
            "cache",
        ),
        unseen=True,
    ),
]
