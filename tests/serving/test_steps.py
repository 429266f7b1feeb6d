"""A reply that is alone takes drafts, which change its steps and not its tokens; a device reads
short prompts together, and is asked for steps ahead."""

import numpy as np
import pytest

import nanoeuler
from nanoeuler.inference.api import LanguageModel
from nanoeuler.inference.sampling import GREEDY, Sampling
from nanoeuler.model.files import load_model
from nanoeuler.serving.batch import MOST_PROMPTS, Batch
from tests.choosing_backend import ChoosingReference
from tests.inference.conftest import RECORDS
from tests.serving.asked import Asked, alone, random_prompt, run, step

COUNT = "Count."


@pytest.fixture(scope="module", params=["cpu", "choosing"])
def load(request, tokenizer):
    def load(folder, **options):
        if request.param == "cpu":
            return nanoeuler.load(folder, device="cpu", **options)
        return LanguageModel(load_model(folder), tokenizer, ChoosingReference(), **options)

    return load


@pytest.fixture(scope="module")
def tuned(load, tuned_folder):
    return load(tuned_folder)


def counting(tuned, max_tokens=60):
    return Asked(tuned.writer.frame(tuned.prompt(COUNT)), GREEDY, max_tokens)


def steps_of(model, asked):
    """How many steps a reply takes that is alone."""
    batch = Batch(model)
    batch.add(asked.job)
    steps = 0
    while batch.busy:
        step(batch)
        steps += 1
    return steps


def test_a_reply_alone_takes_several_tokens_a_step_and_is_what_plain_decoding_gives(
    load, tuned, tuned_folder
):
    plain = load(tuned_folder, speculation=False)
    drafted, undrafted = counting(tuned), counting(plain)
    steps, plain_steps = steps_of(tuned, drafted), steps_of(plain, undrafted)
    assert drafted.text() == undrafted.text() == RECORDS[COUNT]
    assert drafted.tokens() == undrafted.tokens()
    # two tokens in the first step, which reads the prompt; and `</s>`
    assert plain_steps == undrafted.tokens()
    assert steps < 0.6 * plain_steps


@pytest.mark.parametrize("limit", range(1, 12))
def test_a_limit_may_lie_among_drafts(tuned, limit):
    asked = counting(tuned, limit)
    run(Batch(tuned), asked)
    assert [asked.text()] == alone(tuned, asked)
    assert asked.tokens() == limit
    assert asked.finish() == "length"


def test_a_stop_string_may_lie_among_drafts(tuned):
    asked = Asked(tuned.writer.frame(tuned.prompt(COUNT)), GREEDY, 60, stops=["four"])
    run(Batch(tuned), asked)
    assert asked.text() == "one two three "
    assert asked.finish() == "stop"


def test_a_reply_with_log_probabilities_takes_no_drafts(tuned):
    asked = Asked(tuned.writer.frame(tuned.prompt(COUNT)), GREEDY, 60, likeliest=1)
    assert steps_of(tuned, asked) == asked.tokens()
    assert all(len(piece.scored) == len(piece.ids) for piece in asked.pieces)
    assert asked.text() == RECORDS[COUNT]


def test_a_reply_goes_on_with_and_without_drafts_as_others_come_and_go(load, base_folder):
    base = load(base_folder)
    batch, random = Batch(base, rows=3), np.random.default_rng(5)
    long = Asked(random_prompt(4, 99), Sampling(1.0, seed=99), 90)
    others = [Asked(random_prompt(3 + n, n), Sampling(0.9, seed=n), 2 + n % 5) for n in range(12)]
    waiting, company = list(others), set()
    batch.add(long.job)
    while batch.busy:
        if waiting and random.random() < 0.3:
            batch.add(waiting.pop().job)
        step(batch)
        company.add(len(batch.rows))
    assert {1, 2, 3} <= company
    assert [[each.text()] for each in (long, *others)] == [
        alone(base, each) for each in (long, *others)
    ]


def test_a_device_reads_short_prompts_together(load, base_folder):
    base = load(base_folder)
    crowd = [Asked(random_prompt(1 + n % 7, n), Sampling(1.0, seed=n), 6) for n in range(20)]
    batch = Batch(base, rows=32)
    for each in crowd:
        batch.add(each.job)
    batch.step(0.0)
    if batch.on_device:
        assert len(batch.rows) == MOST_PROMPTS
    run(batch)
    assert [[each.text()] for each in crowd] == [alone(base, each) for each in crowd]


def test_prompts_read_together_are_short_enough(load, endless_folder):
    endless = load(endless_folder)
    lengths = [300, 512, 400, 128, 129, 250, 256, 90, 513, 40, *[120] * 9]
    crowd = [Asked(random_prompt(n, i), Sampling(1.0, seed=i), 3) for i, n in enumerate(lengths)]
    batch = Batch(endless, rows=32)
    for each in crowd:
        batch.add(each.job)
    run(batch)
    if batch.on_device:
        assert {each[:2] for each in passes_of(batch)} == {
            *((2, 512), (2, 448), (4, 256)),  # of up to 1,024 tokens
            *((1, 512), (1, 64)),  # of 513
            *((8, 128), (2, 128)),
        }
    assert [[each.text()] for each in crowd] == [alone(endless, each) for each in crowd]


def passes_of(batch):
    """Rows, tokens and kind of the passes that are kept for prompts."""
    known = batch.prompt_cache.memory.passes.items()
    return {(rows, width, *kind) for (rows, _, *kind), each in known for width in each.programs}


def test_what_several_steps_wrote_is_one_piece_when_nobody_took_it(base_folder):
    base = nanoeuler.load(base_folder, device="cpu", speculation=False)
    asked = Asked(random_prompt(5, 1), Sampling(1.0, seed=3), 40)
    batch = Batch(base)
    batch.add(asked.job)
    for _ in range(10):
        batch.step(0.0)
    assert asked.pieces == []
    batch.deliver()
    (piece,) = asked.pieces
    assert len(piece.ids) == 11  # the first comes with the prompt
    run(batch)
    assert [asked.text()] == alone(base, asked)


@pytest.mark.parametrize("rows", [3, 8])
def test_a_device_that_was_warmed_up_has_recorded_what_requests_need(
    tokenizer, endless_folder, rows
):
    model = LanguageModel(load_model(endless_folder), tokenizer, ChoosingReference())
    batch = Batch(model, rows)
    batch.warm()
    recorded = passes_of(batch)
    single = [[length] for length in (1, 5, 32, 33, 100, 512, 513, 1100)]
    for lengths in (*single, [9] * 8, [250] * 3, [512, 3]):
        run(batch, *(Asked(random_prompt(length, seed=length), max_tokens=2) for length in lengths))
    assert passes_of(batch) == recorded
    assert max(count for _, count, _ in batch.decoder.cache.memory.samplers) == rows
