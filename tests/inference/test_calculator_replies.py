"""A model that calls the calculator: the engine puts results in, whatever decodes.

The model is a chain: calls begin, end, nest and stay open at any place.
"""

import contextlib
import functools
import re

import numpy as np
import pytest

from nanoeuler.backend import make_backend
from nanoeuler.backend.cpu.engine import CpuBackend
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.inference.chat import Chat
from nanoeuler.inference.conversation import Conversation
from nanoeuler.inference.generate import Writer
from nanoeuler.inference.sampling import GREEDY, Sampling, sample
from nanoeuler.inference.speculation import Speculation
from nanoeuler.model.calculator import calculate
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.vocabulary import build
from tests.choosing_backend import ChoosingReference
from tests.models import chain

ENGINES = {
    "reference": lambda: ReferenceBackend(np.float32),
    "cpu": lambda: CpuBackend(1),
    "choosing": lambda: ChoosingReference(np.float32),
    "cuda": lambda: make_backend("cuda", precision="fp32"),
}
TOKENIZER = Tokenizer(build([]))  # a token is a byte
END, CALL, CALL_END = TOKENIZER.end_id, *TOKENIZER.call_ids
DIGITS, SIGNS, WORDS = (TOKENIZER.encode(text).tolist() for text in ("0123456789", "+-*/", " abc"))
WARM = Sampling(temperature=1.0, top_p=1.0, seed=2)


def calling(end_share=0.0):
    """Chances of the next token behind each: (V, V)."""
    chances = np.full((TOKENIZER.vocab_size,) * 2, 1e-9)
    chances[:, WORDS] += 0.4 / len(WORDS)
    chances[:, CALL] += 0.4
    chances[:, DIGITS] += 0.2 / len(DIGITS)
    for opening in (CALL, *SIGNS):
        chances[opening] = 1e-9
        chances[opening, DIGITS] = 0.95 / len(DIGITS)
        chances[opening, CALL] = 0.05
    for digit in DIGITS:
        chances[digit] = 1e-9
        chances[digit, SIGNS] = 0.3 / len(SIGNS)
        chances[digit, DIGITS] = 0.3 / len(DIGITS)
        chances[digit, CALL_END] = 0.35
        chances[digit, WORDS] = 0.05 / len(WORDS)
    chances[:, END] += end_share
    chances *= np.exp(0.3 * np.random.default_rng(1).standard_normal(len(chances)))  # no ties
    return chances / chances.sum(axis=1, keepdims=True)


@pytest.fixture(
    scope="module",
    params=["reference", "cpu", "choosing", pytest.param("cuda", marks=pytest.mark.gpu)],
)
def writer(request):
    return writer_on(ENGINES[request.param]())


def writer_on(engine, end_share=0.0, context=28):
    model = chain(engine, calling(end_share), noise=0.5, mixing=0.3, context=context, dim=320)
    return Writer(model, TOKENIZER, calculator=True)


