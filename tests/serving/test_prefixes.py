"""What prompts have in front in common is read once, and no reply has other bits for it."""

import json
import subprocess
import sys

import numpy as np
import pytest

import nanoeuler
from nanoeuler.errors import UserError
from nanoeuler.inference.api import LanguageModel
from nanoeuler.inference.sampling import Sampling
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.files import SavedModel, load_model, save_model
from nanoeuler.serving.batch import Batch
from nanoeuler.serving.fitting import MOST_PREFIXES, prefix_memory
from tests.choosing_backend import ChoosingReference
from tests.inference.conftest import FIELDS, wide_parameters
from tests.serving.asked import Asked, random_prompt, run
from tests.serving.server import ServerProcess

ROOM = 4, 2600
PLENTY = 1e9


CUDA = pytest.param("cuda", marks=pytest.mark.gpu)


@pytest.fixture(scope="module", params=["cpu", "choosing", CUDA])
def model(request, endless_folder, tokenizer, tokenizer_path, tmp_path_factory):
    if request.param == "cuda":
        folder = tmp_path_factory.mktemp("gpu") / "model"
        config = ModelConfig.from_dict(FIELDS | {"head_size": 32, "context": 2600})
        weights = wide_parameters(config)
        save_model(folder, SavedModel(config, weights, tokenizer_path, "pretrain", None))
        return nanoeuler.load(folder, "cuda", precision="fp32")
    if request.param == "choosing":
        return LanguageModel(load_model(endless_folder), tokenizer, ChoosingReference())
    return nanoeuler.load(endless_folder, device=request.param)


def crowd(piece, **fields):
    """Prompts that share beginnings of many lengths, about whole pieces above all."""
    random, whole = np.random.default_rng(3), random_prompt(4 * piece - 17, 1)
    lengths = [1, piece - 1, piece, piece + 1, 2 * piece, 2 * piece + 1, len(whole)]
    for seed, length in enumerate(random.permutation(lengths * 2).tolist()):
        prompt = whole[:length] + random_prompt(int(random.integers(1, 50)), seed)[1:]
        yield Asked(prompt, Sampling(1.0, seed=seed), 6, likeliest=4, **fields)


def written(batch, asked):
    """Tokens with the log-probabilities of the likeliest, all of them to the bit."""
    run(batch, asked)
    return [(piece.ids, piece.scored, piece.finish) for piece in asked.pieces]


