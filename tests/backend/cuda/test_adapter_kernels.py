"""Adapters on a GPU: the mask of dropout, what is trained, and the memory that it takes."""

import numpy as np
import pytest
from test_kernel_sources import ARCHITECTURES, TYPES, compile_source, resources, without

from nanoeuler.backend.cuda.kernel_sources import KernelSources
from nanoeuler.backend.dropout import kept
from nanoeuler.cli.information import describe_memory
from nanoeuler.config.settings import Lora
from nanoeuler.errors import UserError
from nanoeuler.model.adapters import adapted
from nanoeuler.model.checks.comparison import Random
from nanoeuler.model.checks.engine_ops import OP_TOLERANCE, check_dropout
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import FlatBuffer, draw, initial_parameters
from nanoeuler.model.frozen import Frozen
from nanoeuler.model.quantized import QuantizedBuffer
from nanoeuler.model.transformer import Batch, Transformer
from nanoeuler.training.check_form import ADAMW, check_form
from nanoeuler.training.state import TrainingState
from nanoeuler.training.streams import TextStream
from tests import models

QWEN3 = ModelConfig.from_dict(
    {
        "vocab_size": 151_936,
        "dim": 1024,
        "layers": 28,
        "heads": 16,
        "kv_heads": 8,
        "ffn": 3072,
        "context": 512,
        "head_size": 128,
        "mtp_heads": 1,
        "norm_epsilon": 1e-6,
        "rope_theta": 1e6,
        "tied": True,
        "qk_norm": "weighted",
    }
)
"""Qwen3-0.6B's shape."""
FORMS = {
    "Llama": {"preset": "base", "layers": 4},
    "tied, normed q and k": {
        "preset": "base",
        "layers": 2,
        "mtp_heads": 1,
        "tied": True,
        "qk_norm": "weighted",
    },
    "GPT-2": models.GPT2 | {"mtp_heads": 1, "dim": 128, "ffn": 512, "context": 96},
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("types", TYPES)
def test_dropout_compiles_without_spilling_registers(architecture, types):
    for columns in (8, 3072):
        source = KernelSources(*TYPES[types]).elementwise("dropout", columns)
        ((name, (_, spilled, shared)),) = resources(compile_source(source, architecture)).items()
        assert (name, spilled, shared) == ("dropout", 0, 0)
        for constant, _ in source.constants:
            with pytest.raises(AssertionError, match=constant):
                compile_source(without(source, constant), architecture)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_dropout_drops_what_the_specification_drops(precision):
    from nanoeuler.backend.cuda.engine import CudaBackend

    engine, random = CudaBackend(precision), Random(3)
    for shape in [(1, 8), (37, 344), (1024, 3072)]:
        rows = list(check_dropout(engine, random, *shape))
        assert [row for row in rows if not row.error <= OP_TOLERANCE[precision]] == []
    seeds = np.random.default_rng(1).integers(-(2**31), 2**31, 500).astype(np.int32)
    ones = engine.from_host(np.ones((500, 1024), np.float32), engine.activation)
    engine.dropout(ones, engine.from_host(seeds), 77, 0.37, ones)
    assert np.array_equal(engine.to_host(ones) != 0, kept(seeds, 77, 0.37, 1024))


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("rank", [3, 16])
@pytest.mark.parametrize("form", FORMS)
def test_adapters_are_trained_as_specified(precision, rank, form):
    from nanoeuler.backend.cuda.engine import CudaBackend

    config = adapted(ModelConfig.from_dict(FORMS[form]), Lora(rank=rank, dropout=0.1))
    rows = list(check_form(CudaBackend(precision), config))
    assert [row for row in rows if not row.passed] == []
    assert any("lora_B" in row.tensor for row in rows)


@pytest.mark.gpu
def test_a_base_in_codes_is_used_as_its_numbers():
    from nanoeuler.backend.cuda.engine import CudaBackend

    base = ModelConfig.from_dict(FORMS["tied, normed q and k"])
    config, engine = adapted(base, Lora(rank=4)), CudaBackend("fp32")
    codes = QuantizedBuffer.of(base, initial_parameters(base, 1), "int4")
    trained = np.zeros(FlatBuffer.trained_elements(config), np.float32)
    ids, found = np.arange(80, dtype=np.int32).reshape(2, 40), []
    for weights in (codes, codes.dense()):
        frozen = Frozen(config, weights, engine)
        model = Transformer(config, engine.from_host(trained), engine, base=frozen)
        normed = model.forward(Batch.of_documents(ids, engine)).stream.normed
        found.append(engine.to_host(model.first_logits(normed)).copy())
    assert np.array_equal(*found)


@pytest.mark.gpu
def test_fp8_refuses_adapters():
    from nanoeuler.backend.cuda.engine import CudaBackend

    config = adapted(ModelConfig.from_dict(FORMS["Llama"]), Lora(rank=4))
    engine = CudaBackend("fp8")
    with pytest.raises(UserError, match="set precision to bf16"):
        Transformer(config, engine.zeros((FlatBuffer.elements(config),)), engine)


@pytest.mark.gpu
def test_a_model_of_600_million_parameters_is_tuned_in_4_gb():
    """Of the pool of memory, from which all arrays come; the driver's context is beside it."""
    import cupy

    from nanoeuler.backend.cuda.engine import CudaBackend

    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    before = pool.total_bytes()
    config, engine = adapted(QWEN3, Lora(dropout=0.05)), CudaBackend("bf16")
    random = np.random.default_rng(1)
    weights = random.standard_normal(FlatBuffer.elements(QWEN3), np.float32)
    weights *= np.float32(0.02)
    trained = np.zeros(FlatBuffer.trained_elements(config), np.float32)
    draw(FlatBuffer(config, trained), config, 1)
    frozen = Frozen(config, weights, engine)
    state = TrainingState(config, engine, trained, ADAMW, base=frozen)
    tokens = random.integers(0, QWEN3.vocab_size, 8192).astype(np.int32)
    stream = TextStream(tokens, 512, 1024, (1.0,), 0, True, 1, "text")
    losses = [state.train_step(stream.rows(0), 2, 1e-3).loss for _ in range(4)]
    assert losses[-1] < losses[0]
    taken = pool.total_bytes() - before
    planned = describe_memory(config, 2, 512, engine)["training"]
    print(f"{taken / 1e9:.2f} GB taken, {planned / 1e9:.2f} GB planned")
    assert taken <= 4e9
    assert 0.9 * planned < taken < 1.25 * planned
