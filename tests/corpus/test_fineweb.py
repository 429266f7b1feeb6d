"""Web pages from parquet files: the pages kept, the bytes that the server counts, and damage."""

import hashlib
import io
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from nanoeuler.cli import main
from nanoeuler.corpus.extracted_pages import origins_of, read_index
from nanoeuler.corpus.fineweb import extract
from nanoeuler.corpus.page_filters import Filters, Selection
from nanoeuler.corpus.parquet_pages import (
    Parquet,
    connected,
    copy_origins,
    describe,
    explain_errors,
    select_pages,
)
from nanoeuler.corpus.parquet_ranges import merge
from nanoeuler.corpus.remote_file import Patience
from nanoeuler.errors import UserError
from nanoeuler.files import explain_os_errors
from tests.servers import Fault, Server, lay_out_data_set
from tests.waiting import wait_until

QUICK = Patience(attempts=3, first_pause=0.01, silence=5.0)
EVERYTHING = Filters(min_score=0, min_language_score=0.0, min_characters=1)
SIGNED = "/signed/datasets/web/pages/000.parquet"


def make_parquet(
    path: Path, rows: int = 6_144, select: str | None = None, group: int = 2_048
) -> Path:
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
            f"copy ({select}) to '{path}' (format parquet, compression zstd, "
            f"row_group_size {group})"
        )
    return path


@pytest.fixture(scope="session")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_parquet(tmp_path_factory.mktemp("parquet") / "000.parquet")


@pytest.fixture
def served(server: Server, parquet: Path) -> Server:
    lay_out_data_set(server.root, "web/pages", {"000.parquet": parquet})
    return server


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
    pages, content = read_index(path), path.read_bytes()
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


def test_filters_drop_and_the_rest_keeps_its_order(parquet, tmp_path):
    filters = Filters(
        min_score=3, language="en", min_language_score=0.6, min_characters=200, max_characters=1_000
    )
    record, pages = run(sources(parquet), tmp_path, filters)
    with duckdb.connect() as connection:
        query = """
            select id, url, text from read_parquet(?, file_row_number = true)
            where language = 'en' and language_score >= 0.6 and int_score >= 3
            and length(text) between 200 and 1000 and file_row_number != 50
            order by file_row_number"""
        assert pages == connection.execute(query, [str(parquet)]).fetchall()
    assert record["kept"] == len(pages)
    assert record["text_bytes"] == sum(len(text.encode()) for _, _, text in pages)
    assert (
        record["rows_read"]
        == record["rows"]
        == 6_144
        == record["kept"] + sum(record["dropped"].values())
    )
    assert all(
        record["dropped"][reason]
        for reason in ("language", "language score", "score", "too short", "too long")
    )
    assert (record["stopped"], record["way"], record["licence"], record["revision"]) == (
        "end",
        "local",
        "ODC-By",
        "abc",
    )


def test_a_text_is_kept_once_its_first_time(parquet, tmp_path):
    record, pages = run(sources(parquet), tmp_path)
    ids = [identity for identity, _, _ in pages]
    assert record["dropped"]["duplicate"] == 1
    assert "<urn:uuid:3>" in ids
    assert "<urn:uuid:50>" not in ids


@pytest.mark.parametrize("budget", [10**9, 2_500_000, 1_500_000, 100_000])
def test_every_way_gives_the_same_bytes(served, parquet, tmp_path, budget):
    filters = Filters(max_bytes_per_shard=budget, min_language_score=0.0)
    (tmp_path / "local").mkdir()
    (tmp_path / "ranges").mkdir()
    (tmp_path / "whole").mkdir()
    local, pages = run(sources(parquet), tmp_path / "local", filters)
    ranges, _ = run(REMOTE, tmp_path / "ranges", filters)
    served.ranges = False
    whole, _ = run(REMOTE, tmp_path / "whole", filters)
    assert (local["way"], ranges["way"], whole["way"]) == ("local", "ranges", "whole file")
    assert local["sha256"] == ranges["sha256"] == whole["sha256"]
    assert sum(len(text.encode()) for _, _, text in pages) <= budget
    assert local["stopped"] == ("end" if budget == 10**9 else "budget")


