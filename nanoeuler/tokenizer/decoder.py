"""Decode a stream of ids: a character appears once all its bytes have arrived."""

import codecs

from nanoeuler.tokenizer.tokenizer import Tokenizer


class StreamDecoder:
    """Decodes ids that arrive one by one, or several at a time, and continue a text.

    The joined results of `push` and `flush` are `tokenizer.decode` of all ids.
    """

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self.decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, *ids: int) -> str:
        """Return the text that `ids` complete, empty while bytes of a character are missing."""
        return self.decoder.decode(self.tokenizer.decode_bytes(ids, continues=True))

    def flush(self) -> str:
        """Return the held-back bytes after the last id, as U+FFFD, and reset the decoder."""
        return self.decoder.decode(b"", final=True)