def specified(writer, prompt, sampling, max_tokens, first=0):
    """The tokens of a reply by whole forward passes, and the calculator by the text."""
    ids, context = list(prompt), writer.model.config.context
    given, view = [], list(prompt)
    while len(ids) < len(prompt) + max_tokens:
        if len(view) > context:
            view = view[-(context - context // 4) :]
        logits_1V = writer.logits(np.array([view], np.int32))[:, -1]
        position = [first + len(ids)]
        token = int(sample(logits_1V, sampling, position, writer.allowed_V)[0])
        token = given.pop(0) if given else token
        ids.append(token)
        view.append(token)
        if token == END:
            break
        opened = max((at for at, id in enumerate(ids[:-1]) if id == CALL), default=-1)
        if token == CALL_END and opened >= 0 and not {CALL_END, END} & set(ids[opened:-1]):
            result = calculate(TOKENIZER.decode(ids[opened + 1 : -1]))
            given = TOKENIZER.encode(result).tolist()
    return ids[len(prompt) :]


def written(writer, prompts, sampling, max_tokens, speculates=False, first=0):
    speculation = Speculation.of(writer.model) if speculates else None
    positions = first + 1000 * np.arange(len(prompts))
    decoding = writer.decoding(prompts, sampling, max_tokens, positions, speculation)
    while decoding.step():
        pass
    return [each.ids + [END] * each.ended for each in decoding.continuations]


PROMPTS = [[END, *TOKENIZER.encode(text).tolist()] for text in ("a b", "", "c 17+", "7" * 50)]


@functools.cache
def expected(sampling, max_tokens=36):
    """The replies to PROMPTS, which slide out of the context."""
    writer = writer_on(ReferenceBackend(np.float32))
    return [
        specified(writer, prompt, sampling, max_tokens, 1000 * number)
        for number, prompt in enumerate(PROMPTS)
    ]


@pytest.mark.parametrize("sampling", [GREEDY, WARM, Sampling(1.0, 3, 1.0, 8)])
@pytest.mark.parametrize("speculates", [False, True])
def test_replies_are_as_specified_alone_and_together(writer, sampling, speculates):
    assert written(writer, PROMPTS, sampling, 36, speculates) == expected(sampling)
    alone = [
        written(writer, [prompt], sampling, 36, speculates, 1000 * number)[0]
        for number, prompt in enumerate(PROMPTS)
    ]
    assert alone == expected(sampling)
    results = [sum(writer.calculator.results(ids)) for ids in expected(sampling)]
    assert sampling == GREEDY or sum(results) > 8


@pytest.mark.parametrize("speculates", [False, True])
def test_a_reply_goes_on_wherever_it_was_broken_off(writer, speculates):
    """In the midst of an expression and of a result, too."""
    whole = expected(WARM)[0][:24]  # all that the context holds behind the prompt
    given = writer.calculator.results(whole)
    assert [True, True] in [given[at : at + 2] for at in range(24)]
    for limit in range(1, 24):
        (begun,) = written(writer, [PROMPTS[0]], WARM, limit, speculates)
        assert begun == whole[:limit]
        prompt = PROMPTS[0] + begun
        assert written(writer, [prompt], WARM, 24 - limit, speculates) == [whole[limit:]]


def test_what_is_sampled_is_scored_and_results_are_not(writer):
    prompts = PROMPTS[:3]
    positions = 1000 * np.arange(len(prompts))
    decoding = writer.decoding(prompts, WARM, 20, positions, scored=True)
    while decoding.step():
        pass
    results = 0
    for prompt, reply in zip(prompts, decoding.continuations, strict=True):
        logits_NV = writer.logits(np.array([prompt + reply.ids], np.int32))[0].astype(np.float64)
        logprobs_NV = logits_NV - np.log(np.exp(logits_NV).sum(axis=1, keepdims=True))
        given = writer.calculator.results(reply.ids)
        assert len(reply.logprobs) == len(reply.ids) == 20
        for at, token in enumerate(reply.ids):
            expected = logprobs_NV[len(prompt) + at - 1, token]
            assert given[at] or reply.logprobs[at] == pytest.approx(expected, abs=1e-4)
        results += sum(given)
    assert results


def test_a_reply_may_end_within_a_call():
    writer = writer_on(ReferenceBackend(np.float32), end_share=0.3)
    replies = [
        written(writer, [PROMPTS[0]], Sampling(1.0, top_p=1.0, seed=seed), 30)[0]
        for seed in range(30)
    ]
    assert all(END not in reply[:-1] for reply in replies)
    within = [reply for reply in replies if CALL in reply[-4:] and CALL_END not in reply[-4:]]
    assert within
    for reply in within:
        text = TOKENIZER.decode_reply(reply[:-1])
        assert not set(text) & {"<", "|"}


def test_a_base_model_never_samples_the_tokens_of_calls():
    asks = writer_on(ReferenceBackend(np.float32))
    base = Writer(asks.model, TOKENIZER)
    for ids in written(base, PROMPTS, WARM, 60):
        assert not {CALL, CALL_END} & set(ids)


def test_a_reply_of_a_given_form_has_no_calls(writer):
    from nanoeuler.inference.forms import Form, regex_grammar

    form = Form.of(TOKENIZER, regex_grammar("[0-9+a-c ]{30}"))
    reply = writer.stream(PROMPTS[0], WARM, 60, form=form)
    text = "".join(reply)
    assert len(text) == 30
    assert not {CALL, CALL_END} & set(reply.ids)


def test_the_pieces_of_a_stream_have_no_calls(writer):
    reply = writer.stream(PROMPTS[0], WARM, 60)
    text = "".join(reply)
    assert text == TOKENIZER.decode_reply(reply.ids)
    assert CALL in reply.ids
    assert len(text) < len(reply.ids)


def test_a_chat_shows_each_call_in_front_of_its_result():
    writer, shown = writer_on(ReferenceBackend(np.float32)), []
    lines = iter(["a b", "/why"])
    chat = Chat(
        Conversation(writer, None, False), WARM, 24, shown.append, notice_style="«{}»".format
    )
    with contextlib.suppress(StopIteration):
        chat.run(lambda: next(lines))
    text = "".join(shown)
    calls = re.findall(r"«\[([^\]]*)=\]»", text)
    assert len(calls) > 1
    for call in calls:
        assert f"«[{call}=]»{calculate(call)}" in text
    assert "reserved" not in text
    assert "(call)" in text
    assert "(called)" in text
