"""Sequences that join and leave a running batch are written as each would be alone."""

import re
import threading
import time

import numpy as np
import pytest

import nanoeuler
from nanoeuler.inference.api import LanguageModel
from nanoeuler.inference.forms import Form, regex_grammar
from nanoeuler.inference.sampling import Sampling
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.files import SavedModel, load_model, save_model
from nanoeuler.serving.batch import PIECE, Batch
from nanoeuler.serving.requests import tokens_left
from tests.choosing_backend import ChoosingReference
from tests.inference.conftest import FIELDS, wide_parameters
from tests.serving.asked import Asked, alone, random_prompt, run, step

ON_GPU = {"cuda": {"head_size": 32}, "cuda, GPT-2": {"family": "gpt2", "dim": 128, "kv_heads": 4}}
GPU = [pytest.param(name, marks=pytest.mark.gpu) for name in ON_GPU]


@pytest.fixture(scope="module", params=["cpu", "choosing", *GPU])
def base(request, base_folder, tokenizer, tokenizer_path, tmp_path_factory):
    if request.param == "cpu":
        return nanoeuler.load(base_folder, device="cpu")
    if request.param in ON_GPU:
        folder = tmp_path_factory.mktemp("gpu") / "model"
        config = ModelConfig.from_dict(FIELDS | ON_GPU[request.param])
        save_model(
            folder, SavedModel(config, wide_parameters(config), tokenizer_path, "pretrain", None)
        )
        return nanoeuler.load(folder, "cuda", precision="fp32")
    return LanguageModel(load_model(base_folder), tokenizer, ChoosingReference())


@pytest.fixture(scope="module")
def tuned(tuned_folder):
    return nanoeuler.load(tuned_folder, device="cpu")


def test_one_request_gets_what_generate_writes(base):
    asked = Asked(random_prompt(30, 1), Sampling(temperature=1.0, seed=5), 60)
    run(Batch(base), asked)
    reply = base.writer.stream(asked.job.prompt, asked.job.samplings[0], 60)
    assert asked.text() == "".join(reply)
    assert asked.tokens() == len(reply.ids)
    assert asked.finish() == ("stop" if reply.ended else "length")


def test_requests_that_come_and_go_get_what_generate_writes_for_each_alone(base):
    random = np.random.default_rng(7)
    crowd = []
    for seed in range(14):
        sampling = Sampling(float(random.choice([0.0, 0.8, 1.3])), seed=seed)
        prompt = random_prompt(int(random.integers(1, 60)), seed)
        crowd.append(Asked(prompt, sampling, int(random.integers(1, 37))))
    batch = Batch(base, rows=4)
    waiting, most = list(crowd), 0
    while waiting or batch.busy:
        if waiting and random.random() < 0.4:
            batch.add(waiting.pop().job)
        step(batch, time.monotonic())
        most = max(most, len(batch.rows))
    assert most == 4
    assert [[each.text()] for each in crowd] == [alone(base, each) for each in crowd]


def test_another_thread_than_the_one_that_loaded_the_model_decodes(base):
    crowd = [Asked(random_prompt(7 + n, n), Sampling(1.0, seed=n), 25 + n) for n in range(5)]
    thread = threading.Thread(target=run, args=(Batch(base), *crowd))
    thread.start()
    thread.join()
    assert [[each.text()] for each in crowd] == [alone(base, each) for each in crowd]


def test_several_replies_to_one_prompt_share_its_reading(base):
    samplings = [Sampling(temperature=1.0, seed=seed) for seed in (3, 4, 5)]
    asked = Asked(random_prompt(20, 2), samplings, 30)
    run(Batch(base), asked)
    assert [asked.text(choice) for choice in range(3)] == alone(base, asked)
    assert len(set(alone(base, asked))) == 3


def test_a_reply_has_the_same_logprobs_to_the_last_bit_alone_and_in_company(base_folder):
    model = nanoeuler.load(base_folder, device="cpu")
    first = Asked(random_prompt(40, 3), Sampling(1.0, seed=2), 50, likeliest=2)
    again = Asked(random_prompt(40, 3), Sampling(1.0, seed=2), 50, likeliest=2)
    company = [Asked(random_prompt(5 + n, n), Sampling(1.0, seed=n), 40) for n in range(20)]
    run(Batch(model), first)
    run(Batch(model), *company[:9], again, *company[9:])
    assert first.pieces == again.pieces


