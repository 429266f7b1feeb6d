"""A source that changes while a corpus is made of it is refused, and the older corpus stays."""

import os
from pathlib import Path

import pytest
from corpus_samples import read, run, write_book, write_pages

from nanoeuler.corpus import assemble, cleaning

SETTINGS = {"deduplicate": {"web": "near", "books": "near", "own_text": "near"}}


def text(number: int) -> str:
    return "".join(f"The ship {number} came to the quay on day {day}.\n\n" for day in range(90))


def own_files(folder: Path, count: int) -> list[str]:
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:02d}.txt").write_text(text(number))
    return ["--own", str(folder)]


def sources(tmp_path: Path) -> dict[str, tuple[list[str], Path]]:
    """The arguments that name a source of each kind, and one of its files."""
    texts = [text(number) for number in range(30)]
    books = [write_book(tmp_path / "clean", n, f"Book {n}", each) for n, each in enumerate(texts)]
    page = write_pages(tmp_path / "web.txt", texts)
    few = ["--own", str(tmp_path / "few/00.txt"), str(tmp_path / "few/01.txt")]
    own_files(tmp_path / "few", 2)
    return {
        "own text": (own_files(tmp_path / "own", 30), tmp_path / "own/07.txt"),
        "own text whose parts are held out": (few, tmp_path / "few/01.txt"),
        "books": (["--books", *books], Path(books[7])),
        "web pages": (["--fineweb", page], Path(page)),
    }


def contents(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def save(file: Path) -> None:
    """Put a paragraph at the beginning."""
    file.write_text("A new beginning of it.\n\n" + file.read_text())


def replace_a_word(file: Path) -> None:
    """Save other text of the same size with the same times, as a backup program may."""
    status = file.stat()
    file.write_text(file.read_text().replace("quay on day 8", "pier on day 8"))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def empty(file: Path) -> None:
    file.write_text("")


def write_other_pages(file: Path) -> None:
    write_pages(file, [text(number) for number in range(1, 31)])


@pytest.mark.parametrize("reading", [(cleaning, "look_at_held_out"), (assemble, "write")])
@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("own text", save),
        ("own text", replace_a_word),
        ("own text", Path.unlink),
        ("own text whose parts are held out", save),
        ("own text whose parts are held out", empty),
        ("books", save),
        ("books", Path.unlink),
        ("web pages", write_other_pages),
    ],
)
def test_a_source_that_changes_between_two_readings_is_refused_by_name(
    tmp_path, monkeypatch, capsys, kind, change, reading
):
    arguments, file = sources(tmp_path)[kind]
    assert run(tmp_path, *arguments, decontaminate=True, **SETTINGS) == 0
    older = contents(tmp_path / "corpus")
    capsys.readouterr()
    module, function = reading
    read_again = getattr(module, function)

    def change_first(*given):
        change(file)
        return read_again(*given)

    monkeypatch.setattr(module, function, change_first)
    assert run(tmp_path, *arguments, decontaminate=True, **SETTINGS) == 1
    said = capsys.readouterr().err
    assert str(file) in said
    assert "Traceback" not in said
    assert contents(tmp_path / "corpus") == older


def test_a_change_between_the_steps_of_a_corpus_is_refused_by_name(tmp_path, capsys):
    own = own_files(tmp_path / "own", 30)
    shards = [
        write_pages(tmp_path / f"{shard}.txt", [text(30 * shard + n) for n in range(30)])
        for shard in (1, 2)
    ]
    given = [*own, "--fineweb", *shards, "--group-files", "1"]

    def step(name: str, *arguments: str) -> int:
        return run(tmp_path, "--step", name, *arguments, decontaminate=True, **SETTINGS)

    def of_group(name: str, group: int) -> int:
        return step(name, "--group", str(group), "--fineweb", shards[group])

    assert step("hold_out", *given) == 0
    write_pages(Path(shards[0]), [text(n) for n in range(1000, 1030)])
    assert of_group("compare", 0) == 1
    assert f"{shards[0]}: changed while the corpus was being made" in capsys.readouterr().err
    write_pages(Path(shards[0]), [text(30 + n) for n in range(30)])
    assert [of_group("compare", group) for group in (0, 1)] == [0, 0]
    save(tmp_path / "own/07.txt")
    assert step("choose", *given) == 1
    assert "own/07.txt: changed while the corpus was being made" in capsys.readouterr().err
    (tmp_path / "own/07.txt").write_text(text(7))
    assert step("choose", *given) == 0
    assert [of_group("write", group) for group in (0, 1)] == [0, 0]
    assert step("finish", *given) == 0
    assert len(read(tmp_path / "corpus", "train", "fineweb-001")) > 20