def test_replies_have_the_same_bits_as_without(model):
    batch, plain = Batch(model, *ROOM, PLENTY), Batch(model, *ROOM)
    read: list[list[int]] = []
    for asked, same in zip(crowd(batch.piece), crowd(batch.piece), strict=True):
        found = written(batch, asked)
        assert found == written(plain, same)
        prompt, piece = asked.job.prompt, batch.piece
        shared = max((common(prompt, each) // piece * piece for each in read), default=0)
        at_least_one_is_read = (len(prompt) - 1) // piece * piece
        assert asked.job.cached == min(shared, at_least_one_is_read)
        assert same.job.cached == 0
        read.append(prompt)


def common(first, second):
    """How many tokens two prompts begin with alike."""
    shorter = min(len(first), len(second))
    return next((n for n in range(shorter) if first[n] != second[n]), shorter)


def test_a_growing_conversation_is_read_from_where_it_was_known(model):
    batch = Batch(model, *ROOM, PLENTY)
    prompt = random_prompt(batch.piece + 20, 2)
    for turn in range(3):
        asked = Asked(prompt, Sampling(0.0), 30)
        run(batch, asked)
        assert asked.job.cached == (len(prompt) - 50 if turn else 0) // batch.piece * batch.piece
        reply = [token for piece in asked.pieces for token in piece.ids]
        prompt = prompt + reply + random_prompt(21, turn)[1:]


def test_several_replies_and_a_scored_prompt(model):
    batch = Batch(model, *ROOM, PLENTY)
    prompt = random_prompt(batch.piece + 5, 4)
    run(batch, Asked(prompt))
    several = Asked(prompt, [Sampling(1.0, seed=n) for n in range(3)], 8)
    run(batch, several)
    assert sum(piece.cached for piece in several.pieces) == batch.piece
    scored = Asked(prompt, max_tokens=0, likeliest=1, score_prompt=True)
    run(batch, scored)
    assert scored.job.cached == 0
    assert sum(len(piece.scored) for piece in scored.pieces) == len(prompt)


def test_what_is_used_longest_ago_goes_first_and_no_more_is_kept_than_asked(model):
    batch = Batch(model, *ROOM, PLENTY)
    prompts = [random_prompt(2 * batch.piece + 9, seed) for seed in range(3)]
    run(batch, Asked(prompts[0]))
    room = 4.5 * batch.prefixes.bytes / 2  # of two prompts, and half a piece
    small = Batch(model, *ROOM, room)

    def cached(prompt):
        asked = Asked(prompt)
        run(small, asked)
        assert small.prefixes.bytes == sum(rows.nbytes for rows in small.prefixes.kept.values())
        assert small.prefixes.bytes <= room
        return asked.job.cached // small.piece

    assert [cached(prompts[n]) for n in (0, 1, 0, 2)] == [0, 0, 2, 0]
    assert [cached(prompts[n]) for n in (0, 2)] == [2, 2], "of the second one, used before"
    assert cached(prompts[1]) == 0


def test_of_a_prompt_that_is_longer_than_what_may_be_kept_the_beginning_is(model):
    batch = Batch(model, *ROOM, PLENTY)
    prompt = random_prompt(3 * batch.piece + 9, 5)
    run(batch, Asked(prompt))
    small = Batch(model, *ROOM, 2 * batch.prefixes.bytes / 3)
    for expected in (0, 2, 2):
        asked = Asked(prompt)
        run(small, asked)
        assert asked.job.cached == expected * small.piece
    none = Batch(model, *ROOM, 10)
    for _ in range(2):
        asked = Asked(prompt)
        run(none, asked)
        assert asked.job.cached == 0 == none.prefixes.bytes


def test_a_job_that_is_cancelled_while_its_prompt_is_read_leaves_right_pieces(model):
    batch, plain = Batch(model, *ROOM, PLENTY), Batch(model, *ROOM)
    prompt = random_prompt(3 * batch.piece + 9, 6)
    late = Asked(prompt, deadline=1.0)
    batch.add(late.job)
    batch.step(0.0)
    batch.step(2.0)
    assert late.pieces[-1].finish == "timeout"
    again, same = (Asked(prompt, Sampling(1.0, seed=2), 6, likeliest=4) for _ in range(2))
    assert written(batch, again) == written(plain, same)
    assert again.job.cached == batch.piece


@pytest.mark.parametrize(("megabytes", "bytes"), [(None, 0.125e9), (0, 0), (20, 2e7), (500, 5e8)])
def test_how_much_is_kept(megabytes, bytes):
    assert prefix_memory(1e9, megabytes) == bytes
    assert prefix_memory(1e12, None) == MOST_PREFIXES


@pytest.mark.parametrize("megabytes", [-1, 501, float("nan"), float("inf")])
def test_more_than_half_of_the_memory_is_refused(megabytes):
    with pytest.raises(UserError, match=r"^--prefix-cache \S+: megabytes from 0 to 500, which is"):
        prefix_memory(1e9, megabytes)


def test_over_http(endless_folder, tmp_path):
    text = "The fox lives in the old mill. " * 30
    with ServerProcess(tmp_path, endless_folder, "--context", 2000) as server:
        usages = []
        for end in ("Where?", "Who?"):
            asked = {"model": "endless", "prompt": text + end, "max_tokens": 4}
            reply = json.loads(server.post("/v1/completions", asked).data)
            usages.append(reply["usage"])
        kept = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
        assert kept[0] == 0
        assert kept[1] == (usages[1]["prompt_tokens"] - 1) // 128 * 128 > 0
        assert f'kind="cached"}} {kept[1]}' in server.get("/metrics").data.decode()


def test_a_size_that_does_not_fit_is_refused_before_anything_is_served(endless_folder):
    command = [sys.executable, "-m", "nanoeuler", "serve", endless_folder, "--prefix-cache", "9e9"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "--prefix-cache 9e+09: megabytes from 0 to" in done.stderr
