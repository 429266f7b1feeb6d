"""Real text where there is some, and a small tokenizer, read by the `tokenizers` library, too."""

import gzip
from pathlib import Path

import pytest
import tokenizers
from tokenizer_samples import PROSE, read_by_peer, tokenizer_of

from nanoeuler.tokenizer.tokenizer import Tokenizer

SHARED = Path(__file__).resolve().parents[2] / "../shared/data"


@pytest.fixture(scope="session")
def books() -> list[bytes]:
    """A few real books as Project Gutenberg serves them, about 4 MB, in several encodings."""
    paths = [
        SHARED / "gutenberg" / f"pg{index}.txt.gz" for index in (1342, 84, 55, 2641, 98, 2000, 61)
    ]
    return [gzip.decompress(path.read_bytes()) for path in need(paths)]


@pytest.fixture(scope="session")
def web() -> list[str]:
    """A thousand real web texts, about 4 MB."""
    (path,) = need([SHARED / "web/fineweb_edu_standin_000.parquet"])
    import duckdb

    return [
        text
        for (text,) in duckdb.execute(
            "select text from read_parquet(?) limit 1000", [str(path)]
        ).fetchall()
    ]


def need(paths: list[Path]) -> list[Path]:
    """Return those of `paths` that exist; the test is skipped when none does."""
    present = [path for path in paths if path.is_file()]
    return present or pytest.skip(
        f"{paths[0]} is not there: this test needs the shared data beside the checkout"
    )


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """Learned from PROSE until no pair occurs twice."""
    return tokenizer_of([PROSE.encode() * 2], 600)


@pytest.fixture(scope="session")
def peer(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> tokenizers.Tokenizer:
    """The same tokenizer, read by the `tokenizers` library."""
    return read_by_peer(tokenizer, tmp_path_factory.mktemp("peer") / "tokenizer.json")
