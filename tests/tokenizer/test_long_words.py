"""Megabytes of one thing, which regular expressions and quadratic merge loops cannot handle."""

import time

import pytest
import tokenizers

from nanoeuler.tokenizer import Tokenizer

MEGABYTES = {
    "one word": b"the" * 1_000_000,
    "one letter": b"a" * 3_000_000,
    "one other": "é東".encode() * 600_000,
    "spaces": b" " * 3_000_000,
    "newlines": b"\n" * 3_000_000,
    "NULs": bytes(3_000_000),
    "emoji": "👩🏽\u200d🚀🇫🇷".encode() * 120_000,
    "combining marks": "e\u0301\u0301".encode() * 600_000,
    "bytes that are not UTF-8": b"\xff\x80 \xe3\x80" * 600_000,
}


@pytest.mark.parametrize("name", MEGABYTES)
def test_megabytes_of_anything_take_linear_time_and_have_the_ids_of_tokenizers(
    tokenizer: Tokenizer, peer: tokenizers.Tokenizer, name: str
):
    """A tenth of the text takes about a tenth of the time, and the ids decode to the text.

    tiktoken gives up on some texts. `tokenizers` takes half a second for a megabyte. So it reads
    all of one word, and a fifth of other texts.
    """
    data = MEGABYTES[name]
    seconds = []
    for size in (len(data) // 10, len(data)):
        began = time.process_time()  # other programs do not count
        ids = tokenizer.encode(data[:size])
        seconds.append(time.process_time() - began)
        assert tokenizer.decode_bytes(ids) == data[:size]
    assert seconds[1] < 40 * seconds[0] + 1  # quadratic would be a hundred times
    if name == "bytes that are not UTF-8":  # which `tokenizers` does not read
        return
    if name != "one word":
        data = data[: len(data) // 5]
        ids = tokenizer.encode(data)
    (expected,) = peer.encode_batch_fast([data.decode()])  # ids without places in the text
    assert ids.tolist() == expected.ids
