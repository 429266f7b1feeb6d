"""Groups of few-shot tasks, such as CORE, beside DCLM's definition written anew for made-up items.

A prompt is the examples, one a line, each as context, delimiter, a space and its right answer; then
the item's context and the delimiter. A choice is scored by the mean log-probability of its tokens,
a continuation by whether each of its tokens is the likeliest. Categories are tasks of their own,
whose scores are averaged.
"""

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from nanoeuler.backend.reference import ReferenceBackend
from nanoeuler.cli import main
from nanoeuler.evaluation.asking import draw
from nanoeuler.evaluation.scores import task_lines
from nanoeuler.evaluation.tasks import CONTROLS
from nanoeuler.inference import api
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.files import SavedModel, save_model
from nanoeuler.model.flat import FlatBuffer, initial_parameters
from nanoeuler.model.spec import head_name
from nanoeuler.model.transformer import Batch
from nanoeuler.tokenizer import Tokenizer
from nanoeuler.tokenizer.vocabulary import build

WINDOW, SEED = 80, 3
QUIZ = [
    {"query": f" Is {n} odd? ", "choices": ["no", "yes it is"], "gold": n % 2} for n in range(9)
]
SCHEMA = [
    {
        "context_options": [f"{a} thanked {b}, as {a} ", f"{a} thanked {b}, as {b} "],
        "continuation": " was glad.",
        "gold": n % 2,
    }
    for n, (a, b) in enumerate(pairwise(["Ann", "Bob", "Cid", "Dan", "Eve", "Fay"]))
]
TRIVIA = [
    {"context": f"{n} of {m}: ", "continuation": f"{n % 2}", "category": f"of {m}"}
    for m in (1, 2)
    for n in range(3 + m)
]
TASKS = {
    "quiz": {"kind": "multiple_choice", "delimiter": "\nA:", "shots": 3, "baseline": 0.6},
    "schema": {"kind": "schema", "baseline": 0.5},
    "trivia": {"kind": "language_modelling", "shots": 2, "baseline": 0.0},
}
RECORDS = {"quiz": QUIZ, "schema": SCHEMA, "trivia": TRIVIA}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[Path, dict, list[dict]]:
    """A random model that mostly writes " 0" and " 1", its scores and its items."""
    folder = tmp_path_factory.mktemp("core")
    tokenizer = Tokenizer(build([]))
    shape = {"dim": 16, "layers": 1, "heads": 2, "kv_heads": 1, "ffn": 24, "context": WINDOW}
    config = ModelConfig.from_dict(
        shape | {"mtp_heads": 1, "vocab_size": tokenizer.vocab_size, "tied": False}
    )
    tokenizer.save(folder / "tokenizer.json")
    parameters = initial_parameters(config, 5) * 3
    head_VD = FlatBuffer(config, parameters)[head_name(0)]
    head_VD[~np.isin(np.arange(len(head_VD)), tokenizer.encode(" 01"))] *= 0.1
    save_model(
        folder / "model",
        SavedModel(config, parameters, folder / "tokenizer.json", "pretrain", None, {}),
    )
    sources = {}
    for name, entry in TASKS.items():
        (folder / f"{name}.jsonl").write_text("".join(map(line, RECORDS[name])))
        sources[name] = entry | {"url": str(folder / f"{name}.jsonl"), "group": "core"}
    prepared = json.dumps({"sources": {"tasks": sources}})
    assert main(["task", "--config", prepared, "--name=core", f"--output={folder}/core"]) == 0
    settings = {"prompts": [], "max_new_tokens": 4, "controls": True}
    arguments = ["--config", json.dumps({"seed": SEED, "evaluate": settings})]
    arguments += ["--model", str(folder / "model"), "--device", "reference"]
    arguments += ["--output", str(folder / "scores.json"), "--items", str(folder / "items.jsonl")]
    manifests = [str(folder / f"core/{name}/manifest.json") for name in TASKS]
    assert main(["evaluate", *arguments, "--tasks", *manifests]) == 0
    items = [json.loads(text) for text in (folder / "items.jsonl").read_text().splitlines()]
    return folder, json.loads((folder / "scores.json").read_text())["tasks"], items


def line(record: object) -> str:
    return json.dumps(record) + "\n"


def parts(name: str, record: dict) -> tuple[list[str], list[str]]:
    """Contexts and continuations, without white space around them."""
    contexts = record.get("context_options") or [record.get("query") or record["context"]]
    choices = record.get("choices") or [record["continuation"]]
    delimiter = TASKS[name].get("delimiter", "")
    return [each.strip() + delimiter for each in contexts], [each.strip() for each in choices]


