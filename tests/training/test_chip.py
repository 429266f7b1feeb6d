"""`reproducible: chip`: the same bits on any x86-64 or arm64 processor, here played by this one.

LLVM compiles for another processor, BLAS and NumPy take an old one's kernels, and the C library has
no fused multiply-add. Nor does LLVM optimise, which saves seconds, and must not change a bit.
"""

import hashlib
import json
import os
import platform
import subprocess
import sys

import llvmlite.binding as llvm
import numpy as np
import pytest

from fuzz.material import ROOT
from nanoeuler.backend.cpu import blas
from nanoeuler.backend.cpu.engine import CpuBackend
from nanoeuler.backend.cpu.ordered import DEPTH, OrderedProducts, unordered
from nanoeuler.backend.cpu.simd import WIDE
from nanoeuler.errors import UserError
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.flat import initial_parameters
from nanoeuler.training.optimizer.adamw import AdamW
from nanoeuler.training.optimizer.muon import Muon
from nanoeuler.training.state import TrainingState
from nanoeuler.training.streams import TextStream
from tests.models import ODD

pytestmark = pytest.mark.skipif(unordered() is not None, reason=f"chip {unordered()}")

IS_ARM = platform.machine().lower() in ("aarch64", "arm64")
NEWER = "avx512", "avx10", "avxvnni", "amx"
HASWELL = {
    "NUMBA_CPU_NAME": "haswell",
    "NUMBA_CPU_FEATURES": ",".join(
        f"{'+' if has and not name.startswith(NEWER) else '-'}{name}"
        for name, has in sorted(llvm.get_host_cpu_features().items())
    ),
    "NUMBA_OPT": "0",
    "NUMBA_DISABLE_INTEL_SVML": "1",
    "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",
    "OPENBLAS_CORETYPE": "Haswell",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-AVX512F",
}
CORTEX_A53 = {
    "NUMBA_CPU_NAME": "cortex-a53",
    "NUMBA_CPU_FEATURES": "+neon,-sve",
    "NUMBA_OPT": "0",
    "NPY_DISABLE_CPU_FEATURES": "ASIMDHP ASIMDDP ASIMDFHM SVE",
    "OPENBLAS_CORETYPE": "CORTEXA53",
}
OTHER = CORTEX_A53 if IS_ARM else HASWELL
"""The environment in which a process computes as on another processor."""

RECORDED = "de8a88bbf535"
"""The weights that any machine must give: a change that moves them says why."""

NUMBERS = "loss", "loss_all_heads", "gradient_norm", "validation"


def weights_after(mode: str, threads: int) -> str:
    """The hash of the weights after two steps."""
    config = ModelConfig.from_dict(ODD)
    tokens = np.random.default_rng(7).integers(1, config.vocab_size, 4000).astype(np.int32)
    tokens[::41] = 0
    length = config.context
    stream = TextStream(tokens, length, 8 * length, config.mtp_weights, 0, True, 5, "chip")
    engine = CpuBackend(threads)
    if mode == "chip":
        engine = engine.for_any_processor("pretrain.reproducible")
    optimizer = Muon(0.95, AdamW())
    parameters = initial_parameters(config, 3)
    state = TrainingState(config, engine, parameters, optimizer, lanes=8)
    for step in range(2):
        state.train_step(stream.rows(step), 1, 3e-3)
    return hashlib.sha256(np.asarray(state.parameters, np.float32).tobytes()).hexdigest()[:12]


def elsewhere(mode: str, threads: int, **environment: str) -> str:
    """The same by a process on another processor."""
    command = [sys.executable, "-m", "tests.training.test_chip", mode, str(threads)]
    everything = os.environ | OTHER | environment
    done = subprocess.run(command, cwd=ROOT, env=everything, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def test_any_processor_and_any_threads_give_the_recorded_bits():
    assert weights_after("chip", 1) == RECORDED
    assert weights_after("chip", 2) == RECORDED
    assert elsewhere("chip", 2) == RECORDED


@pytest.mark.skipif(not WIDE, reason="this processor has the old one's kernels")
def test_without_it_another_processor_gives_others():
    assert elsewhere("ranks", 1) != weights_after("ranks", 1)


@pytest.mark.slow
def test_a_stage_as_real_processes(trainer, tuned, monkeypatch):
    """The last one, which takes the others' path."""
    trainer.config["rl"] |= {"reproducible": "chip", "log_every": 1, "init_from": str(tuned)}
    found = []
    for environment in ({"OMP_NUM_THREADS": "1"}, OTHER | {"NUMBA_OPT": "1"}):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        # a process of its own, that reads the environment
        trainer.run("rl", "--device", "cpu", cwd=ROOT)
        lines = (trainer.output / "rl" / "metrics.jsonl").read_text().splitlines()[1:]
        numbers = [{key: json.loads(line).get(key) for key in NUMBERS} for line in lines]
        found.append((trainer.weights("rl"), numbers))
        (trainer.output / "rl").rename(trainer.output / f"{len(found)}")
    assert found[0] == found[1]


# ---- products


def in_order(a, b, alpha, c, depth=DEPTH, step=1):
    """alpha · a b + c by fused multiply-adds, `depth` numbers after the other."""
    for first in range(0, a.shape[1], depth):
        total = np.zeros(c.shape, np.float32)
        for k in range(first, min(first + depth, a.shape[1]))[::step]:
            total = fused(a[:, k : k + 1], b[k], total)
        c = fused(np.float32(alpha), total, c)
    return c


def fused(a, b, c):
    """A product of float32 is exact in float64, whose sum is rounded twice: alike, but for one in
    2²⁹."""
    return (a.astype(np.float64) * b + c).astype(np.float32)


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (37, 45, 300), (260, 530, 37), (12, 32, 600)])
@pytest.mark.parametrize("transposed", ["", "a", "b", "ab"])
def test_a_product_has_the_bits_of_its_definition(m, n, k, transposed):
    random = np.random.default_rng(5)
    a, b, c = (random.standard_normal(shape, np.float32) for shape in ((m, k), (k, n), (m, n + 3)))
    a = np.asfortranarray(a) if "a" in transposed else a
    b = np.asfortranarray(b) if "b" in transposed else b
    before, alpha, products = c.copy(), np.float32(0.7), OrderedProducts()
    blas.product(products.sgemm, a, b, c[:, :n], alpha, np.float32(1))
    assert np.array_equal(c[:, :n], in_order(a, b, alpha, before[:, :n]))
    assert np.array_equal(c[:, n:], before[:, n:])
    if k > 1:  # a wrong order would be seen
        assert not np.array_equal(c[:, :n], in_order(a, b, alpha, before[:, :n], step=-1))
    if k > DEPTH:
        assert not np.array_equal(c[:, :n], in_order(a, b, alpha, before[:, :n], DEPTH // 2))
    blas.product(products.sgemm, a, b, c[:, :n], np.float32(1), np.float32(0))
    assert np.array_equal(c[:, :n], in_order(a, b, 1, np.zeros((m, n), np.float32)))


def test_an_empty_sum_is_zero():
    c = np.ones((3, 5), np.float32)
    given = np.zeros((3, 0), np.float32), np.zeros((0, 5), np.float32), c
    blas.product(OrderedProducts().sgemm, *given, np.float32(1), np.float32(0))
    assert not c.any()


# ---- what is refused


def test_a_processor_that_was_not_compared_is_refused(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(UserError, match="on x86-64 and arm64 alone, and this processor is riscv64"):
        CpuBackend(1).for_any_processor("pretrain.reproducible")


if __name__ == "__main__":
    print(weights_after(sys.argv[1], int(sys.argv[2])))
