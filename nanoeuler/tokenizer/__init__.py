"""Byte-level BPE: words, learning, encoding, decoding, file format, and token shards on disk."""

from nanoeuler.tokenizer.tokenizer import StreamDecoder, Tokenizer

__all__ = ["StreamDecoder", "Tokenizer"]
