"""Extract web pages from a parquet file in FineWeb-Edu's schema.

    nanoeuler fineweb --config config/small.yaml --shard 0 \\
        --output data/fineweb/x/shard-000.txt --record data/fineweb/x/shard-000.json

Pages that pass the filters are kept, each text once, up to a budget of bytes. The file may lie on
this machine (a path, folder or glob) or on a server. From a server, only the footer and the needed
columns of the first row groups are fetched (parquet_ranges.py), one group at a time until the
budget is used up. A server without ranges sends the whole file. The result is the same either way.

A part of a file cannot be compared with the hash in the sources file. Its pages are compared with
their own checksums, or else https must vouch for them: over http, a file of known hash whose pages
have no checksums is fetched whole.

DuckDB's own httpfs is not used: it is an extension to be downloaded, knows neither Retry-After nor
one connection at a time, and reads ahead of what is needed.
"""

import glob
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from nanoeuler import log
from nanoeuler.corpus.download import SourceFile, local_copy, only_process_at
from nanoeuler.corpus.extracted_pages import index_of
from nanoeuler.corpus.page_filters import Filters
from nanoeuler.corpus.parquet_pages import Damaged, NothingLeft, Parquet, write_pages
from nanoeuler.corpus.parquet_ranges import RowGroup, SparseCopy
from nanoeuler.corpus.remote_file import Patience, StartOver
from nanoeuler.errors import UserError
from nanoeuler.storage.files import explain_os_errors, sha256_file, write_json


def extract(
    sources: Mapping[str, Any],
    shard: int,
    filters: Filters,
    output: Path,
    record: Path,
    patience: Patience | None = None,
) -> dict[str, Any]:
    """Write the pages of a shard that pass `filters` to `output`, and counts of all to `record`.

    The index and the origins of the pages lie beside `output` (extracted_pages.py). The record is
    written last; its sha256 is that of the index, which holds the hashes of all texts. `sources` is
    the section fineweb of the sources file. Returns the record. Raises `UserError` when the shard
    cannot be read or no page is left.
    """
    source = SourceFile.numbered(sources, "shards", shard)
    with explain_os_errors(output):
        location = source.location
        taken = (
            extract_local(source, location, filters, output)
            if isinstance(location, Path)
            else extract_remote(source, location, filters, output, patience)
        )
    facts = {
        "version": 1,
        "shard": shard,
        "url": source.url,
        "revision": source.revision,
        "licence": sources.get("licence"),
        "filters": asdict(filters),
        **taken,
        "sha256": sha256_file(index_of(output)),
    }
    write_json(record, facts)
    told = ("shard", "way", "rows_read", "kept", "text_bytes", "bytes_fetched", "stopped")
    log.line("fineweb", **{key: facts[key] for key in told})
    return facts


def find_files(location: Path) -> list[Path]:
    """Return the files that a path, folder or glob names, sorted."""
    if location.is_file():
        return [location]
    if location.is_dir():
        files = sorted(location.glob("*.parquet"))
    else:
        files = [Path(path) for path in sorted(glob.glob(str(location), recursive=True))]
    if not files:
        raise UserError(
            f"{location}: no such parquet file, nor a folder or glob with some; "
            "correct the address in the sources file"
        )
    return files


def extract_local(
    source: SourceFile, location: Path, filters: Filters, output: Path
) -> dict[str, Any]:
    files = find_files(location)
    if len(files) == 1 and (problem := source.mismatch(files[0])):
        raise UserError(f"{files[0]}: {problem}; fetch it again, or correct the sources file")
    parquet = [Parquet(file, file.stem) for file in files]
    taken = write_pages(parquet, filters, output, source.url)
    return {"way": "local", "bytes_fetched": 0} | taken


def extract_remote(
    source: SourceFile, location: str, filters: Filters, output: Path, patience: Patience | None
) -> dict[str, Any]:
    name = PurePosixPath(unquote(urlsplit(location).path)).stem
    scratch = output.with_name(f".{output.name}.ranges")
    output.parent.mkdir(parents=True, exist_ok=True)
    with only_process_at(scratch):
        try:
            copy = SparseCopy(source.remote(location, patience), scratch)
            checksums = True

            def fetch(group: RowGroup, columns: Collection[str]) -> None:
                nonlocal checksums
                checksums = copy.fetch(group, columns) and checksums
                if not checksums and source.sha256 and not location.startswith("https://"):
                    raise StartOver("its pages have no checksums, but the file has a known hash")

            try:
                parquet = Parquet(copy.path, name, fetch)
                taken = write_pages([parquet], filters, output, source.url)
            except (Damaged, NothingLeft, StartOver):  # another attempt could not use the ranges
                copy.remove()
                raise
            copy.remove()
            fetched = {"bytes_fetched": copy.bytes_fetched, "page_checksums": checksums}
            return {"way": "ranges"} | fetched | taken
        except StartOver as why:
            log.line("whole", f"{source.url}: {why}; fetching all of it")
        with local_copy(source, output, patience) as whole:
            taken = write_pages([Parquet(whole.path, name)], filters, output, source.url)
            return {"way": "whole file", "bytes_fetched": whole.path.stat().st_size} | taken
