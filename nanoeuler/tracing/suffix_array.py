"""Suffix arrays of token sequences, and the longest matches of a query in them; compiled.

Suffix i of `tokens` (n,) is tokens[i:]. `order` (n,) int32 has all suffixes in lexical order, so
that those that begin with the same tokens stand together, and a binary search finds them.

`suffix_array` induces the order of all suffixes from that of some of them, in linear time however
often the text repeats itself (SA-IS: Nong, Zhang and Chan 2009, Linear suffix array construction by
almost pure induced-sorting). It takes some 20 bytes a token.
"""

import numpy as np

from nanoeuler.system.compiling import compiled


def suffix_array(tokens: np.ndarray) -> np.ndarray:
    """The order (n,) int32 of the suffixes of `tokens`, of less than 2³¹ ids of at least 0."""
    text = np.ascontiguousarray(tokens, np.int32)
    if not len(text):
        return np.zeros(0, np.int32)
    smaller = np.zeros(len(text), np.bool_)  # than the next suffix: the last one is not
    counts, of_smaller = np.zeros((2, int(text.max()) + 1), np.int64)
    classify(text, smaller, counts, of_smaller)
    ends = np.cumsum(counts)  # of the suffixes that begin with each token
    order = np.empty(len(text), np.int32)

    def induce_from(chosen: np.ndarray) -> None:
        order.fill(-1)
        induce(text, smaller, chosen, order, ends - of_smaller, ends - counts, ends.copy())

    chosen = (np.flatnonzero(smaller[1:] & ~smaller[:-1]) + 1).astype(np.int32)
    induce_from(chosen)
    if len(chosen) > 1:
        which = np.full(len(text), -1, np.int32)
        which[chosen] = np.arange(len(chosen))
        names = np.empty(len(chosen), np.int32)
        distinct = name_substrings(text, chosen, order, which, names)
        del which
        if distinct < len(chosen):
            chosen = chosen[suffix_array(names)]
        else:
            chosen[names] = chosen.copy()
        induce_from(chosen)
    return order


@compiled()
def classify(text, smaller, counts, of_smaller):
    """Say which suffixes are smaller than the next one (n,), and count all suffixes and the smaller
    ones by their first tokens, (ids,) each."""
    last = len(text) - 1
    counts[text[last]] += 1
    for i in range(last - 1, -1, -1):
        token, after = text[i], text[i + 1]
        counts[token] += 1
        if token < after or (token == after and smaller[i + 1]):
            smaller[i] = True
            of_smaller[token] += 1


@compiled()
def induce(text, smaller, chosen, order, middles, starts, ends):
    """Put all suffixes into `order`, of -1, given the leftmost smaller ones in their order.

    A token's larger suffixes lie from `starts` on, its smaller ones between `middles` and `ends`;
    the three are used up. Where those of `chosen` are out of order, the suffixes are ordered by
    their tokens up to the next of them.
    """
    for suffix in chosen:
        token = text[suffix]
        order[middles[token]] = suffix
        middles[token] += 1
    n = len(text)
    token = text[n - 1]
    order[starts[token]] = n - 1
    starts[token] += 1
    for i in range(n):
        before = order[i] - 1
        if before >= 0 and not smaller[before]:
            token = text[before]
            order[starts[token]] = before
            starts[token] += 1
    for i in range(n - 1, -1, -1):
        before = order[i] - 1
        if before >= 0 and smaller[before]:
            token = text[before]
            ends[token] -= 1
            order[ends[token]] = before


@compiled()
def name_substrings(text, chosen, order, which, names):
    """Number the substrings between neighbours of `chosen` (m,) as `order` has them, equal ones
    alike; returns how many differ. `which` (n,) is the place of a suffix in `chosen`, or -1."""
    m = len(chosen)
    name, last = -1, -1
    for suffix in order:
        number = which[suffix]
        if number < 0:
            continue
        equal = False
        if last >= 0 and max(number, last) + 1 < m:
            size = chosen[number + 1] - suffix
            other = chosen[last]
            if size == chosen[last + 1] - other:
                equal = True
                for offset in range(size + 1):
                    if text[suffix + offset] != text[other + offset]:
                        equal = False
                        break
        if not equal:
            name += 1
        names[number] = name
        last = number
    return name + 1


@compiled()
def longest_matches(tokens, order, query, lengths):
    """Raise `lengths` (q,) int64 to the longest beginning of each query[i:] that is in `tokens`."""
    for start in range(len(query)):
        low, high = 0, len(order)
        below, above = 0, 0  # tokens in common with the neighbours of [low, high): all within have
        while low < high:  # both neighbours of the place of query[start:] are looked at
            middle = (low + high) // 2
            suffix = order[middle]
            most = min(len(query) - start, len(tokens) - suffix)
            common = min(below, above)
            while common < most and tokens[suffix + common] == query[start + common]:
                common += 1
            lengths[start] = max(lengths[start], common)
            if common == len(query) - start:
                high, above = middle, common
            elif common == len(tokens) - suffix or tokens[suffix + common] < query[start + common]:
                low, below = middle + 1, common
            else:
                high, above = middle, common


@compiled()
def find(tokens, order, span):
    """The rows of `order` whose suffixes begin with `span`: the first, and one behind the last."""
    bounds = np.zeros(2, np.int64)
    for side in range(2):
        low, high = bounds[0], len(order)
        while low < high:
            middle = (low + high) // 2
            suffix = order[middle]
            most = min(len(span), len(tokens) - suffix)
            common = 0
            while common < most and tokens[suffix + common] == span[common]:
                common += 1
            if common == len(span):
                below = side == 1
            elif common == len(tokens) - suffix:
                below = True
            else:
                below = tokens[suffix + common] < span[common]
            if below:
                low = middle + 1
            else:
                high = middle
        bounds[side] = low
    return bounds[0], bounds[1]
