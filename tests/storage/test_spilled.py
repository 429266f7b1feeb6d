"""Records that are sorted on disk are read in bounded parts, however uneven their keys are."""

import numpy as np
import pytest

from nanoeuler.storage import spilled
from nanoeuler.storage.spilled import COLUMNS, SortedRuns

BITS, TOGETHER = 40, 20


@pytest.fixture
def little(monkeypatch):
    for name, limit in {"RUN": 700, "PART": 300, "BUCKETS": 16}.items():
        monkeypatch.setattr(spilled, name, limit)


def numbered(keys: np.ndarray) -> np.ndarray:
    records = np.zeros((len(keys), COLUMNS), np.uint64)
    records[:, 0], records[:, 1] = keys, np.arange(len(keys))
    return records


@pytest.mark.parametrize("slots", [1, 3, 50, 1 << (BITS - TOGETHER)])
def test_parts_are_bounded_and_have_all_records_in_order(slots, tmp_path, little):
    """Also where all keys are of one slot; a smaller slot is never cut."""
    dice = np.random.Generator(np.random.SFC64(slots))
    of_slot = dice.integers(0, slots, 5_000).astype(np.uint64) << np.uint64(TOGETHER)
    keys = of_slot + dice.permutation(5_000).astype(np.uint64)
    runs = SortedRuns(tmp_path / "runs", BITS, TOGETHER)
    for some in np.array_split(numbered(keys), 9):
        runs.add(some)
    runs.finish()
    parts = runs.parts()
    found = [runs.read(part) for part in parts]
    assert max(map(len, found)) <= 600
    assert (np.concatenate(found)[:, 0] == np.sort(keys)).all()
    assert (keys[np.concatenate(found)[:, 1]] == np.sort(keys)).all()
    sizes = dict(zip(*np.unique(keys >> np.uint64(TOGETHER), return_counts=True), strict=True))
    for records in found:
        for slot in np.unique(records[:, 0] >> np.uint64(TOGETHER)):
            here = int((records[:, 0] >> np.uint64(TOGETHER) == slot).sum())
            assert here == sizes[slot] or sizes[slot] > 600
    runs.remove()
    assert not list(tmp_path.iterdir())


def test_equal_keys_are_reduced_before_they_are_written(tmp_path, little):
    def first_of_each(records: np.ndarray) -> np.ndarray:
        return records[np.unique(records[:, 0], return_index=True)[1]]

    runs = SortedRuns(tmp_path / "runs", BITS, reduce=first_of_each)
    for _ in range(20):
        runs.add(numbered(np.arange(1_000, dtype=np.uint64) % np.uint64(7)))
    runs.finish()
    assert runs.written <= 7 * 21
    assert np.concatenate([runs.read(part) for part in runs.parts()])[:, 0].tolist() == [*range(7)]


def test_nothing_has_no_parts(tmp_path):
    runs = SortedRuns(tmp_path / "runs", BITS)
    runs.finish()
    assert runs.parts() == []
