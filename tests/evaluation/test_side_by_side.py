"""Several runs on one page: settings that differ, curves, scores and replies side by side."""

import json

import fabricated
import pytest
from test_charts import numbers
from test_report import Outline

from nanoeuler.cli import main
from nanoeuler.config.rules import leaves
from nanoeuler.evaluation.report.gather import gather, kept_configuration
from nanoeuler.evaluation.report.side_by_side import name_runs, shown, side_by_side, what_counts
from nanoeuler.storage.integrity import seal


def make(root, name: str, stages=("pretrain", "sft"), **changes) -> tuple:
    """A made-up run in a folder of its own, whose configuration has `changes`."""
    root.mkdir()
    _, folder = fabricated.fabricate(root, stages)
    kept = json.loads((folder / "pipeline.json").read_text())
    kept["config"] |= {"run": name} | changes
    fabricated.write(folder / "pipeline.json", seal(kept))
    return folder, gather(kept["config"], folder)


@pytest.fixture
def folders(tmp_path):
    model = fabricated.CONFIG["model"]
    return [
        make(tmp_path / "a", "shallow")[0],
        make(tmp_path / "b", "deep", ("pretrain", "sft", "dpo"), model=model | {"layers": 9})[0],
    ]


def test_energy_stands_with_the_cost_of_training(folders, tmp_path):
    metrics = folders[1] / "pretrain/metrics.jsonl"
    *lines, last = metrics.read_text().splitlines()
    lines.append(json.dumps(json.loads(last) | {"gpu_joules": 46_100.0}))
    metrics.write_text("\n".join(lines))
    runs = [gather(kept_configuration(folder), folder) for folder in folders]
    text = Outline(side_by_side(name_runs(folders, runs))).text
    assert "energy, GPU – 46.1 kJ –" in text
    assert "energy, CPU" not in text


def test_the_command_puts_runs_side_by_side(folders, tmp_path):
    output = tmp_path / "both.html"
    assert main(["report", *map(str, folders), "--output", str(output)]) == 0
    html = output.read_text(encoding="utf-8")
    outline = Outline(html)
    assert outline.headings == [
        "shallow and deep",
        "Runs",
        "Settings that differ",
        "Difference in scores",
        "Results",
        "Training",
        "Depth",
        "Samples",
    ]
    text = outline.text
    assert "Settings that differ shallow deep model.layers 4 9 Difference in scores" in text
    assert (
        "Pretrained shallow deep baseline bits per byte, gutenberg 1.734 1.734 2.613 bigram" in text
    )
    assert "Aligned shallow deep baseline bits per byte, gutenberg – 1.953" in text
    assert "deep, aligned It rises in the Grey Hills!" in text
    assert "shallow, fine-tuned The river Ansel rises in the Grey Hills." in text
    assert "Training loss over time" in text
    links = [value for name, value in outline.attributes if name in ("src", "href")]
    assert links
    assert all(link.startswith("#") for link in links)
    chart = next(each for each in numbers(html) if each.get("title") == "Training loss")
    assert [one["colour"] for one in chart["series"]] == [0, 1]


def test_two_runs_show_how_far_apart_their_scores_are(tmp_path):
    runs = {name: make(tmp_path / name, name)[1] for name in ("a", "b")}
    later = runs["b"].evaluations["pretrain"]
    later["held_out"]["fineweb"]["bits_per_byte"] = 1.5
    later["tasks"]["hellaswag"] |= {"score": 0.304, "standard_error": 0.012}
    html = side_by_side(runs)
    text = Outline(html).text
    assert "pretrained: bits per byte, fineweb 1.689 1.500 −0.189 –" in text
    assert "pretrained: hellaswag 27.4 % 30.4 % +3.0 % +1.8" in text  # 0.03 / √(0.011² + 0.012²)
    assert "pretrained: lambada 0.0 % 0.0 % +0.0 % –" in text
    assert 'aria-label="Gradient norm"' in html
    more = side_by_side(runs | {"c": make(tmp_path / "c", "c")[1]})
    assert "Difference in scores" not in more


def test_one_folder_alone_gives_its_own_report(folders, tmp_path):
    assert main(["report", str(folders[0]), "--output", str(tmp_path / "one.html")]) == 0
    assert main(["report", str(folders[0])]) == 0
    assert (folders[0] / "report.html").read_text() == (tmp_path / "one.html").read_text()
    assert Outline((tmp_path / "one.html").read_text(encoding="utf-8")).headings[:2] == [
        "shallow",
        "Results",
    ]


def test_runs_of_one_name_go_by_their_folders(tmp_path):
    (one, first), (two, second) = make(tmp_path / "a", "demo"), make(tmp_path / "b", "demo")
    assert list(name_runs([one, two], [first, second])) == [one.as_posix(), two.as_posix()]
    assert (
        "Settings that differ None."
        in Outline(side_by_side(name_runs([one, two], [first, second]))).text
    )