def test_a_long_prompt_is_read_in_pieces_between_the_tokens_of_the_others(tmp_path, tokenizer_path):
    config = ModelConfig.from_dict(FIELDS | {"context": 1000})
    saved = SavedModel(config, wide_parameters(config), tokenizer_path, "pretrain", None)
    save_model(tmp_path / "long", saved)
    long = nanoeuler.load(tmp_path / "long", device="cpu")
    batch = Batch(long)
    short, reader = Asked(random_prompt(3, 1), max_tokens=50), Asked(random_prompt(700, 2))
    batch.add(short.job)
    step(batch, 0.0)
    batch.add(reader.job)
    steps = 0
    while not reader.pieces:
        before = short.tokens()
        step(batch, 0.0)
        steps += 1
        assert short.tokens() == before + 1
    assert steps == -(-700 // PIECE)


def test_stop_strings_end_a_reply_before_them(tuned):
    prompt = tuned.writer.frame(tuned.prompt("Count."))
    whole, cut, late = (
        Asked(prompt, max_tokens=60, stops=stops)
        for stops in ([], ["four", "e fo"], ["seven eight", "seventh"])
    )
    run(Batch(tuned), whole, cut, late)
    assert whole.text() == late.text() == "one two three four five six seven"
    assert cut.text() == "one two thre"
    assert whole.finish() == cut.finish() == late.finish() == "stop"
    assert cut.tokens() < whole.tokens()


def test_the_context_is_the_longest_that_prompt_and_reply_can_be(base):
    prompt = random_prompt(90, 4)
    asked = Asked(prompt, max_tokens=tokens_left(None, prompt, base.config.context, "prompt"))
    assert asked.job.max_tokens == 7
    run(Batch(base), asked)
    assert [asked.text()] == alone(base, asked)


def test_scores_of_prompt_and_reply_are_those_of_the_model(base):
    prompt = random_prompt(12, 6)
    asked = Asked(prompt, max_tokens=3, likeliest=4, score_prompt=True)
    run(Batch(base), asked)
    scores = [scored for piece in asked.pieces for scored in piece.scored]
    ids = [scored.token for scored in scores]
    assert ids[: len(prompt)] == prompt
    logits = base.logits(ids).astype(np.float64)
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert scores[0] == (prompt[0], None, [])
    for at, scored in enumerate(scores[1:]):
        assert scored.token == ids[at + 1]
        # cached and uncached attention sum in other orders
        assert scored.logprob == pytest.approx(logprobs[at, scored.token], abs=2e-4)
        assert len(scored.likeliest) == 4
        best = sorted(logprobs[at, base.writer.allowed_V], reverse=True)[:4]
        assert [value for _, value in scored.likeliest] == pytest.approx(best, abs=2e-4)
    only = Asked(prompt, max_tokens=0, score_prompt=True, likeliest=0)
    run(Batch(base), only)
    assert only.tokens() == 0
    assert only.finish() == "length"


def test_who_gives_up_leaves_and_who_is_late_fails(base):
    batch = Batch(base, rows=2)
    given_up, late, waits = (Asked(random_prompt(5, n), max_tokens=50) for n in range(3))
    late.job.deadline = 10.0
    for each in (given_up, late, waits):
        batch.add(each.job)
    step(batch, 5.0)
    assert len(batch.rows) == 2
    given_up.job.cancelled = True
    step(batch, 6.0)
    written = given_up.tokens()
    step(batch, 11.0)
    assert given_up.tokens() == written
    assert late.pieces[-1] == (-1, [], [], "timeout", 0)
    while batch.busy:
        step(batch, 12.0)
    assert [waits.text()] == alone(base, waits)


# ---- of a given form


def test_rows_of_a_given_form_come_and_go_beside_others(base):
    """They keep to their own forms; the others get what they get alone, to the last token."""
    regexes = ["[0-9]{3}", None, "[a-f ]{30}", "(yes|no)", None, None, "x+y", "[0-9]{2,}"]
    crowd = []
    for seed, regex in enumerate(regexes * 2):
        form = regex and Form.of(base.tokenizer, regex_grammar(regex))
        prompt = random_prompt(1 + 4 * seed, seed)
        crowd.append(Asked(prompt, Sampling(1.0, seed=seed), 10 + seed, form=form))
    batch = Batch(base, rows=4)
    for asked in crowd:
        batch.add(asked.job)
        step(batch)
    run(batch)
    for regex, asked in zip(regexes * 2, crowd, strict=True):
        if regex is None:
            assert asked.text() == alone(base, asked)[0]
        else:
            assert asked.finish() == "length" or re.fullmatch(regex, asked.text())
            form = asked.job.form
            reply = base.writer.stream(
                asked.job.prompt, asked.job.samplings[0], asked.job.max_tokens, form=form
            )
            assert asked.text() == "".join(reply)
    assert [asked.finish() for asked in crowd[::8]] == ["stop"] * 2


def test_replies_to_one_prompt_have_the_form_each(base):
    samplings = [Sampling(1.0, seed=seed) for seed in range(4)]
    form = Form.of(base.tokenizer, regex_grammar("[a-z]{6}"))
    asked = Asked(random_prompt(9, 3), samplings, 20, form=form, likeliest=1)
    run(Batch(base, rows=4), asked)
    texts = {asked.text(choice) for choice in range(4)}
    assert len(texts) == 4
    assert all(re.fullmatch("[a-z]{6}", text) for text in texts)


def test_a_form_that_cannot_go_on_fails_its_own_reply_alone(base):
    form = Form.of(base.tokenizer, regex_grammar("[a&&b]"))
    failing = Asked(random_prompt(5, 1), Sampling(1.0), 20, form=form)
    other = Asked(random_prompt(9, 2), Sampling(1.0), 20)
    run(Batch(base, rows=4), failing, other)
    assert [piece.finish for piece in failing.pieces] == ["form"]
    assert other.text() == alone(base, other)[0]
