"""Parquet files of records and of web pages, damaged in footer, page heads or anywhere."""

import tempfile
from pathlib import Path

import duckdb

from fuzz.campaigns.base import Campaign
from fuzz.mutation import Mutator
from nanoeuler.corpus import fineweb, instructions, preferences
from nanoeuler.corpus.page_filters import Filters

PAGES = """
select string_agg(md5(row::varchar || n), ' ') as text, '<urn:uuid:' || row || '>' as id,
       'https://example.org/' || row as url,
       case when row % 10 = 9 then 'de' else 'en' end as language,
       0.5 + (row % 50) / 100 as language_score,
       case when row % 7 = 0 then 2 else 3 end::bigint as int_score
from range(300) r(row), range(8) t(n) group by row order by row
"""
INSTRUCTIONS = """
select 'Say ' || row || '.' as instruction, case when row % 3 = 0 then 'x' end as input,
       'word ' || row as output, [row, row] as numbers, {'a': row, 'b': 'x'} as nested,
       date '2026-01-01' as day, row::decimal(9, 2) as price
from range(60) r(row)
"""
PAIRS = """
select 'Say ' || row as prompt, 'loud ' || row as chosen, 'soft ' || row as rejected
from range(60) r(row)
"""
QUERIES = {"pages": PAGES, "instructions": INSTRUCTIONS, "preferences": PAIRS}
CODECS = ("uncompressed", "snappy", "zstd", "gzip", "brotli", "lz4")


class Parquet(Campaign):
    def __init__(self, material: Path):
        super().__init__(material)
        self.files: list[tuple[str, bytes, list[int]]] = []  # kind, content, offsets of pages
        folder = Path(tempfile.mkdtemp(dir=material))  # two workers may take this campaign at once
        with duckdb.connect(config={"threads": 1}) as connection:
            for kind, query in QUERIES.items():
                for codec in CODECS:
                    path = folder / f"{kind}-{codec}.parquet"
                    connection.execute(
                        f"copy ({query}) to '{path}' (format parquet, compression {codec}, "
                        "row_group_size 100)"
                    )
                    offsets = connection.execute(
                        "select data_page_offset from parquet_metadata(?) union "
                        "select dictionary_page_offset from parquet_metadata(?)",
                        [str(path), str(path)],
                    ).fetchall()
                    starts = [offset for (offset,) in offsets if offset]
                    self.files.append((kind, path.read_bytes(), starts))

    def run(self, mutate: Mutator, folder: Path) -> None:
        kind, content, pages = mutate.rng.choice(self.files)
        damaged = self.damaged(mutate, content, pages)
        path = folder / "file.parquet"
        path.write_bytes(damaged)
        entry = {"url": str(path)}
        if kind == "pages":
            filters = Filters(min_score=0, min_language_score=0.0, min_characters=1)
            fineweb.extract(
                {"shards": [entry]}, 0, filters, folder / "pages.txt", folder / "pages.json"
            )
        elif kind == "instructions":
            instructions.prepare("x", {"x": entry}, 0.1, folder / "prepared")
        else:
            preferences.prepare("x", {"x": entry}, 0.1, folder / "prepared")

    def damaged(self, mutate: Mutator, content: bytes, pages: list[int]) -> bytes:
        size = int.from_bytes(content[-8:-4], "little")
        footer = len(content) - 8 - size
        where = mutate.rng.randrange(5)
        if where == 0:
            return mutate.bytes(content, footer, len(content) - 8)
        if where == 1:
            return mutate.bytes(content, len(content) - 8)
        if where == 2:
            page = mutate.rng.choice(pages)
            return mutate.bytes(content, page, min(page + 40, footer))
        if where == 3:
            at = mutate.rng.randrange(footer, len(content))  # one number of the footer
            return content[:at] + bytes([mutate.rng.randrange(256)]) + content[at + 1 :]
        return mutate.bytes(content)
