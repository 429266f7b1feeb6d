"""The resources of a Hopper card that the fused products take; test_engine.py checks that they
compute the right thing, with all other ops."""

import pytest
from test_kernel_sources import compile_source, resources

from nanoeuler.backend.cuda.fused_linear import KINDS, shared_bytes, source

HOPPER_SHARED = 227 * 1024


@pytest.mark.parametrize(
    ("kind", "head_size", "fp8"),
    [(kind, 64, True) for kind in KINDS]
    + [(kind, 64, False) for kind in KINDS if not kind.startswith("Gelu")]
    + [("Rope", size, fp8) for size in (32, 128) for fp8 in (False, True)],
)
def test_every_kind_compiles_without_spilling_registers_and_fits_the_shared_memory(
    kind, head_size, fp8
):
    report = compile_source(source(kind, head_size, fp8=fp8), "sm_90a")
    ((registers, spilled, static),) = resources(report).values()
    assert spilled == 0
    # of 384 threads; the computing warps take some from the others when they start
    assert registers <= 168
    assert static + shared_bytes(kind, fp8=fp8) <= HOPPER_SHARED
    # what ptxas says when it cannot let wgmma run beside other work
    assert "serialized" not in report
