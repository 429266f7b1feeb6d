import pytest

from nanoeuler.log import counted


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (0, "0 pairs"),
        (1, "1 pair"),
        (2, "2 pairs"),
        (12345, "12,345 pairs"),
        (1.0, "1 pair"),
        (0.5, "0.5 pairs"),
        (2.25, "2.25 pairs"),
    ],
)
def test_one_thing_is_told_in_the_singular(number, told):
    assert counted(number, "pair") == told
