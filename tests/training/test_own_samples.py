"""A stage whose rows depend on the model, as where it learns from its own samples."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe

import numpy as np
import pytest

from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.config.settings import Pretrain
from nanoeuler.model.transformer import Batch
from nanoeuler.training.checkpoint import Checkpoints
from nanoeuler.training.distributed.group import HostGroup
from nanoeuler.training.loop import train
from nanoeuler.training.stages.inputs import Inputs
from nanoeuler.training.stages.pretrain import job
from nanoeuler.training.worker import Worker

STEPS = 8


class Stopped(Exception):
    pass


class OwnGuesses:
    """Text whose next tokens are those that the model itself finds likeliest."""

    pure = False

    def __init__(self, text, stop_at=None):
        self.text, self.stop_at = text, stop_at
        self.length, self.rows_per_step = text.length, text.rows_per_step
        self.row_count = text.row_count
        self.weights = {}

    def rows(self, step, model=None):
        if step == self.stop_at:
            raise Stopped
        ops, rows = model.backend, self.text.rows(step)
        self.weights[step] = hashlib.sha256(ops.to_host(model.parameters).tobytes()).hexdigest()
        batch = Batch(*map(ops.from_host, (rows.ids, rows.positions, rows.starts)))
        logits = ops.to_host(model.first_logits(model.forward(batch).stream.normed))
        guesses = logits.reshape(*rows.ids.shape, -1).argmax(axis=-1)
        rows.targets[..., 0] = np.where(rows.targets[..., 0] >= 0, guesses, -1)
        return rows


@pytest.fixture
def run(data, trainer, tmp_path):
    """A function that trains on own guesses into a folder; returns the stream and the weights."""

    def run(folder, stop_at=None):
        section = trainer.config["pretrain"] | {"tokens": STEPS * 128, "checkpoint_minutes": 1e-9}
        files = data / "tokens/manifest.json", data / "tokenizer.json", tmp_path / folder
        given = Inputs(trainer.config, Pretrain.read(section), *files)
        work = job(given, ReferenceBackend(np.float32))
        work.stream = OwnGuesses(work.stream, stop_at)
        train(work)
        return work.stream, (tmp_path / folder / "model/model.safetensors").read_bytes()

    return run


def test_rows_are_asked_for_with_the_weights_of_their_step(run):
    stream, _ = run("whole")
    assert list(stream.weights) == list(range(STEPS))
    assert len(set(stream.weights.values())) == STEPS, "every update moves the weights"


def test_a_run_that_was_stopped_samples_and_learns_the_same(run):
    whole, weights = run("whole")
    with pytest.raises(Stopped):
        run("stopped", stop_at=5)
    stream, resumed = run("stopped")
    assert min(stream.weights) > 0, "it resumes from a checkpoint"
    assert stream.weights.items() <= whole.weights.items()
    assert resumed == weights


def test_ranks_that_share_a_step_sample_with_the_same_weights(data, trainer, tmp_path):
    pair = Pipe()
    groups = [HostGroup(rank, 2, [end]) for rank, end in enumerate(pair)]
    files = data / "tokens/manifest.json", data / "tokenizer.json", tmp_path
    given = Inputs(trainer.config, Pretrain.read(trainer.config["pretrain"]), *files)
    workers = []
    for group in groups:
        work = job(given, ReferenceBackend(np.float32), group)
        work.stream = OwnGuesses(work.stream)
        workers.append(Worker(work, Checkpoints(tmp_path / "checkpoints")))

    def lead() -> None:
        workers[0].begin()
        for step in range(3):
            workers[0].stage(step)
            workers[0].step(1e-2)
            workers[0].finish()
        groups[0].tell("end")

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(lead), pool.submit(workers[1].heed)]:
            done.result()
    first, second = (worker.job.stream.weights for worker in workers)
    assert first == second
    assert len(set(first.values())) == 3
