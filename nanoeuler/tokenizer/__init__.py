"""Byte-level BPE: words, learning, encoding, decoding, file format, and token shards on disk."""

from nanoeuler.tokenizer.decoder import StreamDecoder
from nanoeuler.tokenizer.tokenizer import Tokenizer

__all__ = ["StreamDecoder", "Tokenizer"]
