"""`pretrain.dropout`: the same elements whoever drops them, and none where nothing is learned."""

import signal
from dataclasses import replace

import numpy as np
import pytest

from nanoeuler.backend.cpu.engine import CpuBackend
from nanoeuler.errors import UserError
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters
from nanoeuler.model.transformer import Batch, Transformer

SHAPE = {
    **{"vocab_size": 50, "dim": 64, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 96},
    **{"context": 16, "mtp_heads": 1},
}


@pytest.fixture
def dropping(trainer):
    trainer.config["pretrain"] |= {"dropout": 0.3, "reproducible": "ranks", "batch_tokens": 256}
    trainer.config["pretrain"]["tokens"] = 30 * 256
    return trainer


def test_ranks_and_a_killed_run_drop_the_same(dropping):
    dropping.run()
    expected = dropping.weights()
    (dropping.output / "pretrain").rename(dropping.output / "alone")
    dropping.config["pretrain"]["checkpoint_minutes"] = 0.001
    process = dropping.start_until(12, "pretrain", "--ranks", "2", saved=True)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert "going on from step" in dropping.run("pretrain", "--ranks", "2")
    assert dropping.weights() == expected
    (dropping.output / "pretrain").rename(dropping.output / "shared")
    dropping.config["pretrain"]["dropout"] = 0.0
    dropping.run()
    assert dropping.weights() != expected


def test_only_a_pass_with_seeds_drops_about_its_share():
    config = ModelConfig.from_dict(SHAPE)
    engine, random = CpuBackend(1), np.random.default_rng(1)
    parameters = initial_parameters(config, 1)
    plain, dropped = (Transformer(config, parameters, engine, dropout=d) for d in (0.0, 0.25))
    ids = random.integers(0, config.vocab_size, (2, 16)).astype(np.int32)
    batch = Batch.of_documents(ids, engine)
    expected = plain.forward(batch).stream.normed.copy()
    assert np.array_equal(dropped.forward(batch, training=True).stream.normed, expected)
    seeds = random.integers(0, 2**31, ids.shape).astype(np.int32)
    buffers = dropped.forward(replace(batch, seeds=seeds), training=True)
    assert not np.array_equal(buffers.stream.normed, expected)
    attended = [buffers.blocks[layer].out == 0 for layer in (0, 2)]
    assert all(0.2 < zeros.mean() < 0.3 for zeros in attended)
    assert not np.array_equal(*attended)


@pytest.mark.gpu
def test_fp8_refuses():
    from nanoeuler.backend.cuda.engine import CudaBackend

    config = ModelConfig.from_dict(SHAPE | {"head_size": 32})
    engine = CudaBackend("fp8")
    parameters = engine.from_host(initial_parameters(config, 1))
    with pytest.raises(UserError, match="no dropout in fp8; set precision to bf16"):
        Transformer(config, parameters, engine, dropout=0.1)
