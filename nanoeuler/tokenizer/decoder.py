"""Decoding a stream: text appears as soon as it is whole, never as half a character."""

import codecs

from nanoeuler.tokenizer.tokenizer import Tokenizer


class StreamDecoder:
    """Text of ids that arrive one by one. All that `push` and `flush` return, joined, is `tokenizer.decode` of all ids."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self.decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, index: int) -> str:
        """The text that `index` completes: empty while a character's last bytes are still to come."""
        return self.decoder.decode(self.tokenizer.decode_bytes([index]))

    def flush(self) -> str:
        """What was held back when no more ids come (U+FFFD for half a character). The decoder can be used again."""
        return self.decoder.decode(b"", final=True)
