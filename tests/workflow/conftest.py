"""Checkouts with stubs for stages: fresh, or with a complete run."""

import shutil

import pytest
from stub_checkout import Checkout, make_checkout


@pytest.fixture
def checkout(tmp_path) -> Checkout:
    """A fresh checkout."""
    (tmp_path / "checkout").mkdir()
    return make_checkout(tmp_path / "checkout")


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Checkout:
    """A checkout whose run is complete. Not to be changed: take `done`."""
    checkout = make_checkout(tmp_path_factory.mktemp("finished"))
    checkout.run()
    return checkout


@pytest.fixture
def done(finished, tmp_path) -> Checkout:
    """A copy of a checkout whose run is complete."""
    shutil.copytree(finished.path, tmp_path / "done", symlinks=True)
    return Checkout(tmp_path / "done")
