"""The configuration that `nanoeuler train` chooses: sizes, tokens and schedule for a text."""

import hashlib
import itertools
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nanoeuler import log
from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.cli import main
from nanoeuler.cli.own_text import choose_name, name_of, prepare
from nanoeuler.config import load, write_resolved
from nanoeuler.config.paths import Paths
from nanoeuler.corpus.split import position
from nanoeuler.corpus.text_files import USUAL
from nanoeuler.errors import UserError
from nanoeuler.model.spec import parameter_count, training_flops_per_token
from nanoeuler.planning import own_run, text_sample
from nanoeuler.planning import speed as planned_speed
from nanoeuler.planning.data import estimate_text
from nanoeuler.planning.own_run import (
    EPOCHS,
    PARAMETERS_PER_TOKEN,
    SIZES,
    Speed,
    Text,
    choose,
    make_config,
    measure,
    read_text,
    step_tokens,
    together,
    write_config,
)
from nanoeuler.planning.plan import make_plan
from nanoeuler.storage.files import write_json
from nanoeuler.tokenizer.stages import learn_tokenizer

PROSE = "".join(
    f"The ferry came to the quay on day {day} of the long winter.\n\n" for day in range(900)
)


def text_of(size: int) -> Text:
    return Text(size, round(size / 2.8), 1024, [])


NOVEL = text_of(700_000)
LARGE = text_of(10**9)


def at(flops_per_second):
    """The speed of a machine that computes so much, whatever the model."""

    def speed(model):
        flops = training_flops_per_token(model, model.context)
        return Speed(flops / flops_per_second, 0.0)

    return speed


LAPTOP, GPU = at(140e9), at(100e12)


def size(text, minutes, speed):
    return parameter_count(choose(text, minutes, speed).size.model(text.vocab_size))


def test_a_novel_is_read_often_enough_and_not_by_heart():
    choice = choose(NOVEL, 10, LAPTOP)
    assert choice.tokens == EPOCHS * NOVEL.tokens
    assert 500_000 < size(NOVEL, 10, LAPTOP) <= PARAMETERS_PER_TOKEN * NOVEL.tokens


@pytest.mark.parametrize("text", [text_of(100_000), NOVEL, LARGE])
def test_more_time_and_a_faster_machine_give_a_larger_model(text):
    for speed in (LAPTOP, GPU):
        sizes = [size(text, minutes, speed) for minutes in (1, 3, 10, 60, 600)]
        assert sizes == sorted(sizes)
    assert size(text, 600, GPU) >= size(text, 600, LAPTOP) > 200_000
    assert size(LARGE, 600, GPU) > 10 * size(LARGE, 600, LAPTOP)


def test_training_keeps_to_the_minutes():
    for minutes in (1, 5, 60):
        choice = choose(LARGE, minutes, LAPTOP)
        assert choice.tokens / choice.tokens_per_second <= 60 * minutes


def test_what_updates_take_counts_by_the_steps_that_so_many_tokens_have():
    assert Speed(1e-3, 0.0).tokens_within(60) == pytest.approx(60_000)
    assert Speed(1e-3, 2.048).tokens_within(60) == pytest.approx(30_000)
    speed = Speed(1e-6, 0.004)
    tokens = speed.tokens_within(60)
    assert step_tokens(tokens) == 32_768
    assert tokens * 1e-6 + tokens / 32_768 * 0.004 == pytest.approx(60, rel=0.01)
    assert measure(SIZES[0].model(512), ReferenceBackend()).of_token > 0


@pytest.mark.parametrize(("device", "batch"), [(None, 2_048), ("stands for one", 65_536)])
def test_a_gpu_is_timed_with_steps_that_fill_it(monkeypatch, device, batch):
    def probe(config, backend, plan, seconds):
        assert config["pretrain"]["batch_tokens"] == batch
        plan.tokens_per_second = 1e6

    monkeypatch.setattr(planned_speed, "probe", probe)
    monkeypatch.setattr(ReferenceBackend, "device", device)
    assert measure(SIZES[0].model(512), ReferenceBackend()).of_token == pytest.approx(1e-6)


@pytest.mark.parametrize(
    ("key", "least", "most"), [("weight_decay", 0.1, 0.6), ("dropout", 0.0, 0.25)]
)
def test_a_text_that_is_read_often_gets_more_weight_decay_and_dropout(key, least, most):
    def value(text, minutes):
        choice = choose(text, minutes, LAPTOP)
        return make_config("it", ["it.txt"], text, choice)["pretrain"][key]

    assert value(LARGE, 1) == least
    assert least < value(text_of(3_000_000), 1) < value(NOVEL, 2) <= most


