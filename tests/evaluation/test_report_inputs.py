"""Damaged files of a run are refused in a sentence that names the place."""

import json

import fabricated
import pytest

from nanoeuler.cli import main
from nanoeuler.errors import UserError
from nanoeuler.evaluation.report.gather import gather
from nanoeuler.storage.integrity import seal

CORPUS = "../../data/corpora/made-up/manifest.json"


def test_a_folder_that_is_no_run_and_damaged_metrics_are_refused(tmp_path, capsys):
    empty, output = tmp_path / "empty", tmp_path / "report.html"
    empty.mkdir()
    assert main(["report", "--config", "{}", "--run", str(empty), "--output", str(output)]) == 1
    assert "holds neither a stage's metrics.jsonl nor an evaluation" in capsys.readouterr().err
    assert not output.exists()
    config, folder = fabricated.fabricate(tmp_path)
    path = folder / "pretrain" / "metrics.jsonl"
    path.write_text(path.read_text().replace('{"step": 20,', '{"step": 20;', 1))
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 3: not valid JSON"):
        gather(config, folder)


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("sft/metrics.jsonl", b"\xff\xfe\n", r"metrics\.jsonl: not UTF-8 text \(byte 0\)"),
        (
            "sft/metrics.jsonl",
            b"null\n",
            r"metrics\.jsonl, line 1: not a JSON object",
        ),
        (
            "sft/metrics.jsonl",
            b'{"stage": "sft"}\n{"loss": 3}\n',
            r"metrics\.jsonl, line 2: not what its stage wrote \('step' is missing\)",
        ),
        ("evaluation/sft.json", b"[]", r"sft\.json: not an evaluation \(not a JSON object"),
        ("evaluation/sft.json", b"{}", r"sft\.json: not an evaluation"),
        ("evaluation/sft.json", b'{"held_out": 5}', r"sft\.json: not an evaluation"),
        ("evaluation/notes.json", b'{"a": 1}', r"notes\.json: not an evaluation"),
        (
            "pipeline.json",
            b"[1]",
            r"pipeline\.json: not what the workflow wrote \(not a JSON",
        ),
        ("plan.json", b'{"stages": 3}', r"plan\.json: not what its stage wrote"),
        ("gradients.json", b"{}", r"gradients\.json: not a check of gradients"),
        *(
            ("gradients.json", json.dumps(fabricated.gradients() | change).encode(), sentence)
            for sentence in [r"gradients\.json: not a check of gradients"]
            for change in (
                {"rows": None},
                {"rows": [5]},
                {"rows": [{"case": "linear"}]},
                {"rows": [fabricated.gradients()["rows"][0] | {"error": "small"}]},
                {"tolerance": None},
                {"passed": "yes"},
                {"largest_error": []},
            )
        ),
        (
            "gradients.json",
            json.dumps(seal(fabricated.gradients()) | {"passed": False}).encode(),
            r"gradients\.json: its bytes are not those that `nanoeuler check` wrote",
        ),
        (
            "evaluation/sft.json",
            json.dumps(seal({"held_out": {}}) | {"held_out": {"x": 1}}).encode(),
            r"sft\.json: its bytes are not those that `nanoeuler evaluate` wrote",
        ),
    ],
)
def test_files_of_another_shape_are_refused_in_a_sentence(tmp_path, file, content, sentence):
    config, folder = fabricated.fabricate(tmp_path)
    (folder / file).write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        gather(config, folder)


@pytest.mark.parametrize(
    ("file", "written", "damaged", "reason"),
    [
        ("pretrain/metrics.jsonl", '"step": 10,', '"step": 1e300,', "'step' cannot be 1e+300"),
        ("sft/metrics.jsonl", '"validation": {', '"validation": [{', "not valid JSON"),
        ("sft/metrics.jsonl", '"loss": ', '"loss": "0", "": ', "'loss' cannot be '0'"),
        ("sft/metrics.jsonl", '"records": 2412', '"records": ' + "9" * 400, "'records' cannot be"),
        ("logs/build_corpus.times.jsonl", "12.5", "NaN", "'seconds' cannot be nan"),
        ("logs/build_corpus.times.jsonl", "12.5", "[" * 100_000, "nested too deeply"),
        ("gradients.json", '"limit": 1e-05', '"": 0', "not those that `nanoeuler check` wrote"),
        *(
            ("evaluation/sft.json", *change, "not those that `nanoeuler evaluate` wrote")
            for change in (
                ('"text": "The', r'"text": "\ud800'),
                ('"norm": [{', '"norm": [{"mean": 1e99}, {'),
                ('"window": 128', '"window": null'),
            )
        ),
        ("pipeline.json", '"jobs": 3', '"jobs": null', "not those that the workflow wrote"),
        ("pipeline.json", '"seal"', '"mark"', "not what the workflow wrote ('seal' is missing)"),
        (
            CORPUS,
            '"documents": 93',
            '"pages": 93',
            "'sources.gutenberg.train.documents' is missing",
        ),
        (
            "../../data/corpora/made-up/tokens-512/manifest.json",
            '"train": {',
            '"train": [], "": {',
            "'splits.train",
        ),
        (
            "../../data/instructions/world/manifest.json",
            "2412",
            "-1",
            "'train.records' cannot be -1",
        ),
    ],
)
def test_damage_is_told_by_its_place(tmp_path, capsys, file, written, damaged, reason):
    folder = fabricated.fabricate(tmp_path)[1]
    path, output = (folder / file).resolve(), tmp_path / "report.html"
    assert written in path.read_text()
    path.write_text(path.read_text().replace(written, damaged, 1))
    assert main(["report", str(folder), "--output", str(output)]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error  {path}"), said
    assert reason in said
    assert not output.exists()


def test_a_folder_is_no_file_to_write(tmp_path, capsys):
    folder = fabricated.fabricate(tmp_path)[1]
    assert main(["report", str(folder), "--output", str(tmp_path)]) == 1
    assert (
        f"error  {tmp_path}: a folder; give the name of a file to write" in capsys.readouterr().err
    )
