"""Replies that call the calculator come and go in a running batch as each would be alone."""

from types import SimpleNamespace

import numpy as np
import pytest

from nanoeuler.inference.generate import Writer
from nanoeuler.inference.sampling import Sampling
from nanoeuler.serving.batch import Batch
from tests.inference.test_calculator_replies import CALL, ENGINES, PROMPTS, TOKENIZER, writer_on
from tests.serving.asked import Asked, run, step

ENGINES_HERE = ["cpu", "choosing", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(scope="module", params=ENGINES_HERE)
def model(request):
    writer = writer_on(ENGINES[request.param](), end_share=0.02, context=80)
    writer.speculates = True
    return SimpleNamespace(
        transformer=writer.model, tokenizer=TOKENIZER, writer=writer, config=writer.model.config
    )


def ids(asked):
    return [id for piece in asked.pieces for id in piece.ids]


def alone(model, asked):
    (sampling,) = asked.job.samplings
    reply = model.writer.stream(asked.job.prompt, sampling, asked.job.max_tokens)
    "".join(reply)
    return reply.ids


def test_replies_that_come_and_go_have_the_tokens_of_each_alone(model):
    random = np.random.default_rng(3)
    crowd = [
        Asked(PROMPTS[seed % 3], Sampling(1.0, top_p=1.0, seed=seed), int(random.integers(1, 40)))
        for seed in range(16)
    ]
    batch, waiting, most = Batch(model, rows=4), list(crowd), 0
    while waiting or batch.busy:
        if waiting and random.random() < 0.4:
            batch.add(waiting.pop().job)
        step(batch)
        most = max(most, len(batch.rows))
    assert most == 4
    for each in crowd:
        assert ids(each) == alone(model, each)
    everything = [id for each in crowd for id in ids(each)]
    assert CALL in everything
    assert sum(sum(model.writer.calculator.results(ids(each))) for each in crowd) > 20


def test_a_reply_that_is_alone_takes_drafts_and_the_same_tokens(model):
    for seed in range(6):
        asked = Asked(PROMPTS[0], Sampling(1.0, top_p=1.0, seed=seed), 60)
        run(Batch(model), asked)
        plain = Writer(model.transformer, TOKENIZER, calculator=True)
        reply = plain.stream(PROMPTS[0], asked.job.samplings[0], 60)
        "".join(reply)
        assert ids(asked) == reply.ids


def test_results_have_no_log_probability(model):
    asked = Asked(PROMPTS[0], Sampling(1.0, top_p=1.0, seed=2), 40, likeliest=1)
    run(Batch(model), asked)
    scored = [each for piece in asked.pieces for each in piece.scored]
    given = model.writer.calculator.results([each.token for each in scored])
    assert [each.logprob is None for each in scored] == given
    assert any(given)


def test_a_stop_string_is_looked_for_in_what_is_read(model):
    whole = Asked(PROMPTS[0], Sampling(1.0, top_p=1.0, seed=2), 40)
    run(Batch(model), whole)
    result = TOKENIZER.decode_reply(ids(whole))
    assert len(result) < len(ids(whole))
    stop = result[4:6]
    cut = Asked(PROMPTS[0], Sampling(1.0, top_p=1.0, seed=2), 40, stops=[stop])
    run(Batch(model), cut)
    assert cut.finish() == "stop"
    assert cut.text() == result[: result.index(stop)]
