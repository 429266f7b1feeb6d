"""The engine contract: composed ops, and fused paths that take no block they do not know."""

import inspect
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import llvmlite
import numba
import numpy as np
import pytest

import nanoeuler
from nanoeuler.backend.capabilities import FusingBackend
from nanoeuler.backend.cpu.engine import CpuBackend
from nanoeuler.backend.ops import Backend
from nanoeuler.backend.primitives import Primitives
from nanoeuler.backend.records import (
    AttentionForm,
    BiasedAttentionForm,
    BlockForm,
    GeluForm,
    HeadNorm,
    SwigluForm,
)
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.families import make_blocks
from nanoeuler.system import provenance

CONFIG = ModelConfig.from_dict({"preset": "small"})
FORMS = [block.form for block in make_blocks(CONFIG)]


def test_engines_fulfil_the_contract():
    for engine in (ReferenceBackend(), CpuBackend(1)):
        assert isinstance(engine, Backend)


def test_the_environment_names_every_version_that_bits_depend_on():
    versions = {"numpy": np.__version__, "numba": numba.__version__}
    versions["llvmlite"] = llvmlite.__version__
    engine = CpuBackend(3)
    found = engine.environment()
    assert found | versions | {"blas": engine.blas.label} == found
    assert (found["threads"], found["processor"]) == ("3", provenance.cpu_name())


def test_the_device_is_named_that_computes():
    class Gpu(ReferenceBackend):
        device = SimpleNamespace(name="A card", memory=1, free_memory=1)

    assert Gpu().device_name == "A card"
    assert CpuBackend(1).device_name == provenance.cpu_name()


def test_every_op_of_the_contract_says_what_it_computes():
    undocumented = [
        name
        for name, member in (vars(Primitives) | vars(Backend)).items()
        if inspect.isfunction(member) and not name.startswith("_") and not member.__doc__
    ]
    assert undocumented == []


def test_a_fused_path_takes_the_blocks_that_it_knows():
    assert CpuBackend(1).fuses(FORMS, 1)
    assert not isinstance(ReferenceBackend(), FusingBackend)


def test_a_fused_path_takes_no_more_rows_than_it_is_made_for():
    assert not CpuBackend(1).fuses(FORMS, CpuBackend.fused_rows + 1)


def test_a_variant_that_a_fused_path_does_not_know_is_left_to_the_composed_one():
    attention, mlp = FORMS[:2]
    assert isinstance(attention, AttentionForm)
    changed = [replace(attention, qk_norm="rms"), mlp]
    engine = CpuBackend(1)
    assert engine.fuses(FORMS + changed, 1)
    engine.fused_variants = {}
    assert engine.fuses(FORMS, 1)
    assert not engine.fuses(FORMS + changed, 1)


def test_a_variant_is_known_of_one_form():
    """GPT-2's layer has no norms of heads."""
    fields = asdict(FORMS[0]) | {"qk_norm": "rms"}
    forms = [BiasedAttentionForm(**fields), GeluForm(1.0, 1e-5, ffn=100)]
    assert not CpuBackend(1).fuses(forms, 1)


def test_a_variant_that_nobody_has_thought_of_is_left_to_the_composed_path():
    @dataclass(frozen=True)
    class Gated(AttentionForm):
        output_gate: bool = False

    @dataclass(frozen=True)
    class Clipped(SwigluForm):
        limit: float = 0.0

    attention, mlp = FORMS[:2]
    engine = CpuBackend(1)
    engine.fused_layers = ((Gated, Clipped),)
    gated = Gated(**asdict(attention))
    clipped = Clipped(**asdict(mlp))
    assert engine.fuses([gated, clipped], 1)
    assert not engine.fuses([replace(gated, output_gate=True), clipped], 1)
    assert not engine.fuses([gated, replace(clipped, limit=7.0)], 1)


def test_blocks_in_another_order_or_of_another_kind_are_left_to_the_composed_path():
    class Other(BlockForm):
        pass

    engine = CpuBackend(1)
    assert not engine.fuses(FORMS[::-1], 1)
    assert not engine.fuses(FORMS[:-1], 1)
    assert not engine.fuses([*FORMS[:-1], Other(1.0, 1e-5)], 1)


def test_no_engine_is_probed_for_what_it_can_do():
    """Capabilities are attributes with defaults, or base classes: see `Backend`."""
    probe = re.compile(r"(hasattr|getattr)\((self\.|\w+\.)*(backend|engine|ops)\b")
    folder = Path(nanoeuler.__file__).parent
    found = [path for path in folder.rglob("*.py") if probe.search(path.read_text("utf-8"))]
    assert found == []


@pytest.mark.parametrize(
    "engine", [ReferenceBackend(np.float64), CpuBackend(2)], ids=["ref", "cpu"]
)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_composed_norm_of_heads_is_its_definition(engine, weighted):
    random = np.random.default_rng(1)
    N, H, E = 5, 3, 8
    packed = engine.from_host(random.standard_normal((N, 40)))
    heads = packed[:, 4:28].reshape(N, H, E)  # a view of a packed product
    before = np.array(heads, np.float64)
    weight = engine.from_host(random.standard_normal(E)) if weighted else None
    raw, scratch, dscratch = (engine.empty((N, H, E)) for _ in range(3))
    norm = HeadNorm(weight, 1e-5, raw, engine.empty((N, H)), scratch, dscratch)
    engine.head_norm(heads, norm)
    r = np.sqrt((before**2).mean(axis=-1, keepdims=True) + 1e-5)
    scale = 1.0 if weight is None else np.asarray(weight, np.float64)
    np.testing.assert_allclose(packed[:, 4:28].reshape(N, H, E), scale * before / r, rtol=1e-5)