def test_numbers_of_questions_that_differ_are_told_and_share_no_baseline(tmp_path):
    runs = {name: make(tmp_path / name, name)[1] for name in ("a", "b")}
    assert "exact answers of 300 " in Outline(side_by_side(runs)).text
    other = runs["b"].evaluations["sft"]
    other["answers"] |= {
        "questions": 72,
        "commonest_answer": {"answer": "a cat", "score": 0.5, "from": "the questions"},
    }
    other["tasks"]["hellaswag"] |= {"items": 40, "baseline": 0.3}
    other["chat"]["prompts"] = 10
    text = Outline(side_by_side(runs)).text
    assert "exact answers of 300 / 72 78.3 % ± 2.4 78.3 % ± 2.4 – replies" in text
    assert "hellaswag acc_norm, 1,000 / 40 items 29.1 % ± 1.1 29.1 % ± 1.1 – lambada" in text
    assert "sampled replies to 58 / 10 instructions that stop" in text


def test_a_stage_that_is_off_in_one_run_is_one_difference(tmp_path):
    tuned = {"enabled": True, "instructions": "world", "learning_rate": 0.0003, "epochs": 2}
    changes = {"a": tuned, "b": tuned | {"epochs": 3}, "c": tuned | {"enabled": False, "epochs": 4}}
    runs = {name: make(tmp_path / name, name, sft=section)[1] for name, section in changes.items()}
    assert (
        "Settings that differ a b c sft.epochs 2 3 – sft.enabled True True False Results"
        in Outline(side_by_side(runs)).text
    )


def test_a_task_among_the_settings_is_told_in_words():
    tasks = [
        {"name": "hellaswag", "limit": 40, "url": None, "kind": None},
        {"name": "mine", "limit": None, "url": "mine.jsonl", "kind": "piqa"},
    ]
    assert shown(tasks) == "hellaswag limit 40, mine url mine.jsonl kind piqa"
    assert (shown(None), shown([1, 2]), shown([])) == ("–", "1, 2", "")


def test_scores_on_different_texts_are_not_said_to_compare(tmp_path):
    runs = {name: make(tmp_path / name, name)[1] for name in ("a", "b")}
    assert "do not compare" not in side_by_side(runs)
    runs["b"].corpus["fingerprint"] = "9" * 64
    assert "bits per byte are of different texts and do not compare" in side_by_side(runs)
    runs["b"].corpus = runs["b"].tokens = None
    assert "bits per byte compare only where the held-out text is the same" in side_by_side(runs)


def test_half_a_run_and_one_by_hand_stand_beside_a_whole_one(tmp_path):
    whole = make(tmp_path / "whole", "whole")[1]
    folder, _ = make(tmp_path / "half", "half", ("pretrain",))
    (folder / "pipeline.json").unlink()
    (folder / "evaluation" / "pretrain.json").unlink()
    (folder / "pretrain" / "metrics.jsonl").write_text(
        '{"stage": "pretrain"}\n{"step": 1, "tokens": 10, "seconds": 2, "loss": NaN, '
        '"learning_rate": 0.1, "gradient_norm": NaN, "tokens_per_second": 5, "mfu": null}\n{"st'
    )
    html = side_by_side({"whole": whole, "half": gather(kept_configuration(folder), folder)})
    text = Outline(html).text
    assert "The configuration of half is not at hand" in text
    assert "tokens read in training 2.05 M 10" in text
    assert "half – pretrained (not finished)" in text
    assert numbers(html)


def test_only_settings_that_can_change_a_result_are_told():
    config = {"run": "a", "sources": {"x": 1}, "data_dir": "d", "slurm": {"hours": 3}, "seed": 1}
    config |= {
        "sft": {"enabled": True, "learning_rate": 0.1, "log_every": 7},
        "dpo": {"enabled": False, "beta": 0.1},
    }
    assert dict(leaves(what_counts(config))) == {
        "seed": 1,
        "sft.enabled": True,
        "sft.learning_rate": 0.1,
        "dpo.enabled": False,
    }


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["RUN", "--run", "RUN", "--config", "{}"],
        ["RUN", "OTHER", "--metrics", "m.json"],
        ["RUN", "RUN"],
    ],
)
def test_arguments_that_contradict_each_other_are_refused(folders, tmp_path, capsys, arguments):
    given = [
        {"RUN": str(folders[0]), "OTHER": str(folders[1])}.get(argument, argument)
        for argument in arguments
    ]
    assert main(["report", *given, "--output", str(tmp_path / "report.html")]) == 1
    assert "error  " in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()
