"""Fixtures of the corpus tests: a web server, and the real data that may lie beside a checkout."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from corpus_samples import page_text, write_book, write_pages

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


@pytest.fixture
def books(tmp_path):
    return [
        write_book(
            tmp_path / "clean",
            n,
            f"Book {n}",
            f"Bøok {n} begins.\n\n" + "It goes on. " * (20 + n) + "\n",
        )
        for n in range(1, 21)
    ]


@pytest.fixture
def pages(tmp_path):
    texts = [[page_text(shard, number) for number in range(150)] for shard in range(2)]
    return [
        write_pages(tmp_path / f"web/shard-{shard:03d}.txt", texts[shard]) for shard in range(2)
    ]


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder of real books, web pages and instructions."""
    folder = Path(__file__).resolve().parents[2] / "../shared/data"
    if not folder.is_dir():
        pytest.skip(f"the real data is not on this machine ({folder})")
    return folder
