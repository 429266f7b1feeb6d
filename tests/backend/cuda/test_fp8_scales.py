"""The scales of fp8 between steps, without a GPU: slots, checkpoints, which cards have it."""

import numpy as np
import pytest

from nanoeuler.backend.cuda.fp8 import HISTORY, Fp8, check_capability
from nanoeuler.backend.cuda.kernel_sources import KernelSources
from nanoeuler.errors import UserError


def test_a_card_without_products_of_e4m3_is_refused_in_a_sentence():
    check_capability("RTX 4090", (8, 9))
    with pytest.raises(UserError, match=r"RTX 3090 has compute capability 8\.6.*set precision"):
        check_capability("RTX 3090", (8, 6))


@pytest.fixture
def slots():
    """The slots alone, in the host's memory."""
    sources = KernelSources("bfloat16", "bfloat16")
    return Fp8(None, sources, None, np.zeros, np.asarray, np.asarray)


def test_a_checkpoint_holds_every_scale_and_what_the_next_ones_are_made_of(slots):
    for kind in ("norm", "norm", "dx"):
        slot = slots.slot(kind)
        slot[1:3] = 8, 3.3
        slot.view(np.uint32)[3] = 2
    slots.history[:, 1] = np.arange(HISTORY) / 3
    saved = slots.state
    assert list(saved) == ["norm 0", "norm 1", "dx 0"]
    assert saved["norm 1"][:3] == [8, float(np.float32(3.3)), 2]
    before = slots.slots.copy(), slots.history.copy()
    slots.state = {}
    assert not slots.ready
    assert not slots.slots.any()
    assert slots.state == {}
    slots.state = saved
    assert slots.ready
    assert all(map(np.array_equal, before, (slots.slots, slots.history)))


def test_slots_stay_where_a_recorded_step_knows_them(slots):
    first = slots.slot("norm")
    first[1:3] = 8, 1
    slots.state = {"dx 0": [4.0, 2.0, 0.0, *[1.0] * HISTORY]}
    slots.begin_pass()
    assert np.shares_memory(slots.slot("norm"), first)
    assert not np.shares_memory(slots.slot("dx"), first)


def test_parts_of_an_array_share_a_slot(slots):
    assert np.shares_memory(slots.slot("dlogits"), slots.slot("dlogits"))


def test_magnitudes_of_another_version_are_refused(slots):
    with pytest.raises(UserError, match="magnitudes of fp8"):
        slots.state = {"norm 0": [1.0, 2.0]}
