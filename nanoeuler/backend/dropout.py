"""Which elements the op `dropout` keeps: random numbers that are a hash of where they are used."""

import numpy as np

Array = np.ndarray


def kept(seeds_N: Array, salt: int, share: float, columns: int) -> Array:
    """(N, columns) booleans, False in about `share`; a row's are a function of its seed."""
    rows_N = mixed(seeds_N.astype(np.uint32) ^ mixed(np.array([salt], np.uint32)))
    columns_I = mixed(np.arange(columns, dtype=np.uint32))
    return mixed(rows_N[:, None] ^ columns_I) >= threshold(share)


def threshold(share: float) -> np.uint32:
    """What hashes to less is dropped."""
    return np.uint32(share * 2**32)


def mixed(words: Array) -> Array:
    """uint32 whose bits each depend on all bits of a word: MurmurHash3's end (Appleby 2011)."""
    words = (words ^ (words >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    words = (words ^ (words >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return words ^ (words >> np.uint32(16))