def by_definition(model: api.LanguageModel, name: str, number: int, donor: int | None) -> dict:
    """What DCLM asks and counts for one item, by a forward pass for each prompt; with the contexts
    of the item `donor`, if any."""
    records = RECORDS[name]
    record = records[number]
    alike = [n for n, each in enumerate(records) if each.get("category") == record.get("category")]
    drawn = draw(alike, number, TASKS[name].get("shots", 0) + 1, SEED)
    examples = ""
    for each in drawn[: TASKS[name].get("shots", 0)]:
        contexts, choices = parts(name, records[each])
        gold = records[each].get("gold", 0)
        examples += f"{contexts[-1 if len(contexts) == 1 else gold]} "
        examples += choices[-1 if len(choices) == 1 else gold] + "\n"
    contexts = parts(name, record if donor is None else records[donor])[0]
    means, sums, greedy = [], [], True
    for context in contexts:
        for choice in parts(name, record)[1]:
            before = model.tokenizer.encode(examples + context).tolist()
            after = model.tokenizer.encode(f" {choice}").tolist()
            ids = np.array([model.tokenizer.end_id, *before, *after], np.int32)[-WINDOW - 1 :]
            places = np.arange(len(ids) - 1, dtype=np.int32)[None]
            batch = Batch(ids[None, :-1], places, np.zeros_like(places))
            hidden = model.transformer.forward(batch).stream.normed[-len(after) :]
            logits = model.transformer.first_logits(hidden).astype(np.float64)
            logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
            logs = logits[np.arange(len(after)), after]
            sums.append(logs.sum())
            means.append(logs.mean())
            greedy &= bool((logits.argmax(axis=1) == after).all())
    right = greedy if "gold" not in record else int(np.argmax(means)) == record["gold"]
    return {"sums": sums, "right": right, "donor": drawn[-1]}


def test_items_scores_and_the_group_are_those_of_the_definition(run):
    folder, scores, items = run
    model = api.load_on(ReferenceBackend(), folder / "model")
    for control in (None, "context_swapped"):
        centred = []
        for name, entry in TASKS.items():
            found = [item for item in items if item["task"] == name]
            rights: dict[str | None, list[bool]] = {}
            for number, (item, record) in enumerate(zip(found, RECORDS[name], strict=True)):
                donor = by_definition(model, name, number, None)["donor"] if control else None
                wanted = by_definition(model, name, number, donor)
                seen = item[control] if control else item
                # float32 products of other shapes round differently
                np.testing.assert_allclose(seen["loglikelihoods"], wanted["sums"], rtol=2e-5)
                rights.setdefault(record.get("category"), []).append(wanted["right"])
            accuracy = np.mean([np.mean(each) for each in rights.values()])
            told = scores[name]["controls"][control] if control else scores[name]
            assert told["score"] == pytest.approx(accuracy)
            error = math.hypot(*(np.std(r, ddof=1) / len(r) ** 0.5 for r in rights.values()))
            assert told["standard_error"] == pytest.approx(error / len(rights))
            rest = 1 - entry["baseline"]
            centred.append(((accuracy - entry["baseline"]) / rest, error / len(rights) / rest))
        group = scores["core"]["controls"][control] if control else scores["core"]
        assert group["score"] == pytest.approx(np.mean([score for score, _ in centred]))
        error = math.hypot(*(error for _, error in centred)) / 3
        assert group["standard_error"] == pytest.approx(error)
    assert {item["correct"]["acc"] for item in items if item["task"] == "trivia"} == {False, True}
    assert (scores["core"]["tasks"], scores["core"]["items"]) == (list(TASKS), 9 + 5 + 9)


def test_answers_dealt_out_anew_score_what_the_positions_of_the_choices_give(run):
    quiz = [item for item in run[2] if item["task"] == "quiz"]
    chosen = [item["choice"]["acc_token"] for item in quiz]
    shuffled = np.mean([pick == item["gold"] for pick in chosen for item in quiz])
    assert run[1]["quiz"]["controls"]["answers_shuffled"]["score"] == pytest.approx(shuffled)
    assert "answers_shuffled" not in run[1]["trivia"]["controls"]


def test_a_table_names_shots_cut_items_and_the_declared_baseline(run):
    lines = {each.name: each for each in task_lines([{"tasks": run[1]}])}
    cut = run[1]["quiz"]["truncated"]
    assert 0 < cut < 9
    assert lines["quiz"].remark == f"acc_token, 9 items, 3 shots, {cut} cut"
    assert lines["quiz"].baselines == {"declared": 0.6, "at random": 0.5}
    assert lines["core"].remark.endswith("3 tasks")
    assert {name for name, line in lines.items() if line.in_group} == set(TASKS)
    assert f"core, {CONTROLS['context_swapped']}" in lines
    assert f"quiz, {CONTROLS['context_swapped']}" not in lines


def test_examples_are_drawn_by_seed_and_item_and_are_never_the_item():
    others = list(range(3, 40, 2))
    drawn = {own: draw(others, own, 10, seed=1) for own in others}
    assert all(len(set(each)) == 10 and own not in each for own, each in drawn.items())
    assert all(set(each) < set(others) for each in drawn.values())
    assert drawn == {own: draw(others, own, 10, seed=1) for own in others}
    assert len({tuple(each) for each in drawn.values()}) == len(others)
    assert draw(others, 3, 10, seed=2) != drawn[3]
    assert sorted(draw([4, 5, 6], 5, 9, seed=1)) == [4, 6]
    assert draw([4], 4, 2, seed=1) == []
