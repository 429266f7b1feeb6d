"""`nanoeuler runs`: a line for each run, by any of its settings, scores and costs."""

import csv
import io
import json
from pathlib import Path

import fabricated
import pytest
from test_side_by_side import make

from nanoeuler.cli import main
from nanoeuler.evaluation.runs import meets, table


@pytest.fixture
def places(tmp_path, capsys):
    model = fabricated.CONFIG["model"]
    make(tmp_path / "a", "shallow")
    make(tmp_path / "b", "deep", ("pretrain", "sft", "dpo"), model=model | {"layers": 9})
    capsys.readouterr()
    return [str(tmp_path / name / "results") for name in "ab"]


def listed(capsys, *arguments):
    assert main(["runs", *arguments]) == 0
    return capsys.readouterr().out


def test_a_table_has_scores_cost_and_the_settings_that_differ(places, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    heading, shallow, deep = listed(capsys, *places).splitlines()
    assert heading.split()[:3] == ["run", "state", "bits_per_byte.gutenberg"]
    assert heading.split()[-1] == "model.layers"
    assert shallow.startswith("shallow  sft finished ")
    assert deep.startswith("deep     dpo finished ")
    assert (shallow.split()[-1], deep.split()[-1]) == ("4", "9")
    assert " 1.734 " in shallow


def test_energy_is_that_of_all_stages_where_all_were_measured(places, capsys):
    def measured(run, **joules):
        for path in Path(run).glob("*/*/metrics.jsonl"):
            *lines, last = path.read_text().splitlines()
            path.write_text("\n".join([*lines, json.dumps(json.loads(last) | joules)]) + "\n")

    measured(places[0], gpu_joules=23_050.0, cpu_joules=1500.0)
    measured(places[1], gpu_joules=1000.0)
    found = json.loads(listed(capsys, *places, "--json"))
    assert [each["gpu_joules"] for each in found] == [46_100.0, 3000.0]
    assert [each.get("cpu_joules") for each in found] == [3000.0, None]
    columns = "--columns", "gpu_joules", "cpu_joules"
    _, shallow, deep = listed(capsys, *places, *columns).splitlines()
    assert shallow.split() == ["shallow", "46.1", "kJ", "3", "kJ"]
    assert deep.split() == ["deep", "3", "kJ", "–"]


def test_a_folder_of_experiments_alone_is_told_as_such(tmp_path, capsys):
    trial = tmp_path / "experiments" / "mine" / "base-seed1"
    trial.mkdir(parents=True)
    (trial / "configuration.json").touch()
    assert main(["runs", str(tmp_path)]) == 1
    place = tmp_path / "experiments" / "mine"
    assert (
        f"give a folder of runs, such as those of an experiment, {place}" in capsys.readouterr().err
    )


def test_runs_are_sorted_and_chosen_by_any_key(places, capsys):
    def names(*arguments):
        return [each["run"] for each in json.loads(listed(capsys, *places, "--json", *arguments))]

    assert names() == ["shallow", "deep"]
    assert names("--sort", "model.layers", "--reverse") == ["deep", "shallow"]
    assert names("--sort", "run") == ["deep", "shallow"]
    assert main(["runs", *map(str, places), "--reverse"]) == 1
    assert "--reverse needs --sort" in capsys.readouterr().err
    assert names("--where", "model.layers>4") == ["deep"]
    assert names("--where", "model.layers>=4", "run!=deep") == ["shallow"]
    assert names("--where", "state=DPO finished") == ["deep"]
    assert names("--where", "bits_per_byte.gutenberg<1") == []


def test_scores_share_a_column_only_where_the_held_out_text_is_the_same(places, capsys):
    """Three runs of which one was measured on another text of gutenberg; web pages are the same."""
    manifest = Path(places[1]).parent / "data/corpora/made-up/manifest.json"
    corpus = json.loads(manifest.read_text())
    corpus["sources"]["gutenberg"]["validation"]["sha256"] = "1" * 64
    manifest.write_text(json.dumps(corpus))
    shallow, deep = json.loads(listed(capsys, *places, "--json"))
    assert shallow["bits_per_byte.gutenberg@shallow"] == 1.734
    assert shallow["bits_per_byte.gutenberg@deep"] is None
    assert deep["bits_per_byte.gutenberg@deep"] == 1.734
    assert shallow["bits_per_byte.fineweb"] == deep["bits_per_byte.fineweb"] == 1.689
    assert "bits_per_byte.gutenberg" not in shallow
    manifest.unlink()  # nothing is known of that text, so it is not taken for the same
    shallow, deep = json.loads(listed(capsys, *places, "--json"))
    assert deep["bits_per_byte.fineweb@deep"] == 1.689


def test_names_are_shown_whatever_columns_are_asked_for(places, capsys):
    assert listed(capsys, *places, "--columns", "model.layers").splitlines() == [
        "run      model.layers",
        "shallow  4",
        "deep     9",
    ]


def test_programs_get_plain_numbers(places, capsys):
    rows = list(csv.DictReader(io.StringIO(listed(capsys, *places, "--csv"))))
    assert [(row["run"], row["model.layers"]) for row in rows] == [("shallow", "4"), ("deep", "9")]
    assert float(rows[0]["bits_per_byte.gutenberg"]) == 1.734
    chosen = json.loads(listed(capsys, *places, "--json", "--columns", "run", "model.dim"))
    assert chosen[0] == {"run": "shallow", "model.dim": 128}
    key = ["evaluate.prompts"]
    lists = list(csv.DictReader(io.StringIO(listed(capsys, *places, "--csv", "--columns", *key))))
    assert json.loads(lists[0][key[0]]) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--sort", "model.layer"],
            "model.layer: no run has it; did you mean model.layers?",
        ),
        (
            ["--where", "layers"],
            "--where 'layers': write a key, one of != <= >= = < >, and a ",
        ),
        (
            ["--where", "seconds<soon"],
            "--where 'seconds<soon': 'soon' is no number; give one such as 3600, 1e-3 or 0.97",
        ),
        (["--where", "answers>=90%"], "'90%' is no number"),
        (["--where", "model.layers=nan"], "'nan' is no number"),
        (["--where", "model.layers==4"], "--where 'model.layers==4': write a key, one of "),
        (["--where", "model.layers=>4"], "--where 'model.layers=>4': write a key, one of "),
        (["--where", "model.layers<"], "--where 'model.layers<': write a key, one of "),
        (["--where", "sft.enabled=maybe"], "'maybe' is neither true nor false"),
        (["--columns", "speed"], "--columns speed: no run has it; "),
        (["nowhere"], "nowhere: no run is there; give a folder of runs, such as results"),
    ],
)
def test_mistakes_are_told_in_a_sentence(places, capsys, arguments, sentence):
    assert main(["runs", *places, *arguments]) == 1
    assert sentence in capsys.readouterr().err


def test_names_cannot_give_a_terminal_orders(places, tmp_path, capsys):
    folder = tmp_path / "a" / "results" / "made-up"
    folder.rename(folder.with_name("made\x1b[31m-up"))
    for option in ("--csv", "--json"):
        assert "\x1b" not in listed(capsys, *places, option)


def test_a_damaged_run_does_not_hide_the_others(places, tmp_path, capsys):
    (tmp_path / "a" / "results" / "made-up" / "pretrain" / "metrics.jsonl").write_text("{}\n[\n{}")
    out = listed(capsys, *places)
    assert "deep" in out
    assert "shallow" not in out


def test_what_does_not_fit_is_named():
    records = [{"run": "a", "answers": 0.5, "model.layers": 4}]
    assert table(records, ["run", "answers", "model.layers"], 12).splitlines() == [
        "run  answers",
        "a    50.0\u202f%",
        "further",  # between words, for a terminal would cut them
        "columns",
        "(choose with",
        "--columns):",
        "model.layers",
    ]
    assert not meets(None, "=", "4")
    assert meets(None, "!=", "4")