@pytest.mark.parametrize("budget", [10**9, 4_000_000, 1_800_000])
def test_little_more_than_the_text_that_is_kept_is_served(served, parquet, tmp_path, budget):
    record, _ = run(
        REMOTE,
        tmp_path,
        Filters(
            max_bytes_per_shard=budget,
            min_score=0,
            min_language_score=0.0,
            language="en",
            min_characters=1,
        ),
    )
    kept_share = record["text_bytes"] / sum(
        len(text.encode()) for _, _, text in read(parquet)[: record["row_groups_read"] * 2_048]
    )
    assert (
        served.bytes_served
        <= 1.3 * sum(text_chunks(parquet)[: record["row_groups_read"]]) * kept_share
    )
    assert record["bytes_fetched"] == pytest.approx(served.bytes_served, abs=100)
    assert record["row_groups_read"] == {10**9: 3, 4_000_000: 3, 1_800_000: 1}[budget]


def test_a_row_group_is_not_fetched_for_a_small_part_of_it(served, parquet, tmp_path):
    record, _ = run(
        REMOTE,
        tmp_path,
        Filters(
            max_bytes_per_shard=2_000_000,
            min_score=0,
            language="en",
            min_language_score=0.0,
            min_characters=1,
        ),
    )
    assert record["row_groups_read"] == 1
    assert record["text_bytes"] < 2_000_000


def test_columns_that_are_not_needed_stay_on_the_server(served, tmp_path):
    run(REMOTE, tmp_path)
    path = served.root / "datasets" / "web" / "pages" / "000.parquet"
    with duckdb.connect() as connection:
        (unneeded,) = connection.execute(
            "select sum(total_compressed_size) from parquet_metadata(?) "
            "where path_in_schema = 'file_path'",
            [str(path)],
        ).fetchone()
    assert served.bytes_served <= path.stat().st_size - unneeded + 100


def test_signatures_that_expire_and_busy_servers_are_lived_with(served, parquet, tmp_path):
    served.signature_requests = 3
    resolving = "/datasets/web/pages/resolve/abc/000.parquet"
    served.fail(resolving, Fault(), Fault(status=429, headers={"Retry-After": "0"}))
    served.fail(SIGNED, Fault(), Fault(truncate=True, after=100), Fault(status=503))
    record, pages = run(REMOTE, tmp_path)
    assert record["way"] == "ranges"
    assert len(pages) == record["kept"] > 5_000
    assert [seen.status for seen in served.seen].count(403) >= 2


