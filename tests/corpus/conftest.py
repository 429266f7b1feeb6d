"""Fixtures of the corpus tests: a web server, and the real data that may lie beside a checkout."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import Server


@pytest.fixture
def server(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Server]:
    """A server with an empty root. Proxies and tokens of the machine are not used for it."""
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with Server(tmp_path_factory.mktemp("served")) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder of real books, web pages and instructions."""
    folder = Path(__file__).resolve().parents[2] / "../shared/data"
    if not folder.is_dir():
        pytest.skip(f"the real data is not on this machine ({folder})")
    return folder
