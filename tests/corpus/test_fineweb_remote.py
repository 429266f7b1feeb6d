"""Parquet files on a server: the bytes that it counts, interruptions, damage."""

import json
import os
import signal
import subprocess
import sys

import duckdb
import pytest
from web_pages import (
    EVERYTHING,
    QUICK,
    REMOTE,
    SIGNED,
    make_parquet,
    read_extracted,
    run,
    sources,
    text_chunks,
)

from nanoeuler.cli import main
from nanoeuler.corpus.fineweb import extract
from nanoeuler.corpus.page_filters import Filters
from nanoeuler.corpus.parquet_ranges import merge
from nanoeuler.errors import UserError
from tests.servers import Fault, lay_out_data_set
from tests.waiting import wait_until


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


def test_ranges_without_a_validator_may_be_of_two_versions(served, parquet, tmp_path):
    served.validators = False
    record, pages = run(REMOTE, tmp_path)
    assert record["way"] == "whole file"
    (tmp_path / "local").mkdir()
    assert pages == run(sources(parquet), tmp_path / "local")[1]


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


def test_wrong_sizes_and_numbers_are_said(served, parquet, tmp_path):
    wrong = REMOTE | {"shards": [REMOTE["shards"][0] | {"bytes": 7}]}
    with pytest.raises(UserError, match="where the sources file says 7"):
        run(wrong, tmp_path)
    with pytest.raises(UserError, match="lists 1 shard, counted from 0"):
        run(REMOTE, tmp_path, shard=1)
    assert list(tmp_path.iterdir()) == []


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
