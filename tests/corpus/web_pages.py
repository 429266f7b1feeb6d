"""Parquet files like FineWeb-Edu's, and what is read from them."""

import hashlib
import itertools
import json
from pathlib import Path

import duckdb

from nanoeuler.corpus.extracted_pages import origins_of, read_index
from nanoeuler.corpus.fineweb import extract
from nanoeuler.corpus.page_filters import Filters
from nanoeuler.corpus.remote_file import Patience

QUICK = Patience(attempts=3, first_pause=0.01, silence=5.0)

EVERYTHING = Filters(min_score=0, min_language_score=0.0, min_characters=1)

SIGNED = "/signed/datasets/web/pages/000.parquet"


def make_parquet(path: Path, rows: int = 6_144, select: str | None = None) -> Path:
    """Write pages like FineWeb-Edu's: hardly compressible text of 100 to 1,400 characters.

    Every tenth is German, every seventh has score 2, and row 50 is row 3 again.
    """
    select = (
        select
        or f"""
        select (select string_agg(md5(concat(seed, '-', n)), ' ')
                from range(3 + seed % 40) t(n)) as text,
               '<urn:uuid:' || row || '>' as id, 'CC-MAIN' as dump,
               'https://example.org/' || row as url, 's3://' || md5(row::varchar) as file_path,
               case when row % 10 = 9 then 'de' else 'en' end as language,
               0.5 + (row % 50) / 100 as language_score, 100 as token_count,
               2.0 + row % 7 / 3 as score,
               case when row % 7 = 0 then 2 else 3 end::bigint as int_score
        from (select row, case row when 50 then 3 else row end as seed from range({rows}) r(row))"""
    )
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute(
            f"copy ({select}) to '{path}' (format parquet, compression zstd, row_group_size 2048)"
        )
    return path


def sources(*urls: object) -> dict:
    return {
        "collection": "web",
        "revision": "abc",
        "licence": "ODC-By",
        "shards": [{"url": str(url), "bytes": None, "sha256": None} for url in urls],
    }


REMOTE = sources("hf://datasets/web/pages/000.parquet")


def run(
    entry: dict, folder: Path, filters: Filters = EVERYTHING, shard: int = 0
) -> tuple[dict, list[tuple]]:
    record = extract(entry, shard, filters, folder / "shard.txt", folder / "shard.json", QUICK)
    assert json.loads((folder / "shard.json").read_text(encoding="utf-8")) == record
    unknown = record["way"] == "whole file" and not entry["shards"][shard]["sha256"]
    assert sorted(path.name for path in folder.iterdir()) == [
        "shard.index",
        "shard.json",
        "shard.parquet",
        "shard.txt",
        *(["shard.txt.first.json"] if unknown else []),
    ]
    return record, read_extracted(folder / "shard.txt")


def read(path: Path) -> list[tuple]:
    with duckdb.connect() as connection:
        return connection.execute(
            "select id, url, text from read_parquet(?)", [str(path)]
        ).fetchall()


def read_extracted(path: Path) -> list[tuple]:
    """Read id, url and text of each page, and check the hashes in the index."""
    pages, content = read_index(path, "fineweb"), path.read_bytes()
    texts = [content[start:end] for start, end in itertools.pairwise([0, *pages["end"].tolist()])]
    assert [hashlib.sha256(text).digest() for text in texts] == [
        bytes(sha256) for sha256 in pages["sha256"]
    ]
    with duckdb.connect() as connection:
        origins = connection.execute(
            "select id, url from read_parquet(?)", [str(origins_of(path))]
        ).fetchall()
    return [(*origin, text.decode()) for origin, text in zip(origins, texts, strict=True)]


def text_chunks(path: Path) -> list[int]:
    """Return the compressed bytes of the text column of each row group."""
    with duckdb.connect() as connection:
        query = """
            select total_compressed_size from parquet_metadata(?) where path_in_schema = 'text'
            order by row_group_id"""
        return [size for (size,) in connection.execute(query, [str(path)]).fetchall()]
