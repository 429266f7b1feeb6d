"""Measuring a model folder against token shards and questions, as the command does it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nanoeuler.cli import main
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.files import SavedModel, load_model, save_model
from nanoeuler.model.flat import initial_parameters
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.shards import ShardWriter, token_dtype, write_manifest
from nanoeuler.tokenizer.vocabulary import build

DOCUMENTS = {
    "books": ["The mill stands by the river. " * 5, "Tin is mined at Orm.\n"],
    "web": ["How to bake bread in é seven steps."],
}
SETTINGS = {
    "prompts": ["The mill", "Where is <b>?"],
    "validation_tokens": 1000,
    "max_new_tokens": 12,
    "temperature": 0.8,
    "top_k": 0,
    "top_p": 0.95,
}
CONFIG = {"seed": 1, "pretrain": {"document_mask": True}, "evaluate": SETTINGS}


def save_tokens(folder: Path, tokenizer: Tokenizer, documents: dict[str, list[str]]) -> Path:
    """Token shards of `documents`, all of them held out."""
    folder.mkdir()
    entries = {}
    for source, texts in documents.items():
        writer = ShardWriter(folder, f"validation-{source}", token_dtype(tokenizer.vocab_size))
        for text in texts:
            writer.write(np.concatenate([[tokenizer.end_id], tokenizer.encode(text)]))
        entries[source] = writer.entry(len(texts), sum(len(text.encode()) for text in texts))
    write_manifest(folder, tokenizer, "corpus", {"train": {}, "validation": entries})
    return folder / "manifest.json"


def save_random_model(folder: Path, tokenizer: Tokenizer, template: str | None) -> Path:
    shape = {
        "dim": 16,
        "layers": 1,
        "heads": 2,
        "kv_heads": 1,
        "ffn": 24,
        "context": 32,
        "mtp_heads": 2,
    }
    config = ModelConfig.from_dict(shape | {"vocab_size": tokenizer.vocab_size})
    tokenizer.save(folder / "tokenizer.json")
    stage = "sft" if template else "pretrain"
    save_model(
        folder / "model",
        SavedModel(
            config,
            initial_parameters(config, 1),
            folder / "tokenizer.json",
            stage,
            template,
            {"parent": "p"},
        ),
    )
    return folder / "model"


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("evaluate")
    tokenizer, other = Tokenizer(build([])), Tokenizer(build([(20, 21)]))
    questions = [
        {
            "instruction": f"Which metal is mined at place {n}?",
            "input": "",
            "answer": "tin" if n % 3 else "salt",
            "kind": "mine",
        }
        for n in range(9)
    ]
    (folder / "questions.jsonl").write_text(
        "".join(json.dumps(question) + "\n" for question in questions)
    )
    (folder / "instructions").mkdir()
    (folder / "instructions" / "train.jsonl").write_text(
        json.dumps({"instruction": "Say tin.", "input": "", "output": "Tin."}) + "\n"
    )
    for name in ("base", "tuned"):
        (folder / name).mkdir()
    return {
        "base": save_random_model(folder / "base", tokenizer, None),
        "tuned": save_random_model(folder / "tuned", tokenizer, "alpaca"),
        "tokens": save_tokens(folder / "tokens", tokenizer, DOCUMENTS),
        "other tokens": save_tokens(folder / "other", other, DOCUMENTS),
        "no tokens": save_tokens(folder / "none", tokenizer, {}),
        "questions": folder / "questions.jsonl",
        "instructions": folder / "instructions" / "manifest.json",
    }


def run(
    files: dict[str, Path],
    model: str,
    output: Path,
    *extra: str,
    tokens: str = "tokens",
    config: dict = CONFIG,
) -> int:
    arguments = [
        "--config",
        json.dumps(config),
        "--model",
        str(files[model]),
        "--tokens",
        str(files[tokens]),
        "--output",
        str(output),
    ]
    return main(["evaluate", *arguments, "--device", "reference", *extra])


def test_a_tuned_model_is_measured_in_every_way(files, tmp_path):
    output = tmp_path / "evaluation" / "sft.json"
    assert (
        run(
            files,
            "tuned",
            output,
            "--questions",
            str(files["questions"]),
            "--instructions",
            str(files["instructions"]),
        )
        == 0
    )
    result = json.loads(output.read_text())
    assert (result["stage"], result["template"], result["window"]) == ("sft", "alpaca", 32)
    assert list(result["held_out"]) == ["books", "web"]
    for source, texts in DOCUMENTS.items():
        size = sum(len(text.encode()) for text in texts)
        scores = result["held_out"][source]
        assert scores["bytes"] == size
        assert scores["tokens"] == size + len(texts)  # a byte a token, and an end for each document
        guessed = np.log2(272) * scores["tokens"] / size  # random weights guess evenly
        assert scores["bits_per_byte"] == pytest.approx(guessed, rel=0.02)
        assert len(scores["head_accuracy"]) == 2
    trajectory = result["trajectory"]
    assert (trajectory["layers"], trajectory["step_size"]) == (1, 1.0)
    measures = ("norm", "relative_step", "stream_angle", "step_angle")
    assert [len(trajectory[name]) for name in measures] == [3, 2, 2, 1]
    tokens = sum(result["held_out"][source]["tokens"] for source in ("books", "web"))
    assert 0 < trajectory["tokens"] == tokens  # all of it: there is little
    answers = result["answers"]
    assert answers["questions"] == len(answers["replies"]) == 9
    assert answers["commonest_answer"] == {
        "answer": "tin",
        "score": 6 / 9,
        "from": "the instructions",
    }
    assert [sample["prompt"] for sample in result["samples"]] == SETTINGS["prompts"]
    assert not any(sample["continues"] for sample in result["samples"])
    assert result["model_info"] == {"parent": "p"}
    assert result["provenance"]["packages"]["numpy"] == np.__version__


def test_a_base_model_continues_prompts_and_is_asked_in_the_template_too(files, tmp_path):
    assert run(files, "base", tmp_path / "base.json", "--questions", str(files["questions"])) == 0
    result = json.loads((tmp_path / "base.json").read_text())
    assert all(sample["continues"] for sample in result["samples"])
    assert result["answers"]["template"] == "alpaca"
    assert result["answers"]["commonest_answer"]["from"] == "the questions"


def test_the_same_model_is_measured_alike_twice(files, tmp_path):
    for name in ("one.json", "two.json"):
        assert run(files, "tuned", tmp_path / name, "--questions", str(files["questions"])) == 0
    one, two = (json.loads((tmp_path / name).read_text()) for name in ("one.json", "two.json"))
    for evaluation in (one, two):
        for key in ("seconds", "provenance", "seal"):
            del evaluation[key]
    assert one == two


def test_a_limit_and_another_window_are_heeded(files, tmp_path):
    config = CONFIG | {
        "evaluate": SETTINGS | {"validation_tokens": 40, "prompts": []},
        "model": {"context": 16},
    }
    assert run(files, "base", tmp_path / "limited.json", config=config) == 0
    result = json.loads((tmp_path / "limited.json").read_text())
    assert result["window"] == 16
    assert result["held_out"]["books"]["tokens"] == 32
    assert result["held_out"]["books"]["of_tokens"] > 100
    assert result["answers"] is None


def test_of_a_very_long_context_the_window_is_bounded(files, tmp_path):
    """It would have a row of 16,777,216 tokens for a text of some hundred."""
    model = load_model(files["base"])
    model.config = replace(model.config, context=2**24)
    save_model(tmp_path / "long", model)
    config = CONFIG | {"evaluate": SETTINGS | {"prompts": []}}
    folders = files | {"long": tmp_path / "long"}
    assert run(folders, "long", tmp_path / "long.json", config=config) == 0
    result = json.loads((tmp_path / "long.json").read_text())
    assert result["window"] == 8192
    assert result["held_out"]["books"]["tokens"] == result["held_out"]["books"]["of_tokens"]


def test_held_out_instructions_are_answered_to_see_how_replies_end(files, tmp_path):
    held_out = [
        {"instruction": f"Say {word}.", "input": "", "output": word}
        for word in ("salt", "iron", "tin")
    ]
    held_out.insert(0, held_out[0] | {"earlier": [{"instruction": "Hello!", "output": "Hello."}]})
    (tmp_path / "validation.jsonl").write_text(
        "".join(json.dumps(record) + "\n" for record in held_out)
    )
    (tmp_path / "train.jsonl").write_text(json.dumps(held_out[1]) + "\n")
    config = CONFIG | {"evaluate": SETTINGS | {"chat_prompts": 2}}
    assert (
        run(
            files,
            "tuned",
            tmp_path / "sft.json",
            "--instructions",
            str(tmp_path / "manifest.json"),
            config=config,
        )
        == 0
    )
    chat = json.loads((tmp_path / "sft.json").read_text())["chat"]
    assert chat["prompts"] == 2
    assert 0 <= chat["stopped"] <= 1
    assert 0 < chat["mean_reply_tokens"] <= SETTINGS["max_new_tokens"]
    described = {"stopped", "mean_reply_tokens", "mean_reply_words", "repetition"}
    assert set(chat) == {"prompts", "sampled"} | described
    assert set(chat["sampled"]) == described


def test_tokens_of_another_tokenizer_are_refused(files, tmp_path, capsys):
    assert run(files, "tuned", tmp_path / "sft.json", tokens="other tokens") == 1
    said = capsys.readouterr().err
    assert "made with another tokenizer" in said
    assert "Traceback" not in said
    assert not (tmp_path / "sft.json").exists()


def test_a_corpus_without_held_out_text_is_refused(files, tmp_path, capsys):
    assert run(files, "tuned", tmp_path / "sft.json", tokens="no tokens") == 1
    assert "has no held-out text" in capsys.readouterr().err


def test_a_missing_model_and_damaged_questions_are_refused_in_a_sentence(files, tmp_path, capsys):
    assert run(files | {"tuned": tmp_path / "nowhere"}, "tuned", tmp_path / "sft.json") == 1
    assert "no such folder" in capsys.readouterr().err
    (tmp_path / "questions.jsonl").write_text('{"instruction": "Where?"}\n')
    assert (
        run(files, "tuned", tmp_path / "sft.json", "--questions", str(tmp_path / "questions.jsonl"))
        == 1
    )
    assert "questions.jsonl, line 1: answer is missing" in capsys.readouterr().err


def test_without_prompts_held_out_text_and_instructions_give_some(files, tmp_path):
    asked = tmp_path / "instructions"
    asked.mkdir()
    records = [{"instruction": f"Say {metal}."} for metal in ("tin", "salt", "zinc", "iron")]
    (asked / "validation.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    (asked / "train.jsonl").write_text(json.dumps(records[0] | {"output": "Tin."}) + "\n")
    config = CONFIG | {"evaluate": SETTINGS | {"prompts": []}}
    arguments = ("--instructions", str(asked / "manifest.json"))
    prompts = []
    for model in ("base", "tuned"):
        assert run(files, model, tmp_path / f"{model}.json", *arguments, config=config) == 0
        samples = json.loads((tmp_path / f"{model}.json").read_text())["samples"]
        prompts.append([sample["prompt"] for sample in samples])
        assert all(isinstance(sample["text"], str) for sample in samples)
    assert prompts[0] == [
        *("The mill stands by the river.", "Tin is mined at Orm.", "How to bake bread in é"),
        *("Say tin.", "Say salt.", "Say zinc."),
    ]
    assert prompts[1] == prompts[0]