@pytest.mark.parametrize("text_bytes", [20_000, 700_000, 10**9])
@pytest.mark.parametrize("speed", [LAPTOP, GPU])
def test_the_configuration_is_valid_and_has_steps_and_measurements(
    tmp_path, monkeypatch, text_bytes, speed
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "novel.txt").write_text(PROSE)
    text = replace(text_of(text_bytes), openings=["“It is: a 'prompt'", "# and another"])
    choice = choose(text, 10, speed)
    config = make_config("novel", ["novel.txt"], text, choice)
    write_config(tmp_path / "config.yaml", ["nanoeuler train novel.txt"], config)
    resolved = load("config.yaml")
    assert resolved["evaluate"]["prompts"] == text.openings
    assert resolved["model"]["vocab_size"] == 1024
    settings = resolved["pretrain"]
    steps = -(-settings["tokens"] // settings["batch_tokens"])
    assert steps >= 20
    assert 9 <= -(-steps // settings["validate_every"]) <= 10
    assert settings["short_rows_until"] == pytest.approx(0.6 * steps, abs=1)
    assert 0.01 <= resolved["corpus"]["validation_share"] <= 0.1


def test_every_size_can_be_built():
    parameters = [parameter_count(size.model(512)) for size in SIZES]
    assert parameters == sorted(parameters)


def test_prompts_are_the_beginnings_of_paragraphs(tmp_path):
    (tmp_path / "novel.txt").write_text("I\n\nA LINE ALONE\n\n" + PROSE)
    text = read_text([str(tmp_path / "novel.txt")])
    assert text.bytes == (tmp_path / "novel.txt").stat().st_size
    assert set(text.openings) == {"The ferry came to the"}


def test_the_vocabulary_fits_what_the_text_yields(tmp_path):
    for number, text in enumerate((PROSE, "Ho ho ho. " * 3000)):
        (tmp_path / f"{number}.txt").write_text(text)
    prose, monotonous = (read_text([str(tmp_path / f"{n}.txt")]) for n in (0, 1))
    assert 272 < monotonous.vocab_size < prose.vocab_size <= 512
    assert prose.tokens < prose.bytes / 2


def rich(seed: int, words: int) -> str:
    """Text with many different pairs of letters."""
    letters = np.random.default_rng(seed).integers(97, 123, 6 * words, np.uint8).tobytes()
    return " ".join(letters[at : at + 5].decode() for at in range(0, 6 * words, 6))


def test_the_vocabulary_is_chosen_from_a_sample_of_everything(tmp_path):
    """A log that sorts first is not all of it, nor is what sorts last left out."""
    log_file = "12:00:00 INFO the service is alive\n" * 130_000
    chosen = []
    for number, texts in enumerate([(log_file, rich(1, 150_000)), (rich(1, 150_000), log_file)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, text in zip(("a.txt", "b.txt"), texts, strict=True):
            (folder / name).write_text(text)
        chosen.append(read_text([str(folder)]))
    assert [text.vocab_size for text in chosen] == [2048, 2048]
    assert chosen[0].tokens == pytest.approx(chosen[1].tokens, rel=0.01)
    files = [(tmp_path / "0" / name, USUAL) for name in ("a.txt", "b.txt")]
    size = text_sample.measure(files, 2048)
    assert size.bytes == chosen[0].bytes
    assert size.bytes_per_token == pytest.approx(
        chosen[0].bytes / (chosen[0].tokens / (1 - 50_000 / chosen[0].bytes)), rel=0.05
    )


def test_train_never_refuses_the_vocabulary_of_its_choice(tmp_path):
    """What is held out is rich, and all that the tokenizer is learned from is monotonous."""
    (tmp_path / "texts").mkdir()

    def place(text: str) -> int:
        return position(hashlib.sha256(text.encode()).hexdigest())

    texts = [f"Ho ho ho {number}. " * 400 for number in range(40)]
    first = min(map(place, texts))
    found = (text for text in (rich(seed, 800) for seed in range(10_000)) if place(text) < first)
    for number, text in enumerate([*texts, *itertools.islice(found, 2)]):
        (tmp_path / f"texts/{number:02d}.txt").write_text(text)
    chosen = read_text([str(tmp_path / "texts")])
    settings = {"sources": [str(tmp_path / "texts")], "validation_share": 0.1}
    config = json.dumps({"corpus": settings})
    output = tmp_path / "corpus"
    assert main(["assemble", "--config", config, "--output", str(output)]) == 0
    learned = learn_tokenizer(
        output / "manifest.json", chosen.vocab_size, 10**8, tmp_path / "tokenizer.json"
    )
    assert learned.vocab_size == chosen.vocab_size


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("my novel.txt", "my-novel"),
        ("books/", "books"),
        ("~/Notes & Letters.md", "notes-letters"),
        ("Роман №2.txt", "роман-2"),
        ("红楼梦.txt", "红楼梦"),
        ("हिन्दी किताब.md", "हिन्दी-किताब"),
        ("Cafe\u0301 \u0301x.txt", "café-x"),
        ("★.txt", "own-text"),
        ("books/*.txt", "books"),
        ("/*.txt", "own-text"),
    ],
)
def test_a_run_is_named_after_its_text(path, name):
    assert name_of(path) == name


def test_different_texts_have_different_runs_and_each_is_found_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        own_run, "choose_here", lambda text, minutes: (choose(text, minutes, LAPTOP), "cpu")
    )
    log.start()
    texts = ["data/a/input.txt", "data/b/input.txt", "b/input.txt", "红楼梦.txt", "西游记.txt"]
    for number, name in enumerate(texts):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(PROSE + str(number))
    runs = {}
    for text in texts:
        runs[text] = choose_name([text], Path("results"), f"# train {text}")
        file = Path("results", runs[text], "config.yaml")
        prepare(file, runs[text], [text], 1, f"train {text}")
    last = runs.pop("b/input.txt")
    assert last.startswith("input-")
    assert len(last) == len("input-") + 8
    assert list(runs.values()) == ["input", "b-input", "红楼梦", "西游记"]
    assert "results/input belongs to another run, so this run is called b-input" in (
        capsys.readouterr().err
    )
    for text in (*runs, "b/input.txt", str(tmp_path / "data/b/input.txt")):
        run = choose_name([text], Path("results"), "# with more minutes")
        config = load(Path("results", run, "config.yaml"))
        assert os.path.realpath(config["corpus"]["sources"][0]) == os.path.realpath(text)
    # of a name that is asked for, it is said
    with pytest.raises(UserError, match=r"results/input belongs to another run; give .* --name"):
        prepare(Path("results/input/config.yaml"), "input", ["data/b/input.txt"], 1, "named")
    assert load("results/input/config.yaml")["corpus"]["sources"] == ["data/a/input.txt"]
    # nor does a text replace the corpus of a run by another name
    write_resolved("results/mine/configuration.json", {"corpus": {"name": "novel"}})
    assert choose_name(["b/novel.txt"], Path("results"), "# train b/novel.txt") == "b-novel"
    with pytest.raises(UserError, match=r"results/mine has a corpus of the name novel; give"):
        prepare(Path("results/novel/config.yaml"), "novel", ["data/b/input.txt"], 1, "named")
    # nor that of a configuration that is shipped, or of one's own, which has not run yet
    Path("config").mkdir()
    Path("config/mine.yaml").write_text("run: notes\ncorpus: {name: letters}\n")
    Path("config/broken.yaml").write_text("run: [")
    reserved = ("demo", "small", "books-and-web-4gb", "notes", "letters")
    for name in reserved:
        assert choose_name([f"b/{name}.txt"], Path("results"), "# train it") == f"b-{name}"
    with pytest.raises(UserError, match=r"demo is the name .* of config/config.yaml; give .* --"):
        prepare(Path("results/demo/config.yaml"), "demo", ["data/b/input.txt"], 1, "named")


def test_the_files_that_a_shell_makes_of_a_pattern_are_one_source(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "books").mkdir()
    for name in "abc":
        (tmp_path / f"books/{name}.txt").touch()
    assert together(["books/a.txt", "books/b.txt", "books/c.txt"]) == ["books/*.txt"]
    assert together(["books/a.txt", "books/c.txt"]) == ["books/a.txt", "books/c.txt"]
    assert together(["books/a.txt"]) == ["books/a.txt"]
    assert together(["books/", "a.txt", "./books", "a.txt"]) == ["books/", "a.txt"]
    (tmp_path / "results/it").mkdir(parents=True)
    (tmp_path / "results/it/.made-by-nanoeuler").touch()
    (tmp_path / "results/it/README.md").write_text("a model's card")
    written = ["results", "results/it/README.md"]
    assert together(["books/a.txt", *written, "books/"]) == ["books/a.txt", "books/"]
    assert together(written) == written  # each is refused, or is what was asked for
    monkeypatch.chdir(tmp_path / "books")
    assert together(["b.txt", "a.txt", "c.txt"]) == ["*.txt"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["short.txt"], "short.txt: 12 bytes of text is too little to learn from; give at least"),
        (["empty.txt"], "empty.txt: empty; leave it out or put text into it"),
        (["binary.txt"], "binary.txt: a binary file, not text"),
        (["none.txt"], "none.txt: no such file or folder"),
        (["folder"], "folder: has no file with text in it but 1 .jpg; correct the path"),
        (["photo.jpg"], "photo.jpg: not a file of text; save it as plain text"),
        (["novel.txt", "--minutes", "0"], "--minutes 0: give 1 to 1440"),
        (["novel.txt", "--minutes", "nan"], "--minutes nan: give 1 to 1440"),
        (["novel.txt", "--name", "../x"], "--name '../x': give a name of"),
        (
            ["novel.txt", "--name", "it\nresults_dir: x"],
            "--name 'it\\nresults_dir: x': give a name",
        ),
        (["novel.txt", "--name", "it\n"], "--name 'it\\n': give a name"),
        (["novel.txt", "--name", "字" * 67], "give a name of at most 200 letters"),
        (["novel.txt", "--name", "taken"], "results/taken belongs to another run"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_before_anything_is_written(
    tmp_path, monkeypatch, capsys, arguments, message
):
    monkeypatch.chdir(tmp_path)
    for name, content in {
        "short.txt": b"A short text",
        "empty.txt": b"",
        "binary.txt": b"\x89PNG\0\0" * 9000,
        "photo.jpg": b"\xff\xd8" * 9000,
        "novel.txt": PROSE.encode(),
        "results/taken/other": b"",
        "folder/photo.jpg": b"\xff\xd8",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    before = sorted(tmp_path.rglob("*"))
    assert main(["train", *arguments]) == 1
    assert message in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_where_nothing_can_be_written_that_is_said_before_anything_is_measured(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(own_run, "choose_here", lambda *_: pytest.fail("measured"))
    Path("novel.txt").write_text(PROSE)
    Path("results").write_text("a file")
    assert main(["train", "novel.txt"]) == 1
    assert "results/novel: cannot be used (File exists" in capsys.readouterr().err


def test_a_configuration_is_kept_when_another_command_makes_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        own_run, "choose_here", lambda text, minutes: (choose(text, minutes, LAPTOP), "cpu")
    )
    (tmp_path / "novel.txt").write_text(PROSE)
    file = tmp_path / "results/novel/config.yaml"

    def ask(minutes: float, text: str = "novel.txt") -> str:
        prepare(file, "novel", [text], minutes, f"nanoeuler train {text} {minutes}")
        return file.read_text()

    changed = ask(1) + "seed: 7\n"
    file.write_text(changed)
    assert ask(1) == changed  # as it is
    assert ask(1, "./novel.txt") == changed
    assert ask(2) != changed
    assert ask(1) != changed  # nor does the next one replace what was kept
    assert file.with_name("config.before.yaml").read_text() == changed
    assert "train novel.txt 2" in file.with_name("config.before-2.yaml").read_text()


def test_the_same_command_given_twice_at_once_chooses_once(tmp_path, monkeypatch):
    """The first may be training by its choice when the second has measured what it left over."""
    monkeypatch.chdir(tmp_path)
    Path("novel.txt").write_text(PROSE)
    file = Path("results/novel/config.yaml")

    def while_another_begins(text, minutes):
        file.parent.mkdir(parents=True)
        file.write_text("# nanoeuler train novel.txt\nrun: the first\n")
        return choose(text, minutes, LAPTOP), "cpu"

    monkeypatch.setattr(own_run, "choose_here", while_another_begins)
    prepare(file, "novel", ["novel.txt"], 1, "nanoeuler train novel.txt")
    assert file.read_text().endswith("run: the first\n")
    assert [*file.parent.iterdir()] == [file]


def test_names_mean_nothing_in_the_configuration(tmp_path, monkeypatch):
    """Neither a line end, nor braces, quotes, a dash, or what a shell would run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        own_run, "choose_here", lambda text, minutes: (choose(text, minutes, LAPTOP), "cpu")
    )
    monkeypatch.setattr("nanoeuler.cli.own_text.run_snakemake", lambda arguments: 1)
    names = ["a\nresults_dir: INJECTED.txt", "my {draft}.txt", "$(touch X).txt", "-e.txt", "'\\.md"]
    for name in names:
        Path(name).write_text(PROSE)
    assert main(["train", "--", *names]) == 1
    config = load("results/a-results-dir-injected/config.yaml")
    assert config["results_dir"] == "results"
    assert config["corpus"]["sources"] == names
    text = Path("results/a-results-dir-injected/config.yaml").read_text()
    command, other = text.splitlines()[:2]
    assert (command[:2], other) == ("# ", "#")
    asked = subprocess.run(
        ["bash", "-c", f"nanoeuler() {{ printf '%s\\0' \"$@\"; }}\n{command[2:]}"],
        capture_output=True,
        check=True,
    )
    assert asked.stdout.decode().split("\0")[:-1] == ["train", "--minutes", "10", "--", *names]
    assert main(["train", "--", *names]) == 1
    assert Path("results/a-results-dir-injected/config.yaml").read_text() == text  # as it is


def test_nothing_is_moved_before_all_is_known_to_work(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        own_run, "choose_here", lambda text, minutes: (choose(text, minutes, LAPTOP), "cpu")
    )
    Path("caf.txt").write_text(PROSE)
    prepare(Path("results/caf/config.yaml"), "caf", ["caf.txt"], 1, "nanoeuler train caf.txt")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    latin = os.fsdecode(b"caf\xe9.txt")
    with open(latin, "w") as file:
        file.write(PROSE)
    assert main(["train", latin]) == 1
    assert r"'caf\udce9.txt': a name that is not UTF-8; rename it, or" in capsys.readouterr().err
    Path(latin).unlink()
    broken = make_config("caf", ["gone.txt"], text_of(700_000), choose(NOVEL, 1, LAPTOP))
    with pytest.raises(UserError, match="no such file"):
        write_config(Path("results/caf/config.yaml"), ["nanoeuler train gone.txt"], broken)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert after == before


def test_a_text_in_windows_1252_counts_as_it_is_read(tmp_path):
    (tmp_path / "a.txt").write_bytes(("Café. " * 5000).encode("cp1252"))
    assert read_text([str(tmp_path / "a.txt")]).bytes == len(("Café. " * 5000).encode())
    (tmp_path / "a.txt").write_bytes(("Café. " * 500).encode("cp1252"))
    with pytest.raises(UserError, match=r"too little"):
        read_text([str(tmp_path / "a.txt")])


def test_the_plan_of_a_run_counts_the_tokens_that_it_was_made_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("novel.txt").write_text("".join(f"{PROSE} It was {day}.\n\n" for day in range(40)))
    text = read_text(["novel.txt"])
    config = make_config("novel", ["novel.txt"], text, choose(text, 10, LAPTOP))
    write_config(Path("config.yaml"), ["nanoeuler train novel.txt"], config)
    plan = make_plan(load("config.yaml"), ReferenceBackend())
    assert plan.text_bytes + plan.held_out_bytes == pytest.approx(text.bytes)
    assert plan.text_tokens == pytest.approx(text.tokens, rel=1e-3)


def test_tokens_of_an_earlier_version_of_the_text_are_not_counted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("novel.txt").write_text(PROSE)
    file = Path("results/novel/config.yaml")
    config = make_config("novel", ["novel.txt"], NOVEL, choose(NOVEL, 10, LAPTOP))
    write_config(file, ["nanoeuler train novel.txt"], config)
    paths = Paths(load(file))
    paths.list_own_text()
    some = {"novel": {"bytes": 100, "tokens": 50}}
    write_json(paths.tokens, {"splits": {"train": some, "validation": some}})
    assert estimate_text(paths.config, paths).text_tokens == 50
    prepare(file, "novel", ["novel.txt"], 10, "nanoeuler train novel.txt")
    assert "changed" not in capsys.readouterr().err
    Path("novel.txt").write_text(2 * PROSE)
    prepare(file, "novel", ["novel.txt"], 10, "nanoeuler train novel.txt")
    assert "its text has changed; other --minutes" in capsys.readouterr().err
    for _ in range(2):  # before and after a run has listed the text
        found = estimate_text(paths.config, paths)
        assert found.text_bytes + found.held_out_bytes == pytest.approx(2 * len(PROSE))
        paths.list_own_text()


def test_a_text_is_read_in_the_encoding_that_is_given(tmp_path, command):
    text = "Туман лежал на реке, и паромщик не решался отчалить от берега. " * 900
    path = tmp_path / "book.txt"
    path.write_bytes(text.encode("koi8-r"))
    entry = {"path": str(path), "encoding": "koi8-r"}
    assert abs(own_run.read_text([entry]).bytes - len(text.encode())) < 10
    for option, value, said in (
        ("--encoding", "koi9", "Python does not know it; write a name like utf-8"),
        ("--separator", " ", "give one line of text"),
        ("--separator", "a\nb", "give one line of text"),
    ):
        status, _, errors = command("train", path, option, value)
        assert status == 1
        assert said in errors
