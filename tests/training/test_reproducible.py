"""`reproducible: ranks`: the same bits for any number of ranks, threads and rows at once."""

import signal
from itertools import pairwise

import numpy as np
import pytest

from nanoeuler.backend.cpu.engine import CpuBackend
from nanoeuler.backend.cpu.runtime import SHORT_SLICE_LOGITS
from nanoeuler.backend.runtime import Runtime
from nanoeuler.cli import main
from nanoeuler.errors import UserError
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.spec import block_matrices, storage_elements, trained_table
from nanoeuler.system.numpy_blas import THREADS, use_one_thread
from nanoeuler.training import lanes
from nanoeuler.training.distributed.parameters import cuts
from tests.models import ODD
from tests.training.test_chip import weights_after

FOUR = ("--ranks", "4")


@pytest.fixture
def exact(trainer):
    """A trainer in whose steps the order of sums is always the same."""
    for section in ("pretrain", "sft", "dpo", "rl"):
        trainer.config[section]["reproducible"] = "ranks"
    trainer.config["pretrain"] |= {"batch_tokens": 256, "tokens": 30 * 256}
    return trainer


def again(trainer, stage, *words, **settings):
    """The hash of the weights of a fresh run."""
    if (trainer.output / stage).exists():
        (trainer.output / stage).rename(trainer.output / f"{len(list(trainer.output.iterdir()))}")
    trainer.config[stage] |= settings
    trainer.run(stage, *words)
    return trainer.weights(stage)


def test_any_number_of_ranks_and_rows_at_once_gives_the_same_bits(exact):
    exact.config["pretrain"]["optimizer"] = "muon"
    alone = again(exact, "pretrain")
    assert again(exact, "pretrain", *FOUR) == alone
    assert again(exact, "pretrain", micro_batch_rows=7) == alone
    assert again(exact, "pretrain", reproducible=None) != alone


def test_any_number_of_threads_gives_the_same_bits():
    assert len({weights_after("ranks", threads) for threads in (1, 2, 3)}) == 1


def test_beside_the_steps_several_threads_share_no_product_of_blas():
    engine, config = CpuBackend(3), ModelConfig.from_dict(ODD)
    assert lanes.engine_beside_steps("ranks", config, engine).threads == 1
    assert lanes.engine_beside_steps("chip", config, engine) is engine  # whose products have orders
    assert lanes.engine_beside_steps(None, config, engine) is engine


def test_the_specification_multiplies_by_one_thread(exact):
    library = use_one_thread()
    found = next(name for name in THREADS if hasattr(library, name))
    getattr(library, found)(2)
    exact.config["pretrain"]["tokens"] = 256
    main(exact.command("pretrain")[3:])
    assert getattr(library, found.replace("_set_", "_get_"))() == 1


def test_what_four_ranks_began_one_ends(exact):
    expected = again(exact, "pretrain", "--ranks", "2")
    exact.config["pretrain"]["checkpoint_minutes"] = 0.001
    (exact.output / "pretrain").rename(exact.output / "earlier")
    process = exact.start_until(12, "pretrain", *FOUR, saved=True)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    said = exact.run("pretrain")
    assert "going on from step" in said
    assert "not to the bit" not in said
    assert exact.weights() == expected


@pytest.mark.parametrize("stage", ["sft", "dpo", "rl"])
def test_stages_of_tuning(exact, tuned, stage):
    if stage != "sft":
        exact.config[stage]["init_from"] = str(tuned)
    assert again(exact, stage) == again(exact, stage, "--ranks", "2")


# ---- sums


def test_neighbours_are_added_first():
    values = [np.array([x], np.float32) for x in (1e8, 1, -1e8, 1, 3, 4, 5, 6)]
    expected = ((values[0] + values[1]) + (values[2] + values[3])) + (
        (values[4] + values[5]) + (values[6] + values[7])
    )
    Runtime().add_neighbours(values)
    assert values[0] == expected


