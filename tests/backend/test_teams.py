"""Threads that decode together: they wait for each other, and the bits are those of one."""

import signal
import threading
import time

import numpy as np
import pytest

from nanoeuler.backend.cpu import engine as cpu_engine
from nanoeuler.backend.cpu import teams
from nanoeuler.backend.cpu.engine import CpuBackend
from nanoeuler.model.appending import extend
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters
from nanoeuler.model.quantized import QuantizedBuffer
from nanoeuler.model.transformer import Transformer
from nanoeuler.system.compiling import compiled

FIELDS = {"dim": 128, "layers": 2, "heads": 4, "ffn": 200, "context": 64, "vocab_size": 300}
SHAPES = {
    "Llama": FIELDS | {"kv_heads": 2, "mtp_heads": 1, "qk_norm": "weighted"},
    "one head of keys": FIELDS | {"kv_heads": 1, "mtp_heads": 1, "head_size": 24},
    "GPT-2": FIELDS | {"family": "gpt2", "kv_heads": 4, "mtp_heads": 1, "tied": True},
}


@compiled()
def rounds(team, numbers, sums):
    """In each round, a part writes its number, and then adds up those of all."""
    part = team[0]
    for turn in range(len(sums)):
        numbers[part] = turn * part
        teams.meet(team)
        sums[turn, part] = numbers.sum()
        teams.meet(team)


@pytest.mark.parametrize("parts", [1, 2, 7])
def test_each_sees_what_the_others_wrote(parts):
    gate, numbers, sums = teams.new_gate(), np.zeros(parts), np.zeros((200, parts))
    work = [
        threading.Thread(target=rounds, args=((part, parts, gate), numbers, sums))
        for part in range(parts)
    ]
    for each in work:
        each.start()
    for each in work:
        each.join()
    expected = np.arange(200)[:, None] * sum(range(parts))
    assert np.array_equal(sums, np.broadcast_to(expected, sums.shape))


@pytest.mark.parametrize(("count", "parts", "multiple"), [(200, 3, 16), (10, 4, 16), (5, 5, 1)])
def test_shares_are_all_there_is(count, parts, multiple):
    shares = [
        teams.share(count, (part, parts, teams.new_gate()), multiple) for part in range(parts)
    ]
    assert np.array_equal(np.concatenate([np.arange(*each) for each in shares]), np.arange(count))
    assert all(first % multiple == 0 or first == count for first, _ in shares)


@pytest.fixture
def shared(monkeypatch):
    """However small a step is, the threads share it."""
    monkeypatch.setattr(cpu_engine, "LEAST_PRODUCT", 1)


def steps(model, rows, tokens):
    """Logits of a sequence that is read in steps of `tokens`."""
    cache = model.new_cache(rows, 60)
    ids = (np.arange(rows * 48).reshape(rows, 48) * 7) % 300
    return [
        extend(model, cache, ids[:, at : at + tokens], every=True) for at in range(0, 48, tokens)
    ]


@pytest.mark.parametrize(
    ("shape", "scheme"),
    [*((shape, None) for shape in SHAPES), ("Llama", "int8"), ("Llama", "int4")],
)
def test_any_number_of_threads_gives_the_same_bits(shape, scheme, shared):
    config = ModelConfig.from_dict(SHAPES[shape])
    weights = initial_parameters(config, 1)
    if scheme:
        weights = QuantizedBuffer.of(config, weights, scheme)
    models = [Transformer(config, weights, CpuBackend(threads)) for threads in (1, 2, 5)]
    for rows, tokens in ((1, 1), (3, 4)):
        alone, *others = (steps(model, rows, tokens) for model in models)
        assert all(np.array_equal(other, alone) for other in others)


def test_an_interrupt_leaves_nobody_waiting(shared):
    """As by Ctrl-C in the middle of a reply, after which the chat goes on."""
    config = ModelConfig.from_dict(SHAPES["Llama"])
    model = Transformer(config, initial_parameters(config, 1), CpuBackend(3))
    expected, interrupted = steps(model, 1, 1), 0
    main, waiting = threading.main_thread().ident, [False]

    def interrupt():
        for number in range(300):
            while not waiting[0]:
                time.sleep(1e-4)
            time.sleep(1e-4 * (number % 50))
            waiting[0] = False
            signal.pthread_kill(main, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        thread = threading.Thread(target=interrupt)
        thread.start()
        while interrupted < 300:
            try:
                waiting[0] = True  # no lock, which an interrupt might leave shut
                while True:
                    steps(model, 1, 1)
            except KeyboardInterrupt:
                interrupted += 1
        thread.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert np.array_equal(steps(model, 1, 1), expected)


@pytest.mark.parametrize("failing", [0, 2])
def test_a_part_that_fails_leaves_nobody_waiting(shared, failing, monkeypatch):
    config = ModelConfig.from_dict(SHAPES["Llama"])
    model = Transformer(config, initial_parameters(config, 1), CpuBackend(3))
    expected = steps(model, 1, 1)
    whole = cpu_engine.decoding.layer

    def layer(*given):
        if given[-1][0] == failing:
            raise MemoryError
        whole(*given)

    with monkeypatch.context() as context:
        context.setattr(cpu_engine.decoding, "layer", layer)
        with pytest.raises(MemoryError):
            steps(Transformer(config, initial_parameters(config, 1), model.backend), 1, 1)
    assert np.array_equal(steps(model, 1, 1), expected)
