"""The kernels of forms that released models vary: soft caps, heads of 256, norms behind blocks."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from test_kernel_sources import ARCHITECTURES, TYPES, compile_source, resources, without

from nanoeuler.backend.cuda.kernel_sources import KernelSources
from nanoeuler.errors import UserError
from nanoeuler.model.appending import extend
from nanoeuler.model.checks.comparison import Arrays, Random, compare_op
from nanoeuler.model.checks.engine_attention import check_attention, check_cached_attention
from nanoeuler.model.checks.engine_ops import OP_TOLERANCE, check_soft_cap
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters
from nanoeuler.model.transformer import Transformer
from nanoeuler.training.check_form import check_form

PRECISIONS = ["fp32", "tf32", "bf16", "fp8"]
GEMMA2 = {
    "activation": "geglu",
    "post_norms": True,
    "embedding_scale": 27.7,
    "tied": True,
    "windows": [64, 0],
    "attention_cap": 50.0,
    "logit_cap": 30.0,
    "query_scalar": 100.0,
    "head_size": 256,
    "heads": 4,
    "kv_heads": 2,
}
FORMS = {
    "as Gemma 2": GEMMA2,
    "as Gemma 3": GEMMA2
    | {
        "qk_norm": "weighted",
        "window_rope_theta": 100.0,
        "attention_cap": None,
        "logit_cap": None,
        "query_scalar": None,
        "kv_heads": 1,
    },
    "caps alone": {"attention_cap": 50.0, "logit_cap": 30.0},
    "heads of 256, like a Llama's": {"head_size": 256, "heads": 3, "kv_heads": 1},
    "norms behind blocks with SwiGLU, as narrow as no power of two": {
        "post_norms": True,
        "dim": 96,
        "head_size": 32,
        "heads": 3,
        "kv_heads": 1,
        "ffn": 128,
    },
}


def config_of(fields):
    return ModelConfig.from_dict({"preset": "base", "layers": 4} | fields)


def sources(types):
    known = KernelSources(*TYPES[types])
    return [
        *map(known.plain_attention, (32, 64, 128, 256)),
        *map(known.head_norm, (96, 2304, 4608, 16_384)),
        *(known.elementwise("soft_cap", columns) for columns in (8, 256_000)),
    ]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("types", TYPES)
def test_they_compile_without_spilling_registers(architecture, types):
    names = set()
    for source in sources(types):
        for name, (_, spilled, shared) in resources(compile_source(source, architecture)).items():
            names.add(name)
            assert spilled == 0, (source.constants, name)
            assert shared <= 1024, (source.constants, name)
    plain = {f"plain_attention{part}" for part in ("", "_dquery", "_dkey")}
    caps = {"soft_cap", "soft_cap_float", "soft_cap_backward"}
    assert names == {*plain, *caps, "head_norm", "head_norm_backward"}


def test_they_do_not_compile_without_any_one_of_their_constants():
    for source in sources("bf16"):
        for name, _ in source.constants:
            with pytest.raises(AssertionError, match=name):
                compile_source(without(source, name), "sm_80")


@pytest.mark.gpu
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_gpu_computes_what_the_specification_says(precision):
    from nanoeuler.backend.cuda.engine import CudaBackend

    engine, random = CudaBackend(precision), Random(3)
    shapes = [(1, 1, 1, 1, 256), (2, 7, 4, 2, 256), (2, 200, 8, 1, 256), (1, 513, 4, 4, 256)]
    capped = [(1, 1, 1, 1, 32), (2, 7, 4, 4, 64), (2, 200, 8, 1, 32), (1, 513, 12, 4, 128)]
    cached = [(1, 1, 70, 12, 4, 64), (3, 5, 140, 4, 1, 256), (2, 37, 300, 8, 4, 256)]
    checks = [
        *(partial(check_attention, engine, random, *shape) for shape in shapes),
        *(partial(check_attention, engine, random, *shape, 0.9) for shape in capped + shapes),
        *(partial(check_cached_attention, engine, random, *shape, 0.9) for shape in cached),
        partial(check_cached_attention, engine, random, *cached[-1]),
        *(partial(check_soft_cap, engine, random, *shape) for shape in [(1, 8), (301, 4096)]),
        *(partial(wide_norm, engine, random, *shape) for shape in [(1, 8), (37, 96), (301, 2304)]),
        partial(wide_norm, engine, random, 1500, 3584),
    ]
    rows = [row for check in checks for row in check()]
    assert [row for row in rows if not row.error <= OP_TOLERANCE[precision]] == []


def wide_norm(engine, random, N, D):
    """The norm of one head as wide as the stream, with a weight and without, and its gradients."""
    inputs = {
        "x": random.activation(N, D),
        "dx": random.activation(N, D),
        "weight": random.statistic(D),
        "dweight": random.statistic(D),
    }
    shapes = {"raw": ((N, 1, D), "residual"), "rms": ((N, 1), "statistic")}
    scratch = {name: ((N, 1, D), "activation") for name in ("scratch", "dscratch")}

    def passes(weighted: bool, ops, a: Arrays) -> None:
        from nanoeuler.backend.records import HeadNorm

        weight, dweight = (a.weight, a.dweight) if weighted else (None, None)
        norm = HeadNorm(weight, 0.1, a.raw, a.rms, a.scratch, a.dscratch)
        ops.head_norm(a.x[:, None], norm)
        ops.head_norm_backward(a.dx[:, None], norm, dweight, accumulate=True)

    for weighted in (True, False):
        written = ("x", "dx", *(["dweight"] if weighted else []))
        case = f"norm of {N} × {D}" + ", weighted" * weighted
        yield from (
            row
            for row in compare_op(
                case, engine, inputs, shapes | scratch, partial(passes, weighted), written
            )
            if row.tensor not in scratch
        )


@pytest.mark.gpu
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_trained_and_decoded_as_specified(precision, form):
    from nanoeuler.backend.cuda.engine import CudaBackend

    config = config_of(FORMS[form])
    assert [row for row in check_form(CudaBackend(precision), config) if not row.passed] == []


@pytest.mark.gpu
@pytest.mark.parametrize("form", FORMS)
def test_rows_and_prompts_of_every_length_get_the_logits_of_the_cpu(form):
    from nanoeuler.backend.cpu.engine import CpuBackend
    from nanoeuler.backend.cuda.engine import CudaBackend

    config = replace(config_of(FORMS[form]), context=512)
    parameters = initial_parameters(config, 1)
    ids = np.random.default_rng(2).integers(0, config.vocab_size, (3, 300)).astype(np.int32)
    found = []
    for engine in (CpuBackend(2), CudaBackend("fp32")):
        model = Transformer(config, engine.from_host(parameters), engine)
        cache, held, logits = model.new_cache(3, 300), 0, []
        for count in (70, 1, 1, 4, 190, 1):
            logits.append(engine.to_host(extend(model, cache, ids[:, held : held + count])).copy())
            held += count
        found.append(np.array(logits))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
def test_sizes_of_heads_without_a_kernel_are_refused():
    from nanoeuler.backend.cuda.engine import CudaBackend

    config = config_of({"head_size": 96})
    with pytest.raises(UserError, match="the kernels are made for 32, 64, 128, 256"):
        Transformer(config, initial_parameters(config, 1), CudaBackend("fp32"))
