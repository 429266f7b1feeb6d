"""Parquet pages that arrive changed: found by their checksums, by the hash of the file, or refused.

Also what a footer may claim, and memory that does not suffice.
"""

import base64
import hashlib
import json
import struct
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from nanoeuler.corpus.fineweb import extract
from nanoeuler.corpus.page_filters import Filters
from nanoeuler.corpus.parquet_ranges import MAGIC, BadPage, check_pages, read_row_groups
from nanoeuler.corpus.record_files import read_records
from nanoeuler.corpus.remote_file import Patience
from nanoeuler.errors import UserError
from tests.servers import Fault

QUICK = Patience(attempts=2, first_pause=0.01, silence=5.0)
EVERYTHING = Filters(min_score=0, min_language_score=0.0, min_characters=1)
WITH_CHECKSUMS = base64.b85decode(
    "P(e~L6#y0V0u}TE75<&ttO*<y3>5$s1{DSz000020000C0U7`R0An{dHZw9XGazF!WnwZoGBF@zW@2V$VPY^E000"
    "1GV_`BjIW#dKWnnfpV=y*jAUQZ=HfAzoG8zB?05~%+Ght$4VjwtXVq{`wH8mhJV>C8lFf=e40000oWMnpCG%+|JV"
    ">x9uWjA6rAYwN+GGsI}Vj2Jd05ULUWMgJxI3PDPVq|4zVPYUMW;J4BH#amI0001CIb$_sVrDcTF*#u|WMwfnAY@}"
    "<F*#;tVHE%s^a2(10u_<W%Kr--"
    "6$}*s6$TXs8~^|S0ssI23;`Md001*&Wn?)pH8LPDGC4V8Fg9TzF*h?fFl1z68UO$QGcYqWG-NqtAYnBzG&nOkV<0"
    "wRVl`x9V>lWB003q<IWjUfI5i+SHZwFgF*Rc#F*!IfWi(+o8UO$QH8N&nGcYn?AYw2uVq{@vI3P4LHDfe1V=@{50"
    "03iRIb>sIWjG)(Ib||6V=*!yI51=~VmM-"
    "A8UO$QF)%Y_W;JDGAT%;DWHB>iHy~j#GG;M0V>T5887wsb7zT4=Xk~3-"
    "6#@Vi3?%{>1axJ1bR_^x8~^|S78n^U85|}692E>1B?bT)7zA`>cytv277P}u0~V?SCJ0F!6#x|g6#@V}7PtZ#1{o"
    "#*3;+NC7ODdl3?>K`ssjKS93}u96$}|A1^^it1axJ1bQJ&=3>K;b7ODd#vI9vR6#x|g6#@V}7PtZ#1{o#*3;+NC7"
    "ODdl3?{Mz7ODdPC?IfQa&dKKbS-0Wa4lhSa&LDac4cyNX>V>IGBz$SE-@J#8~^|S&Hw-aP(e~L"
)
"""12 texts in two row groups, written by pyarrow with write_page_checksum, uncompressed."""


def write_parquet(path: Path, select: str, options: str = "") -> Path:
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute(f"copy ({select}) to '{path}' (format parquet{options})")
    return path


def without_checksums(path: Path, options: str = ", compression uncompressed") -> bytes:
    select = "select md5(i::varchar) as text from range(3000) r(i)"
    return write_parquet(path, select, options).read_bytes()


def run(folder: Path, url: object, **facts: object) -> dict:
    entry = {"shards": [{"url": str(url), **facts}]}
    folder.mkdir(exist_ok=True)
    return extract(entry, 0, EVERYTHING, folder / "s.txt", folder / "s.json", QUICK)


def text_chunks(path: Path) -> list[tuple[int, int]]:
    with duckdb.connect() as connection:
        groups = read_row_groups(connection, path)
    return [group.columns["text"][:2] for group in groups]


def test_a_changed_bit_in_any_page_differs_from_its_checksum(tmp_path):
    (tmp_path / "a.parquet").write_bytes(WITH_CHECKSUMS)
    for start, stop in text_chunks(tmp_path / "a.parquet"):
        chunk = WITH_CHECKSUMS[start:stop]
        assert check_pages(chunk)
        for at in range(40, len(chunk)):
            with pytest.raises(BadPage):
                check_pages(chunk[:at] + bytes([chunk[at] ^ 1]) + chunk[at + 1 :])


@pytest.mark.parametrize("compression", ["uncompressed", "snappy", "zstd"])
def test_pages_without_checksums_are_walked_to_the_end_of_their_column(tmp_path, compression):
    content = without_checksums(tmp_path / "a.parquet", f", compression {compression}")
    for start, stop in text_chunks(tmp_path / "a.parquet"):
        assert not check_pages(content[start:stop])
        for end in (stop - 1, start + 1, start + 5):
            with pytest.raises(BadPage):
                check_pages(content[start:end])


@pytest.mark.parametrize("header", [b"\x15", b"\x1c" * 100, b"\x19\x00", b"\x15" + b"\xff" * 20])
def test_what_is_no_header_is_a_bad_page(header):
    with pytest.raises(BadPage):
        check_pages(header)