def test_an_interrupted_extraction_goes_on_where_it_stopped(served, parquet, tmp_path):
    # after tail, footer, and two requests for the first row group
    served.fail(SIGNED, Fault(), Fault(), Fault(), Fault(), Fault(stall=True))
    config = json.dumps(
        {
            "corpus": {"fineweb": {"min_score": 0, "min_language_score": 0, "min_characters": 1}},
            "sources": {"fineweb": REMOTE},
        }
    )
    output, record = tmp_path / "shard.txt", tmp_path / "shard.json"
    command = [
        sys.executable,
        "-m",
        "nanoeuler",
        "fineweb",
        "--config",
        config,
        "--shard",
        "0",
        "--output",
        str(output),
        "--record",
        str(record),
    ]
    process = subprocess.Popen(
        command, stderr=subprocess.DEVNULL, env=os.environ | {"HF_ENDPOINT": served.url}
    )
    wait_until(lambda: served.faults.get(SIGNED) == [] and served.requests(SIGNED) >= 5, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not output.exists()
    before = served.bytes_served
    assert main(command[3:]) == 0
    assert served.bytes_served - before < 0.75 * parquet.stat().st_size
    again = tmp_path / "again"
    again.mkdir()
    assert read_extracted(output) == run(sources(parquet), again)[1]


def test_a_file_that_changes_between_two_attempts_is_not_mixed(served, parquet, tmp_path):
    served.fail(SIGNED, Fault(), Fault(), Fault(), Fault(), *[Fault(status=500)] * QUICK.attempts)
    with pytest.raises(UserError, match="500"):
        extract(REMOTE, 0, EVERYTHING, tmp_path / "shard.txt", tmp_path / "shard.json", QUICK)
    other = make_parquet(tmp_path / "other.parquet", rows=3_000)
    lay_out_data_set(served.root, "web/pages", {"000.parquet": other})
    (tmp_path / "other").mkdir()
    expected = run(sources(other), tmp_path / "other")[1]
    record = extract(REMOTE, 0, EVERYTHING, tmp_path / "shard.txt", tmp_path / "shard.json", QUICK)
    assert record["way"] == "ranges"
    assert read_extracted(tmp_path / "shard.txt") == expected


@pytest.mark.parametrize("where", ["local", "remote"])
def test_damage_is_one_sentence_and_leaves_nothing(server, parquet, tmp_path, where):
    content = parquet.read_bytes()
    folder = tmp_path / "out"
    folder.mkdir()
    cases = {
        "cut.parquet": content[:-5_000],
        "page.parquet": b"<!DOCTYPE html><html><body>Blocked</body></html>",
        "empty.parquet": b"",
        "flipped.parquet": content[: len(content) // 3]
        + bytes(200)
        + content[len(content) // 3 + 200 :],
    }
    for name, damaged in cases.items():
        address = (
            server.put(f"datasets/web/pages/{name}", damaged)
            if where == "remote"
            else tmp_path / name
        )
        if where == "local":
            address.write_bytes(damaged)
        with pytest.raises(UserError, match=rf"{name}: .*(damaged|not a parquet file)") as caught:
            extract(
                sources(address), 0, EVERYTHING, folder / "shard.txt", folder / "shard.json", QUICK
            )
        assert "\n" not in str(caught.value)
        assert list(folder.iterdir()) == []


def test_a_transfer_that_corrupts_a_page_can_be_run_again(served, parquet, tmp_path):
    served.fail(SIGNED, Fault(), Fault(), Fault(corrupt=True, after=20))
    with pytest.raises(UserError, match="damaged"):
        extract(REMOTE, 0, EVERYTHING, tmp_path / "shard.txt", tmp_path / "shard.json", QUICK)
    assert list(tmp_path.iterdir()) == []
    assert run(REMOTE, tmp_path)[0]["kept"] > 5_000


def test_parquet_without_text_is_said(tmp_path):
    for select, sentence in (
        ("select 1 as body, 2 as title", r"no column text \(only body, title\)"),
        ("select 7 as text", "its column text holds INTEGER"),
    ):
        file = make_parquet(tmp_path / "x.parquet", select=select)
        with pytest.raises(UserError, match=sentence):
            extract(sources(file), 0, EVERYTHING, tmp_path / "shard.txt", tmp_path / "shard.json")


def test_filters_that_leave_nothing_say_which_dropped_how_many(served, parquet, tmp_path):
    for entry in (sources(parquet), REMOTE):
        with pytest.raises(
            UserError,
            match=r"of 6,144 rows they drop: language 614, score 5,530; "
            r"loosen corpus.fineweb.min_score$",
        ):
            extract(
                entry,
                0,
                Filters(min_score=5, min_language_score=0.0),
                tmp_path / "shard.txt",
                tmp_path / "shard.json",
                QUICK,
            )
    with pytest.raises(
        UserError, match=r"beyond the budget 1; loosen corpus.fineweb.max_bytes_per_shard$"
    ):
        extract(
            sources(parquet),
            0,
            Filters(max_bytes_per_shard=10, min_characters=1, min_score=0, min_language_score=0),
            tmp_path / "s",
            tmp_path / "r",
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="this system has no /dev/full to stand for a full disk"
)
def test_a_full_disk_is_said(parquet, tmp_path):
    file, full = Parquet(parquet, "000"), Path("/dev/full")
    with connected(tmp_path) as connection:
        describe(connection, file, "000.parquet")
        select_pages(connection, [file], Selection(EVERYTHING), io.BytesIO(), io.BytesIO())
        with (
            pytest.raises(UserError, match=r"/dev/full: the disk is full; free some space"),
            explain_os_errors(full),
            explain_errors("000.parquet", full),
        ):
            copy_origins(connection, [file], full)


def test_a_parquet_of_your_own_needs_only_text(tmp_path):
    file = make_parquet(
        tmp_path / "mine.parquet",
        select="select unnest(['first page', null, ' ', 'second page', 'first page']) as text",
    )
    (tmp_path / "out").mkdir()
    record, pages = run(sources(file), tmp_path / "out", Filters(min_characters=1))
    assert pages == [("mine:0", "", "first page"), ("mine:3", "", "second page")]
    assert record["missing_columns"] == ["id", "int_score", "language", "language_score", "url"]
    assert (record["dropped"]["no text"], record["dropped"]["duplicate"]) == (2, 1)


def test_a_folder_or_glob_is_read_in_the_order_of_its_names(tmp_path):
    (tmp_path / "web").mkdir()
    for name, text in (("b", "two"), ("a", "one")):
        make_parquet(
            tmp_path / "web" / f"{name}.parquet",
            select=f"select '{text}' as text, 'id-{text}' as id",
        )
    for number, address in enumerate(
        (tmp_path / "web", tmp_path / "web" / "*.parquet", tmp_path / "w*" / "[ab].parquet")
    ):
        (tmp_path / str(number)).mkdir()
        _, pages = run(sources(address), tmp_path / str(number), Filters(min_characters=1))
        assert pages == [("id-one", "", "one"), ("id-two", "", "two")]
    with pytest.raises(UserError, match="no such parquet file"):
        run(sources(tmp_path / "nowhere"), tmp_path)


def test_wrong_sizes_and_numbers_are_said(served, parquet, tmp_path):
    wrong = REMOTE | {"shards": [REMOTE["shards"][0] | {"bytes": 7}]}
    with pytest.raises(UserError, match="where the sources file says 7"):
        run(wrong, tmp_path)
    with pytest.raises(UserError, match="lists 1 shard, counted from 0"):
        run(REMOTE, tmp_path, shard=1)
    assert list(tmp_path.iterdir()) == []


def test_the_stage_ends_with_one_sentence(tmp_path, capsys):
    options = [
        "--shard",
        "0",
        "--output",
        str(tmp_path / "shard.txt"),
        "--record",
        str(tmp_path / "shard.json"),
    ]
    assert main(["fineweb", "--config", '{"corpus": {"fineweb": {}}}', *options]) == 1
    assert (
        capsys.readouterr().err
        == "error  --config: sources.fineweb is missing; this stage needs it\n"
    )


def test_small_gaps_are_fetched_along():
    assert merge([(50_000, 60_000), (0, 100), (200, 300), (60_000, 60_001)]) == [
        (0, 300),
        (50_000, 60_001),
    ]


@pytest.mark.parametrize("budget", [10_000_000, 20_000_000])
def test_real_pages_cost_at_most_130_percent_of_their_compressed_text(
    server, real_data, tmp_path, budget
):
    file = real_data / "web" / "fineweb_edu_standin_000.parquet"
    lay_out_data_set(server.root, "web/pages", {"000.parquet": file})
    (tmp_path / "local").mkdir()
    local, _ = run(sources(file), tmp_path / "local", Filters(max_bytes_per_shard=budget))
    (tmp_path / "remote").mkdir()
    record, _ = run(REMOTE, tmp_path / "remote", Filters(max_bytes_per_shard=budget))
    with duckdb.connect() as connection:
        query = f"""
            select sum(strlen(text)) from read_parquet(?, file_row_number = true)
            where file_row_number < {1_000 * record["row_groups_read"]}"""
        (text_bytes,) = connection.execute(query, [str(file)]).fetchone()
    compressed = (
        sum(text_chunks(file)[: record["row_groups_read"]]) * record["text_bytes"] / text_bytes
    )
    assert server.bytes_served <= 1.3 * compressed
    assert record["sha256"] == local["sha256"]
    assert budget * 0.8 <= record["text_bytes"] <= budget
    assert record["dropped"]["score"] > 0
