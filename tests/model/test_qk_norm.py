"""QK-norm: RMSNorm of each head of queries and keys before the rotation."""

import numpy as np
import pytest

from nanoeuler.backend import make_backend
from nanoeuler.backend.cpu.engine import CpuBackend
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.errors import UserError
from nanoeuler.inference.generate import Decoding
from nanoeuler.inference.sampling import GREEDY
from nanoeuler.model.appending import extend
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import FlatBuffer, initial_parameters
from nanoeuler.model.spec import tensor_table
from nanoeuler.model.transformer import Batch, Transformer
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.state import TrainingState
from nanoeuler.training.streams import TextStream

KINDS = ["rms", "weighted"]
FIELDS = {
    "vocab_size": 300,
    "dim": 64,
    "layers": 2,
    "heads": 4,
    "kv_heads": 2,
    "head_size": 32,
    "ffn": 100,
    "context": 32,
    "mtp_heads": 2,
}


def config_of(kind, **fields):
    return ModelConfig.from_dict(FIELDS | {"qk_norm": kind} | fields)


def parameters_of(config):
    """Fresh parameters, but for weights of the norms that are not all ones."""
    parameters = 2 * initial_parameters(config, 1)
    buffer = FlatBuffer(config, parameters)
    for tensor in buffer.table:
        if tensor.name.endswith(("q_norm.weight", "k_norm.weight")):
            buffer[tensor.name][...] = np.linspace(0.5, 1.5, tensor.size)
    return parameters


def gpu(precision):
    from nanoeuler.backend.cuda.engine import CudaBackend

    return CudaBackend(precision)


def test_it_is_off_unless_asked_for():
    plain, named = (ModelConfig.from_dict(FIELDS | more) for more in ({}, {"qk_norm": "none"}))
    assert plain == named
    assert config_of("rms").to_dict()["qk_norm"] == "rms"
    assert ModelConfig.from_dict(config_of("rms").to_dict()) == config_of("rms")


def test_a_kind_that_does_not_exist_is_refused():
    with pytest.raises(UserError, match="there are none, rms, weighted"):
        config_of("layer")


def test_only_the_weighted_kind_has_parameters():
    names = {kind: {t.name for t in tensor_table(config_of(kind))} for kind in ("none", *KINDS)}
    assert names["rms"] == names["none"]
    added = names["weighted"] - names["none"]
    assert added == {
        f"model.layers.{layer}.self_attn.{part}_norm.weight" for layer in (0, 1) for part in "qk"
    }


@pytest.mark.parametrize("kind", KINDS)
def test_the_size_of_queries_and_keys_does_not_matter(kind):
    config, ops = config_of(kind, norm_epsilon=1e-12), ReferenceBackend(np.float64)
    ids = np.arange(12, dtype=np.int32)[None]
    batch = Batch(ids, ids.copy(), np.zeros_like(ids))
    hidden = []
    for factor in (1, 100):
        parameters = parameters_of(config).astype(np.float64)
        buffer = FlatBuffer(config, parameters)
        for name in buffer.rows:
            if "q_proj" in name or "k_proj" in name:
                buffer[name][...] *= factor
        hidden.append(Transformer(config, parameters, ops).forward(batch).stream.normed.copy())
    np.testing.assert_allclose(*hidden, rtol=1e-6)


def check_decoding(engine, kind, rows, tolerance, pieces=(7, *[1] * 13)):
    """A text read in pieces of so many tokens gives the logits that the reference gives at once.

    With an ε that shows beside the heads' squares.
    """
    config = config_of(kind, norm_epsilon=0.01)
    parameters = parameters_of(config)
    ids = np.random.default_rng(2).integers(0, config.vocab_size, (rows, 20)).astype(np.int32)
    reference = Transformer(config, parameters.astype(np.float64), ReferenceBackend(np.float64))
    expected = extend(reference, reference.new_cache(rows, 20), ids, every=True)
    model = Transformer(config, engine.from_host(parameters), engine)
    cache = model.new_cache(rows, 20)
    ends = np.cumsum(pieces)
    parts = np.split(ids, ends[:-1], axis=1)
    logits = [np.array(engine.to_host(extend(model, cache, part)), np.float64) for part in parts]
    found, expected = np.stack(logits, axis=1), expected[:, ends - 1]
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert error <= tolerance


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_decoding_on_the_cpu_is_that_of_the_reference(kind, rows):
    check_decoding(CpuBackend(2), kind, rows, 2e-6)


def check_gradients(engine, kind, tolerance, recompute=False):
    """A step's gradients are the reference's; `engine` shares the rows as it likes."""
    config = config_of(kind)
    tokens = np.random.default_rng(1).integers(1, config.vocab_size, 1000).astype(np.int32)
    tokens[::29] = 0
    rows = TextStream(tokens, 32, 4 * 32, config.mtp_weights, 0, True, 1, "test").rows(0)
    settings = AdamW(0.9, 0.95, 1e-8, 0.1, 1.0)
    gradients = []
    for ops in (engine, ReferenceBackend(np.float64)):
        state = TrainingState(config, ops, parameters_of(config), settings, recompute=recompute)
        state.train_step(rows, 2, 0.0)
        gradients.append(np.asarray(ops.to_host(state.gradients), np.float64))
    found, expected = (FlatBuffer(config, values) for values in gradients)
    for name in found.rows:
        error = np.linalg.norm(found[name] - expected[name]) / np.linalg.norm(expected[name])
        assert error <= tolerance, name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_on_the_cpu_are_those_of_the_reference(kind, recompute):
    check_gradients(CpuBackend(2), kind, 2e-6, recompute)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 3e-6), ("bf16", 0.1)])
def test_a_gpu_computes_what_the_reference_computes(kind, precision, tolerance):
    for rows in (1, 2, 4, 9, 40, 70):  # by kernels for few and for many rows, and composed
        check_decoding(gpu(precision), kind, rows, tolerance)
        check_decoding(gpu(precision), kind, rows, tolerance, pieces=(9, 4, 2, 1, 3, 1))
    check_gradients(gpu(precision), kind, tolerance)


@pytest.mark.gpu
def test_a_gpu_records_steps_and_choices_of_tokens():
    config, engine = config_of("weighted"), gpu("bf16")
    tokens = np.random.default_rng(1).integers(1, config.vocab_size, 1000).astype(np.int32)
    stream = TextStream(tokens, 32, 8 * 32, config.mtp_weights, 0, True, 1, "test")
    state = TrainingState(config, engine, parameters_of(config), AdamW(0.9, 0.95, 1e-8, 0.1, 1.0))
    losses = [state.train_step(stream.rows(0), 8, 1e-2).loss for _ in range(12)]
    assert losses[-1] < 0.8 * losses[0]
    allowed = np.ones(config.vocab_size, bool)
    decoding = Decoding(state.model, [[5]], GREEDY, 10, -1, allowed, 0)
    while decoding.step():
        pass
    (written,) = (each.ids for each in decoding.continuations)
    reference = make_backend("reference")
    parameters = np.asarray(engine.to_host(state.parameters), np.float32)
    slow = Transformer(config, parameters, reference)
    read = extend(slow, slow.new_cache(1, 32), np.array([[5, *written]]), every=True)
    agreeing = (read[0, :-1].argmax(axis=-1) == np.array(written)).mean()
    assert agreeing >= 0.7  # bf16 may turn a near tie