def test_a_page_that_changes_on_its_way_is_not_taken(server, tmp_path):
    address = server.put("a.parquet", WITH_CHECKSUMS)
    server.fail("/a.parquet", Fault(), Fault(), Fault(corrupt=True, after=100))
    with pytest.raises(UserError, match=r"damaged, .*\(a page differs from its checksum\)"):
        run(tmp_path / "out", address)
    assert list((tmp_path / "out").iterdir()) == []
    record = run(tmp_path / "out", address)
    assert (record["way"], record["page_checksums"], record["kept"]) == ("ranges", True, 12)


def test_over_http_a_known_hash_is_compared_where_pages_have_no_checksums(server, tmp_path):
    content = without_checksums(tmp_path / "a.parquet")
    facts = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    address = server.put("a.parquet", content)
    record = run(tmp_path / "out", address, **facts)
    assert (record["way"], record["kept"]) == ("whole file", 3_000)
    assert run(tmp_path / "ranges", address)["way"] == "ranges"
    changed = content.replace(hashlib.md5(b"7").hexdigest().encode(), b"0" * 32)
    assert len(changed) == len(content)
    server.put("a.parquet", changed)
    with pytest.raises(UserError, match="where the sources file says"):
        run(tmp_path / "out", address, **facts)


def test_ranges_that_changed_on_the_disk_are_fetched_again(server, tmp_path):
    address = server.put("a.parquet", WITH_CHECKSUMS)
    for damage in (False, True):
        # the second row group never comes
        server.fail("/a.parquet", *[Fault()] * 3, *[Fault(status=500)] * QUICK.attempts)
        with pytest.raises(UserError, match="answers 500"):
            run(tmp_path / "out", address)
        server.faults.clear()
        copy = tmp_path / "out" / ".s.txt.ranges"
        note = json.loads(copy.with_name(f"{copy.name}.json").read_text())
        start, stop, _ = note["ranges"][-1]
        if damage:
            content = copy.read_bytes()
            copy.write_bytes(content[:start] + bytes(stop - start) + content[stop:])
        before = server.requests()
        assert run(tmp_path / "out", address)["kept"] == 12
        asked = [seen.headers["Range"] for seen in server.seen[before:]]
        assert (f"bytes={start}-{stop - 1}" in asked) == damage


@pytest.mark.parametrize("note", ["null", "5", "[]", '{"ranges": 1}', '{"ranges": [[0, 9]]}'])
def test_a_damaged_note_of_ranges_starts_afresh(server, tmp_path, note):
    address = server.put("a.parquet", WITH_CHECKSUMS)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".s.txt.ranges").write_bytes(b"part")
    (tmp_path / "out" / ".s.txt.ranges.json").write_text(note)
    assert run(tmp_path / "out", address)["kept"] == 12


def test_a_footer_with_any_damaged_byte_is_no_traceback(server, tmp_path):
    size = int.from_bytes(WITH_CHECKSUMS[-8:-4], "little")
    for at in range(len(WITH_CHECKSUMS) - 8 - size, len(WITH_CHECKSUMS), 11):
        damaged = bytearray(WITH_CHECKSUMS)
        damaged[at] ^= 0xFF
        address = server.put("a.parquet", bytes(damaged))
        try:
            run(tmp_path / "out", address)
        except UserError as error:
            assert "; " in str(error)  # noqa: PT017  # success is as good


def test_a_footer_without_end_is_not_fetched(server, tmp_path):
    tail = struct.pack("<I", 200_000_000) + MAGIC
    path = server.root / "a.parquet"
    with open(path, "wb") as file:
        file.truncate(300_000_000)
        file.seek(-8, 2)
        file.write(tail)
    with pytest.raises(UserError, match="not a parquet file, or a damaged one"):
        run(tmp_path / "out", f"{server.url}/a.parquet")
    assert server.bytes_served < 100


def test_texts_that_unpack_to_a_hundred_times_their_size_are_refused(tmp_path):
    select = "select repeat(md5(i::varchar), 10000) as text from range(200) r(i)"
    path = write_parquet(tmp_path / "a.parquet", select, ", compression zstd")
    with pytest.raises(UserError, match=r"row group 0 unpacks to 6.*, over 100 times its size"):
        run(tmp_path / "out", path)
    with pytest.raises(UserError, match=r"a.parquet: unpacks to 6.*, over 100 times its size"):
        next(read_records(path, str(path)))


def test_too_little_memory_is_not_blamed_on_the_file(tmp_path):
    """160 MB of texts, which DuckDB gathers in buffers that double, and 400 MB for all."""
    select = "select repeat(md5(i::varchar), 40) as text from range(120000) r(i)"
    path = write_parquet(tmp_path / "a.parquet", select, ", compression zstd")
    program = """
import resource, sys
from pathlib import Path
from tests.corpus.test_parquet_truth import run
run(Path(sys.argv[2]), sys.argv[3])  # what the libraries allocate once is there
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 400_000_000,) * 2)
run(Path(sys.argv[2]), sys.argv[1])
"""
    (tmp_path / "small.parquet").write_bytes(WITH_CHECKSUMS)
    paths = [str(path), str(tmp_path / "out"), str(tmp_path / "small.parquet")]
    command = [sys.executable, "-c", program, *paths]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    assert "too little free memory for its row groups; end other programs" in said
    assert "damaged" not in said.splitlines()[-1]
