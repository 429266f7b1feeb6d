"""Continuing token ids: cache, batches, window and streams change the cost, never the text."""

import numpy as np
import pytest

from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.inference.decoder import Decoder, Row
from nanoeuler.inference.generate import Writer
from nanoeuler.inference.sampling import GREEDY, Sampling
from nanoeuler.model.files import load_model
from nanoeuler.model.transformer import Batch, Transformer

WARM = Sampling(temperature=1.0, top_p=1.0, seed=5)


@pytest.fixture(scope="module")
def writer(base_folder, tokenizer):
    return writer_of(base_folder, tokenizer)


@pytest.fixture(scope="module")
def tuned(tuned_folder, tokenizer):
    return writer_of(tuned_folder, tokenizer)


def writer_of(folder, tokenizer):
    saved, backend = load_model(folder), ReferenceBackend()
    return Writer(
        Transformer(saved.config, backend.from_host(saved.parameters), backend), tokenizer
    )


def random_prompts(lengths, seed=4):
    random = np.random.default_rng(seed)
    return [[0, *random.integers(16, 384, length - 1).tolist()] for length in lengths]


def continued_without_cache(writer, prompt, max_tokens):
    """Greedy decoding by a whole forward pass for every token, with the window's rule written out
    once more."""
    model, view, written = writer.model, list(prompt), []
    context = model.config.context
    for _ in range(max_tokens):
        if len(view) > context:
            view = view[-(context - context // 4) :]
        ids = np.array([view], np.int32)
        hidden = model.forward(
            Batch(ids, np.arange(len(view), dtype=np.int32)[None], np.zeros_like(ids))
        ).stream.normed
        logits = np.where(writer.allowed_V, model.first_logits(hidden[-1:])[0], -np.inf)
        token = int(logits.argmax())
        if token == writer.tokenizer.end_id:
            break
        written.append(token)
        view.append(token)
    return written


@pytest.mark.parametrize("length", [1, 2, 31, 95, 96, 97, 300])
def test_cached_and_uncached_decoding_give_the_same_greedy_tokens(writer, length):
    (prompt,) = random_prompts([length], seed=length + 1)
    (continuation,) = writer.batch([prompt], GREEDY, 160)
    assert continuation.ids == continued_without_cache(writer, prompt, 160)
    assert len(set(continuation.ids)) > 20  # it wanders, so that agreement means something


def test_a_tuned_model_writes_the_same_with_and_without_cache(tuned):
    prompt = tuned.frame("Name a colour.")
    (continuation,) = tuned.batch([prompt], GREEDY, 150)
    assert continuation.ids == continued_without_cache(tuned, prompt, 150)


@pytest.mark.parametrize("sampling", [GREEDY, WARM])
def test_a_batch_of_unequal_prompts_gives_what_each_gives_alone(writer, sampling):
    prompts = random_prompts([40, 1, 7, 95, 7, 120, 23])
    alone = [writer.batch([prompt], sampling, 60)[0] for prompt in prompts]
    assert writer.batch(prompts, sampling, 60) == alone
    assert writer.batch(prompts, sampling, 60, rows=3) == alone
    assert [writer.batch([], sampling, 60)] == [[]]


def test_prompts_that_are_the_same_are_read_once_and_continue_as_alone(writer):
    one, other = random_prompts([40, 33])
    prompts = [one, other, one, one, other, [0, *one[1:]]]
    positions = 500 * np.arange(len(prompts))
    decoding = writer.decoding(prompts, WARM, 70, positions)
    assert decoding.decoder.cache.lengths.tolist() == [len(prompt) - 1 for prompt in prompts]
    while decoding.step():
        pass
    for prompt, position, written in zip(prompts, positions, decoding.continuations, strict=True):
        alone = writer.decoding([prompt], WARM, 70, position)
        while alone.step():
            pass
        assert alone.continuations == [written]
    assert len({tuple(each.ids) for each in decoding.continuations}) == len(prompts)


def test_rows_that_end_leave_and_the_others_go_on(tuned, tokenizer):
    from nanoeuler.model.template import alpaca

    prompts = [
        tuned.frame(alpaca(text))
        for text in ("Count.", "Name a colour.", "Where does the fox live?")
    ]
    continuations = tuned.batch(prompts, GREEDY, 60)
    assert [tokenizer.decode(each.ids) for each in continuations] == [
        "one two three four five six seven",
        "blue",
        "In the old mill, café “Zur Mühle”.",
    ]
    assert all(each.ended for each in continuations)
    assert len({len(each.ids) for each in continuations}) == 3
    short = tuned.batch(prompts, GREEDY, 4)
    assert [each.ids for each in short] == [each.ids[:4] for each in continuations]
    assert [each.ended for each in short] == [len(each.ids) < 4 for each in continuations]


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others(writer):
    (prompt,) = random_prompts([9])

    def tokens(seed):
        return writer.batch([prompt], Sampling(temperature=1.0, seed=seed), 30)[0].ids

    assert tokens(1) == tokens(1)
    assert tokens(1) != tokens(2)


def test_a_continuation_taken_up_again_is_the_uninterrupted_one(writer):
    (prompt,) = random_prompts([9])
    whole = writer.batch([prompt], WARM, 40)[0].ids
    assert writer.batch([prompt + whole[:15]], WARM, 25)[0].ids == whole[15:]


def test_no_reserved_token_and_no_padding_of_the_vocabulary_is_ever_written(writer, tokenizer):
    written = {
        token
        for continuation in writer.batch(
            random_prompts([5] * 16), Sampling(temperature=50.0, top_p=1.0), 200
        )
        for token in continuation.ids
    }
    assert len(written) > 300
    assert min(written) >= 16
    model_with_more_tokens = Writer(Transformer(*wider_vocabulary(writer.model)), tokenizer)
    assert model_with_more_tokens.allowed_V.shape == (400,)
    assert np.flatnonzero(model_with_more_tokens.allowed_V).tolist() == [0, *range(16, 384)]
    written = {
        token
        for each in model_with_more_tokens.batch(
            random_prompts([5] * 4), Sampling(temperature=50.0, top_p=1.0), 200
        )
        for token in each.ids
    }
    assert max(written) < 384


def wider_vocabulary(model):
    from dataclasses import replace

    from nanoeuler.model.flat import initial_parameters

    config = replace(model.config, vocab_size=400)
    return config, initial_parameters(config, 1), model.backend


# ---- the window


def reading(writer, *prompts):
    """A decoder that has read some prompts."""
    decoder = Decoder(writer.model, len(prompts), 96, writer.allowed_V)
    decoder.rows += [Row(prompt, GREEDY) for prompt in prompts]
    decoder.read(*decoder.unread(), decoder.cache)
    return decoder


def read(decoder, tokens):
    """The logits behind a new token of each row."""
    for row, token in zip(decoder.rows, tokens, strict=True):
        row.ids.append(token)
    return decoder.read(*decoder.unread(), decoder.cache)


def test_a_full_window_keeps_the_newest_three_quarters(writer):
    decoder = reading(writer, list(range(96)))
    (row,) = decoder.rows
    assert row.dropped == 0
    assert decoder.cache.lengths.tolist() == [96]
    read(decoder, [96])
    assert row.dropped == 25
    assert row.newest(row.visible) == list(range(25, 97))
    assert decoder.cache.lengths.tolist() == [72]
    read(decoder, [97])
    assert decoder.cache.lengths.tolist() == [73]


def test_a_prompt_beyond_the_context_is_read_from_where_it_fits(writer):
    rows = reading(writer, list(range(300)), [7]).rows
    assert [row.dropped for row in rows] == [228, 0]
    assert [row.newest(row.visible) for row in rows] == [list(range(228, 300)), [7]]


def test_a_row_that_slides_is_read_again_by_itself(writer):
    long, short = random_prompts([96, 40])
    together, alone = reading(writer, long, short), reading(writer, long)
    both, one = read(together, [7, 8]), read(alone, [7])
    assert [row.dropped for row in together.rows] == [25, 0]
    assert together.cache.lengths.tolist() == [72, 41]
    assert (2, 1) in {shape[:2] for shape in together.cache.memory.passes}
    assert (2, 72) not in {shape[:2] for shape in together.cache.memory.passes}
    np.testing.assert_allclose(both[0], one[0], rtol=1e-4, atol=1e-5)


def test_the_cache_is_no_longer_than_a_text_can_grow(writer):
    spare = 2 * writer.model.backend.drafted_tokens
    for tokens, capacity in ((30, 37 + spare), (3000, 96)):
        assert writer.decoding([[0] * 7], GREEDY, tokens).decoder.cache.capacity == capacity


def test_dropped_tokens_are_counted_in_the_continuation(writer):
    (prompt,) = random_prompts([90])
    (kept,) = writer.batch([prompt], GREEDY, 7)  # the last token is written, not read
    (slid,) = writer.batch([prompt], GREEDY, 8)
    assert (kept.dropped, slid.dropped) == (0, 25)


# ---- streams


def test_a_stream_is_the_text_of_the_tokens_in_pieces(tuned, tokenizer):
    from nanoeuler.model.template import alpaca

    reply = tuned.stream(tuned.frame(alpaca("Where does the fox live?")), GREEDY, 60)
    pieces = list(reply)
    assert "".join(pieces) == "In the old mill, café “Zur Mühle”." == tokenizer.decode(reply.ids)
    assert len([piece for piece in pieces if piece]) > 5
    assert not any("�" in piece for piece in pieces)  # no half characters
    assert reply.ended
    assert reply.tokens_per_second > 0
    assert reply.first_seconds > 0
    assert reply.prompt_tokens == len(tuned.frame(alpaca("Where does the fox live?")))


def test_a_stream_says_what_was_written_so_far_and_stops_when_it_is_left(writer):
    (prompt,) = random_prompts([9])
    reply = writer.stream(prompt, WARM, 50)
    assert reply.tokens_per_second is None
    for _ in zip(range(3), reply, strict=False):
        pass
    assert len(reply.ids) == 3 or len(reply.ids) == 4  # zip may have asked for one more
    assert not reply.ended
    assert reply.ids == writer.batch([prompt], WARM, 50)[0].ids[: len(reply.ids)]


def test_half_a_character_at_the_limit_becomes_a_replacement_mark(tuned, tokenizer):
    from nanoeuler.model.template import alpaca

    prompt = tuned.frame(alpaca("Where does the fox live?"))
    texts = {limit: "".join(tuned.stream(prompt, GREEDY, limit)) for limit in range(1, 40)}
    ids = tuned.batch([prompt], GREEDY, 60)[0].ids
    assert texts == {limit: tokenizer.decode(ids[:limit]) for limit in range(1, 40)}


def test_a_prompt_without_tokens_is_refused(writer):
    with pytest.raises(ValueError, match="a prompt has no tokens"):
        writer.batch([[]], GREEDY, 5)


def test_a_frame_starts_with_the_end_of_what_was_before(writer, tokenizer):
    assert writer.frame("") == [tokenizer.end_id]
    assert writer.frame("</s>")[0] == tokenizer.end_id
    assert tokenizer.end_id not in writer.frame("</s>")[1:]


def test_spaced_prompts_draw_numbers_of_their_own(writer):
    prompts = random_prompts([9]) * 20
    together, apart = (writer.batch(prompts, WARM, 8, spacing=distance) for distance in (0, 1000))
    assert len({tuple(each.ids) for each in together}) == 1
    assert len({tuple(each.ids) for each in apart}) > 10
    assert [each.ids for each in writer.batch(prompts, WARM, 8, rows=3, spacing=1000)] == [
        each.ids for each in apart
    ]
