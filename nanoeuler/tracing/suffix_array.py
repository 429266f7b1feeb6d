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
    smaller, starts, ends = classify(text, int(text.max()) + 1)
    first = np.flatnonzero(smaller[1:] & ~smaller[:-1]) + 1  # the leftmost of smaller ones
    order = np.empty(len(text), np.int32)
    chosen = first.astype(np.int32)
    induce(text, smaller, starts, ends, chosen, order)
    if len(chosen) > 1:
        names, distinct = name_substrings(text, chosen, order)
        if distinct < len(chosen):
            chosen = chosen[suffix_array(names)]
        else:
            chosen[names] = chosen.copy()
        induce(text, smaller, starts, ends, chosen, order)
    return order


@compiled()
def classify(text, size):
    """Which suffixes are smaller than the next one (n,), and where each token's suffixes begin
    among all and the smaller ones of them: (size,) and (size,) int64."""
    n = len(text)
    smaller = np.zeros(n, np.bool_)  # the last one is larger than the empty one behind it
    counts, of_smaller = np.zeros(size + 1, np.int64), np.zeros(size, np.int64)
    counts[text[n - 1] + 1] += 1
    for i in range(n - 2, -1, -1):
        token = text[i]
        smaller[i] = token < text[i + 1] or (token == text[i + 1] and smaller[i + 1])
        counts[token + 1] += 1
        of_smaller[token] += smaller[i]
    ends = np.cumsum(counts)
    return smaller, ends[:-1].copy(), ends[1:] - of_smaller


@compiled()
def induce(text, smaller, starts, middles, chosen, order):
    """Put all suffixes into `order`, given the leftmost smaller ones as `chosen`, in their order.

    A token's larger suffixes lie from `starts` on, its smaller ones from `middles` on. Where those
    of `chosen` are out of order, the suffixes are ordered by their tokens up to the next of them.
    """
    n = len(text)
    order[:] = -1
    places = middles.copy()
    for suffix in chosen:
        order[places[text[suffix]]] = suffix
        places[text[suffix]] += 1
    places = starts.copy()
    order[places[text[n - 1]]] = n - 1
    places[text[n - 1]] += 1
    for i in range(n):
        before = order[i] - 1
        if before >= 0 and not smaller[before]:
            order[places[text[before]]] = before
            places[text[before]] += 1
    places[:-1] = starts[1:]
    places[-1] = n
    for i in range(n - 1, -1, -1):
        before = order[i] - 1
        if before >= 0 and smaller[before]:
            places[text[before]] -= 1
            order[places[text[before]]] = before


@compiled()
def name_substrings(text, chosen, order):
    """Numbers (m,) int32 that order the substrings between neighbours of `chosen` as `order` does,
    equal for equal ones, and how many there are."""
    n, m = len(text), len(chosen)
    which = np.full(n, -1, np.int32)
    for number in range(m):
        which[chosen[number]] = number
    names = np.empty(m, np.int32)
    name, last = -1, -1
    for suffix in order:
        number = which[suffix]
        if number < 0:
            continue
        stop = chosen[number + 1] if number + 1 < m else n
        equal = False
        if last >= 0:
            last_stop = chosen[last + 1] if last + 1 < m else n
            other = chosen[last]
            if last_stop - other == stop - suffix and max(stop, last_stop) < n:
                equal = True
                for offset in range(stop - suffix + 1):
                    if text[suffix + offset] != text[other + offset]:
                        equal = False
                        break
        name += not equal
        names[number] = name
        last = number
    return names, name + 1


@compiled()
def longest_matches(tokens, order, query, lengths):
    """Raise `lengths` (q,) int64 to the longest beginning of each query[i:] that is in `tokens`."""
    for start in range(len(query)):
        low, high = 0, len(order)
        while low < high:  # both neighbours of the place of query[start:] are looked at
            middle = (low + high) // 2
            suffix = order[middle]
            most = min(len(query) - start, len(tokens) - suffix)
            common = 0
            while common < most and tokens[suffix + common] == query[start + common]:
                common += 1
            lengths[start] = max(lengths[start], common)
            if common == len(query) - start:
                high = middle
            elif common == len(tokens) - suffix or tokens[suffix + common] < query[start + common]:
                low = middle + 1
            else:
                high = middle


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
