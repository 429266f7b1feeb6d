"""Fixtures of the corpus tests: a web server, and the real data that may lie beside a checkout."""

import re
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from corpus_samples import page_text, write_book, write_pages
from downloads import CONTENT
from invented_world import DEFAULTS, read_book
from web_pages import make_parquet

from nanoeuler.corpus.sample.books import BOOKS
from nanoeuler.corpus.sample.world import World, build_world
from nanoeuler.corpus.sample.write import write_sample
from tests.servers import Server, lay_out_data_set


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


@pytest.fixture
def address(server: Server) -> str:
    return server.put("books/file.bin", CONTENT)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "file.bin"


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample of the demo."""
    folder = tmp_path_factory.mktemp("demo") / "sample"
    write_sample({}, folder)
    return folder


@pytest.fixture(scope="session")
def world() -> World:
    return build_world(DEFAULTS.seed, DEFAULTS.people, DEFAULTS.boats)


@pytest.fixture(scope="session")
def text(demo: Path) -> str:
    """All books, and all pages that pass the filters, with spaces for line ends."""
    pages = [
        row[0]
        for row in duckdb.sql(
            f"select distinct text from '{demo}/fineweb/000.parquet' where int_score >= 3 and "
            "language = 'en'"
        ).fetchall()
    ]
    books = [read_book(demo, book.id) for book in BOOKS if book.wrapping.style != "copyrighted"]
    return re.sub(r"\s+", " ", " ".join(books + pages))


@pytest.fixture(scope="session")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_parquet(tmp_path_factory.mktemp("parquet") / "000.parquet")


@pytest.fixture
def served(server: Server, parquet: Path) -> Server:
    lay_out_data_set(server.root, "web/pages", {"000.parquet": parquet})
    return server
