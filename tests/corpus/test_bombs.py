"""Compressed files that unpack to far more than they are, and archives that lie."""

import gzip
import json
import struct
import subprocess
import sys
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import pytest
from record_samples import lines

from nanoeuler.corpus.instructions import prepare as prepare_instructions
from nanoeuler.corpus.json_records import BLOCK, LARGEST_RECORD, read_json_records
from nanoeuler.corpus.packed_files import most_unpacked
from nanoeuler.corpus.tasks import prepare as prepare_task
from nanoeuler.errors import UserError

RECORD = {"instruction": "Say something.", "output": "Something."}
ITEM = {"goal": "To open a jar,", "sol1": "turn its lid.", "sol2": "eat it.", "label": 0}
PEAK = """
import resource, sys
from pathlib import Path
from nanoeuler.corpus import instructions, tasks
from nanoeuler.errors import UserError
kind, path, output = sys.argv[1:]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    if kind == "instructions":
        instructions.prepare(path, {}, 0.5, Path(output))
    else:
        tasks.prepare({"name": "piqa", "kind": "piqa", "url": path}, Path(output))
except UserError as error:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, error)
"""


def deflated(pattern: bytes, size: int) -> bytes:
    """Compress `size` bytes of a repeated pattern with gzip, a part at a time."""
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)
    block = pattern * (1_000_000 // len(pattern))
    packed = b"".join(packer.compress(block) for _ in range(size // len(block)))
    return packed + packer.flush()


def archive(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.jsonl", content)
    return path


def task(path: Path, output: Path) -> dict:
    return prepare_task({"name": "piqa", "kind": "piqa", "url": str(path)}, output)


@pytest.mark.parametrize(
    ("kind", "pattern"),
    [
        ("instructions", b"{}\n"),
        ("instructions", b'{"a":"'),
        ("instructions", b"[[],"),
        ("task", b"\n"),
        ("task", b"[ "),
    ],
)
def test_a_gzip_bomb_is_refused_in_little_memory(tmp_path, kind, pattern):
    """80 MB of lines, of one line, of a list without end."""
    bomb = tmp_path / "bomb.jsonl.gz"
    bomb.write_bytes(deflated(pattern, 80_000_000))
    assert bomb.stat().st_size < 500_000
    command = [sys.executable, "-c", PEAK, kind, str(bomb), str(tmp_path / "out")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    kilobytes, _, sentence = said.partition(" ")
    assert "unpacks to more than" in sentence
    assert int(kilobytes) < 30_000
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("layers", ["zip", "gzip in zip", "many files", "gzip after gzip"])
def test_a_bomb_in_layers_or_parts_is_counted_whole(tmp_path, layers):
    bomb = deflated(b"{}\n", 30_000_000)
    if layers == "gzip after gzip":
        path = tmp_path / "bomb.jsonl"
        path.write_bytes(bomb * 2)
    else:
        path = tmp_path / "bomb.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            if layers == "zip":
                file.writestr("a.jsonl", b"{}\n" * 20_000_000)
            else:
                file.writestr("a.jsonl.gz", bomb)
                if layers == "many files":
                    file.writestr("a-labels.lst", b"0\n" * 15_000_000)
                else:
                    file.writestr("b.jsonl.gz", bomb)
    with pytest.raises(UserError, match=r"bomb.* unpacks to more than 50,000,000 bytes"):
        task(path, tmp_path / "out")


def test_gzip_in_gzip_is_not_followed(tmp_path):
    path = tmp_path / "twice.jsonl"
    path.write_bytes(gzip.compress(gzip.compress(lines(ITEM))))
    with pytest.raises(UserError, match=r"not UTF-8 text"):
        task(path, tmp_path / "out")


def test_what_text_is_compressed_to_is_far_from_a_bomb(tmp_path):
    """The most repetitive data that anyone would train on: the same words in another order."""
    records = lines(*({**RECORD, "instruction": f"Say {n} times yes."} for n in range(20_000)))
    packed = gzip.compress(records)
    assert 20 * len(packed) < len(records) < most_unpacked(len(packed))
    (tmp_path / "a.jsonl.gz").write_bytes(packed)
    path = str(tmp_path / "a.jsonl.gz")
    assert prepare_instructions(path, {}, 0.1, tmp_path / "a")["records"] == 20_000


def test_a_record_without_end_is_refused(tmp_path):
    for name, content in (
        ("line", b'{"a": "' + b"x" * LARGEST_RECORD),
        ("list", b'[{"a": 1}, "' + b"x" * LARGEST_RECORD),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=r"(line 1|record 2) is longer than 10,000,000 bytes"):
            list(read_json_records(tmp_path / name, name))


def test_a_list_is_read_record_by_record_wherever_its_blocks_end(tmp_path):
    """A number, a text and a character of several bytes are cut by the end of a block."""
    path = tmp_path / "list.json"
    for tail in ('12345678901, "ä€𝄞"', '"a\\u20ac\\n", [1, {"a": null}]', "-1.5e-7,\n true"):
        for shift in range(12):
            blanks = " " * (BLOCK - 2 - shift)
            path.write_text(f"[{blanks}{tail}\r\n]\n", encoding="utf-8")
            found = list(read_json_records(path, "list"))
            assert [value for _, value in found] == json.loads(path.read_text(encoding="utf-8"))
    assert [where for where, _ in found] == ["record 1", "record 2"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[1, 2", r"Expecting ',' in line 1, column 6"),
        ("[1, 2,", r"Expecting value in line 1, column 7"),
        ("[1,\n\n 2 3]", r"Expecting ',' in line 3, column 4"),
        ("[1] 2", r"Extra data in line 1, column 5"),
        ("[1,\n{'a': 1}, 2, 3, 4, 5, 6]", r"Expecting property name .* in line 2, column 2"),
        ('["a', r"Unterminated string .* in line 1, column 2"),
        ("[" + "\n" * BLOCK + "  nonsense, 1]", r"Expecting value in line 1048577, column 3"),
    ],
)
def test_a_broken_list_says_where(tmp_path, text, problem):
    (tmp_path / "list.json").write_text(text)
    with pytest.raises(UserError, match=rf"^list: not valid JSON: {problem}; it may have been cut"):
        list(read_json_records(tmp_path / "list.json", "list"))


def test_a_list_is_not_held_in_memory(tmp_path):
    (tmp_path / "list.json").write_bytes(
        b"[" + b",".join([b'"' + b"x" * 9_998 + b'"'] * 3_000) + b"]"
    )
    tracemalloc.start()
    count = sum(1 for _ in read_json_records(tmp_path / "list.json", "list"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 3_000
    assert peak < 10_000_000 < (tmp_path / "list.json").stat().st_size


def test_names_in_an_archive_reach_nothing_outside_it(tmp_path):
    """No member is written to the disk, and links are left out."""
    path = tmp_path / "in" / "a.zip"
    path.parent.mkdir()
    link = zipfile.ZipInfo("link.jsonl")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("../../escaped.jsonl", lines(ITEM))
        file.writestr("/tmp/absolute.jsonl", lines(ITEM))
        file.writestr("\x1b[2J" + "long" * 2_000 + ".jsonl", lines(ITEM))
        file.writestr(link, b"/etc/passwd")
    assert task(path, tmp_path / "out")["items"] == 3
    assert sorted(found.name for found in tmp_path.iterdir()) == ["in", "out"]


def test_an_archive_that_lies_about_a_size_gives_all_or_nothing(tmp_path):
    path = archive(tmp_path / "a.zip", a=lines(*[ITEM] * 1_000))
    content = path.read_bytes()
    size = len(lines(*[ITEM] * 1_000))
    at = content.rindex(b"PK\1\2") + 24
    assert struct.unpack_from("<I", content, at) == (size,)
    for lie in (size * 1_000, 2**32 - 2):  # nothing is set aside for what is said to come
        path.write_bytes(content[:at] + struct.pack("<I", lie) + content[at + 4 :])
        assert task(path, tmp_path / "out")["items"] == 1_000
    path.write_bytes(content[:at] + struct.pack("<I", size // 2) + content[at + 4 :])
    with pytest.raises(
        UserError, match=r"a\.zip: damaged zip archive \(Bad CRC.*\); fetch it again"
    ):
        task(path, tmp_path / "out")


@pytest.mark.parametrize("field", [4, 6, 8, 10, 12, 16, 20, 24, 28, 30, 32, 34, 42, 46])
def test_an_archive_with_any_damaged_field_is_no_traceback(tmp_path, field):
    path = archive(tmp_path / "a.zip", a=lines(*[ITEM] * 10))
    content = bytearray(path.read_bytes())
    at = content.rindex(b"PK\1\2") + field
    for byte in (0x01, 0xFF):
        content[at] ^= byte
        path.write_bytes(content)
        try:
            task(path, tmp_path / "out")
        except UserError as error:
            assert "; " in str(error)  # noqa: PT017  # success is as good


def test_compressions_that_cannot_be_bounded_are_not_read(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as file:
        file.writestr("a.jsonl", lines(ITEM))
    with pytest.raises(UserError, match=r"a\.jsonl: compressed in a way that is not read; pack it"):
        task(path, tmp_path / "out")
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a.jsonl", lines(ITEM))
        file.writestr(zipfile.ZipInfo("a-labels.lst"), b"0\n", zipfile.ZIP_LZMA)
    with pytest.raises(UserError, match="compressed in a way that is not read"):
        task(path, tmp_path / "out")