def test_cells_are_the_whole_buffer_and_no_rank_has_a_part_of_one(monkeypatch):
    monkeypatch.setattr(lanes, "CELL", 1000)
    config = ModelConfig.from_dict(
        {"vocab_size": 500, "dim": 64, "layers": 2, "heads": 4, "context": 32}
        | {"kv_heads": 2, "ffn": 99}
    )
    cells, total = lanes.cells_of(config), storage_elements(trained_table(config))
    assert cells[0].start == 0
    assert total - 64 < cells[-1].stop <= total
    assert all(one.stop == next.start for one, next in pairwise(cells))
    for ranks in (1, 2, 4, 8):
        found = cuts(config, ranks, cells)
        assert {*found[:-1]} <= {cell.start for cell in cells}
        for matrix in block_matrices(config):
            assert not any(matrix.offset < cut < matrix.stop for cut in found)
        assert max(np.diff(found)) < 2 * total / ranks


@pytest.mark.parametrize(
    ("rows", "length", "tokens", "found"),
    [(8, 1024, 8192, 8), (8, 1024, 4096, 4), (3, 16, 512, 3), (1, 2048, 512, 1), (5, 8, 8, 1)],
)
def test_rows_at_once_follow_from_lengths_alone(rows, length, tokens, found):
    assert lanes.rows_at_once(rows, length, tokens) == found


@pytest.mark.parametrize(
    ("rows", "length", "least", "found"),
    [
        *[(64, 8, 0, 8), (12, 8, 0, 4), (7, 8, 0, 1)],
        *[(1024, 512, 65536, 8), (512, 512, 65536, 4), (256, 512, 65536, 2), (64, 512, 65536, 2)],
        *[(768, 512, 65536, 4), (1, 512, 65536, 1)],
    ],
)
def test_lanes_are_no_smaller_than_an_engine_wants(rows, length, least, found):
    assert lanes.lanes_of(rows, length, least) == found


def test_ranks_without_a_lane_are_told_how_many_tokens_would_do():
    with pytest.raises(UserError, match=r"in 2 parts, which 4 ranks .* at least 262,144$"):
        lanes.require_lanes("pretrain", 64, 2, 4, 65536, rounded=False)


def test_a_machine_of_many_cores_computes_as_many_logits_at_once():
    few, many = CpuBackend(2), CpuBackend(200)
    assert many.runtime.slices(1 << 20) != few.runtime.slices(1 << 20)
    assert {
        replica.logits_at_once
        for engine in (few, many)
        for replica in engine.runtime.replicas(engine, 1 << 20, lanes=8)
    } == {SHORT_SLICE_LOGITS}


# ---- what is refused


@pytest.mark.parametrize(
    ("settings", "words", "sentence"),
    [
        (
            {"batch_tokens": 96},
            FOUR,
            "6 rows, added up in one order in 2 parts, which 4 ranks",
        ),
        ({}, ("--ranks", "3"), "in 8 parts, which 3 ranks cannot share"),
        ({"micro_batch_rows": 1}, (), "pretrain.reproducible computes 2 rows at once"),
        ({"sums_precision": "bf16"}, ("--ranks", "2"), "leave pretrain.sums_precision out"),
        ({"reproducible": "chip"}, ("--device", "reference"), "NumPy's BLAS adds up in another"),
        ({"reproducible": "gpus"}, (), "pretrain.reproducible"),
    ],
)
def test_what_cannot_be_promised(exact, settings, words, sentence):
    exact.config["pretrain"] |= settings
    (said,) = errors(exact.run("pretrain", *words, status=1))
    assert sentence in said


def test_it_is_said_once_and_before_any_work(exact, tuned):
    exact.config["dpo"]["init_from"] = str(tuned)
    (said,) = errors(exact.run("dpo", *FOUR, status=1))
    assert "a step has 2 rows" in said
    assert not (exact.output / "dpo" / "reference").exists()


def errors(said):
    assert "Traceback" not in said
    return [line for line in said.splitlines() if line.startswith("error")]
