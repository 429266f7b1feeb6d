"""Mistakes in merging bytes and in keeping drafts."""

from nanoeuler.lessons.mistakes.mistake import Mistake, of

MISTAKES: list[Mistake] = [
    *of(
        "merge",
        (
            "replace",
            "symbols[2 if found else 1 :]",
            "symbols[1:]",
            "the right symbol of a pair stays behind its product: skip two symbols after a merge",
        ),
        (
            "replace",
            "if found else symbols[0])",
            "if found else symbols[-1])",
            "symbols that are not merged are kept in the wrong order",
        ),
        (
            "replace",
            "while symbols:",
            "while symbols[1:]:",
            "the last symbol is lost when it is no part of a pair",
        ),
        (
            "replace",
            "tuple(symbols[:2]) == pair",
            "tuple(symbols[:2]) == pair and product not in result",
            "only the first occurrence is merged",
        ),
        (
            "replace",
            "tuple(symbols[:2]) == pair",
            "tuple(symbols[:2]) == pair != tuple(symbols[1:3])",
            "pairs that overlap are merged from the right; from the left, aaa becomes (aa)a",
        ),
        (
            "replace",
            "tuple(symbols[:2]) == pair",
            "sorted(symbols[:2]) == sorted(pair)",
            "the order within the pair is ignored: (right, left) is another pair",
        ),
    ),
    *of(
        "keep_right",
        (
            "keep_right",
            "np.cumprod(chosen_BT[:, :-1] == drafts_BM, axis=1)",
            "(chosen_BT[:, :-1] == drafts_BM)",
            "a right draft behind a wrong one counts, and must not: it follows a wrong token",
        ),
        (
            "keep_right",
            "chosen_BT[:, :-1] == drafts_BM",
            "chosen_BT[:, 1:] == drafts_BM",
            "drafts are compared with the token behind their own: draft m is checked by chosen m",
        ),
        (
            "keep_right",
            "lengths_B += right_B + 1",
            "lengths_B += right_B",
            "lengths count the right drafts only: the token that was read before them counts, too",
        ),
        (
            "keep_right",
            "draws_B += right_B + 1",
            "draws_B += right_B",
            "draws count the right drafts only: the token chosen behind them was drawn, too",
        ),
        (
            "keep_right",
            "np.arange(T) > right_B",
            "np.arange(T) >= right_B",
            "the token chosen behind the last right draft is lost: a + 1 tokens are kept",
        ),
        (
            "keep_right",
            "np.arange(B), right_B], 0)",
            "np.arange(B), right_B - 1], 0)",
            "the next token is that chosen behind the last right draft: chosen[a], not a − 1",
        ),
        (
            "keep_right",
            "np.arange(B) * T + right_B",
            "np.arange(B) * T",
            "the hidden state is that of the first token, and must be that of the last right draft",
        ),
    ),
]
