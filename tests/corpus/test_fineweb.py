"""Web pages from parquet files: the pages that are kept, and damage."""

import io
from pathlib import Path

import duckdb
import pytest
from web_pages import EVERYTHING, REMOTE, make_parquet, read, run, sources, text_chunks

from nanoeuler.cli import main
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
from nanoeuler.errors import UserError
from nanoeuler.storage.files import explain_os_errors


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


def test_parquet_without_text_is_said(tmp_path):
    for select, sentence in (
        ("select 1 as body, 2 as title", r"no column text \(only body, title\)"),
        ("select 7 as text", "its column text holds INTEGER"),
    ):
        file = make_parquet(tmp_path / "x.parquet", select=select)
        with pytest.raises(UserError, match=sentence):
            extract(sources(file), 0, EVERYTHING, tmp_path / "shard.txt", tmp_path / "shard.json")


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
