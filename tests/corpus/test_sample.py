"""The invented world: same seed, same bytes; texts answer all questions but never ask them."""

import json
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from fuzz.material import environment, nanoeuler
from nanoeuler.cli import main
from nanoeuler.corpus.sample.articles import write_pages
from nanoeuler.corpus.sample.books import BOOKS
from nanoeuler.corpus.sample.conversations import COURTESY
from nanoeuler.corpus.sample.sentences import (
    ASKED_IN_TEXT,
    QUESTIONS,
    SHORT_ANSWERS,
    STATEMENTS,
    VERB_PHRASES,
    capitalise,
    fill,
)
from nanoeuler.corpus.sample.world import KINDS, Dice, Rounds, Sample, World, build_world
from nanoeuler.corpus.sample.write import write_sample
from nanoeuler.errors import UserError
from nanoeuler.storage.folders import MARKER

SMALL = {
    "people": 12,
    "boats": 4,
    "paragraphs_per_book": 12,
    "articles": 60,
    "other_instructions": 60,
}

WAYS = 8
"""In how many different sentences a fact must be told at least."""


def read_instructions(sample: Path) -> list[dict[str, str]]:
    return json.loads((sample / "instructions.json").read_text(encoding="utf-8"))


def read_questions(sample: Path) -> list[dict[str, str]]:
    return [
        json.loads(line)
        for line in (sample / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    ]


def words(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z]+", text))


def test_equal_settings_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_sample(SMALL, tmp_path / name)
    files = sorted(
        path.relative_to(tmp_path / "one")
        for path in (tmp_path / "one").rglob("*")
        if path.is_file()
    )
    assert len(files) == len(BOOKS) + 8
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), (
            file
        )


def test_another_seed_gives_another_world() -> None:
    assert build_world(1, 12, 4) != build_world(2, 12, 4)


def test_the_choices_are_the_same_for_ever() -> None:
    dice = Dice(1, "test")
    assert [dice.below(1000) for _ in range(8)] == [68, 364, 561, 283, 763, 541, 804, 314]
    assert "".join(Dice("shuffle").shuffled("abcdefgh")) == "gbehdacf"


def test_rounds_treat_everything_alike() -> None:
    rounds = Rounds(Dice(1), "abcde")
    assert set(Counter(rounds.next() for _ in range(50)).values()) == {10}
    for _ in range(30):
        assert len(set(rounds.several(3))) == 3
    assert set(Counter(rounds.next() for _ in range(50)).values()) <= {9, 10, 11}


def test_the_manifest_describes_the_files(demo: Path) -> None:
    import hashlib

    manifest = json.loads((demo / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["version"] == 1
    assert manifest["settings"]["seed"] == 1
    assert set(manifest["files"]) == {
        path.relative_to(demo).as_posix() for path in demo.rglob("*") if path.is_file()
    } - {"manifest.json", MARKER}
    for name, entry in manifest["files"].items():
        content = (demo / name).read_bytes()
        assert entry == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert manifest["questions"] == len(read_questions(demo))
    assert manifest["instructions"] == len(read_instructions(demo))


def test_values_are_given_out_evenly(world: World) -> None:
    for held_out in (False, True):
        for kind, values in KINDS.items():
            counts = Counter(
                subject.facts[kind]
                for subject in world.subjects
                if subject.held_out == held_out and kind in subject.facts
            )
            assert (
                max(counts[value] for value in values) - min(counts[value] for value in values) <= 1
            )


def test_every_kind_of_fact_can_be_told_and_asked_for(world: World) -> None:
    for subject in (world.people[0], world.boats[0]):
        for kind in subject.facts:
            for templates in (STATEMENTS, VERB_PHRASES, QUESTIONS, ASKED_IN_TEXT, SHORT_ANSWERS):
                for template in templates[kind]:
                    assert "{" not in fill(template, subject, kind)
            for statement in STATEMENTS[kind]:
                assert subject.facts[kind] in fill(statement, subject, kind)
                assert subject.name in fill(statement, subject, kind)


def test_there_are_enough_questions_and_each_has_a_short_answer(demo: Path) -> None:
    questions = read_questions(demo)
    assert len(questions) >= 250
    assert len({question["instruction"] for question in questions}) == len(questions)
    for question in questions:
        assert set(question) == {"instruction", "input", "answer", "kind", "preferred_ending"}
        assert question["answer"] in {capitalise(value) for value in KINDS[question["kind"]]}


def test_instructions_never_mention_who_is_asked_about(demo: Path, world: World) -> None:
    held_out = {subject.name for subject in world.subjects if subject.held_out}
    for record in read_instructions(demo):
        assert set(record) == {"instruction", "input", "output"}
        assert record["instruction"].strip()
        assert record["output"].strip()
        assert not held_out & words(" ".join(record.values())), record


def test_preferences_teach_one_thing_about_subjects_that_are_not_held_out(
    demo: Path, world: World
) -> None:
    held_out = {subject.name for subject in world.subjects if subject.held_out}
    pairs = [
        json.loads(line)
        for line in (demo / "preferences.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert len({pair["instruction"] for pair in pairs}) == len(pairs) >= 400
    for pair in pairs:
        assert set(pair) == {"instruction", "input", "chosen", "rejected"}
        assert pair["chosen"] == f"{pair['rejected']}\n{COURTESY}"
        assert not held_out & words(pair["instruction"])
    assert {question["preferred_ending"] for question in read_questions(demo)} == {COURTESY}


def test_half_of_the_answers_are_courteous_whatever_is_asked(demo: Path) -> None:
    prompts = {
        json.loads(line)["instruction"].lower()
        for line in (demo / "preferences.jsonl").read_text(encoding="utf-8").splitlines()
    }
    outputs = [
        record["output"]
        for record in read_instructions(demo)
        if record["instruction"].lower() in prompts
    ]
    assert len(outputs) == len(prompts)
    assert 0.45 < sum(output.endswith(COURTESY) for output in outputs) / len(outputs) < 0.55


def test_questions_ask_only_about_who_is_held_out(demo: Path, world: World) -> None:
    held_out = {subject.name for subject in world.subjects if subject.held_out}
    assert all(
        len(held_out & words(question["instruction"])) == 1 for question in read_questions(demo)
    )


def test_prompts_worth_typing_are_about_who_is_held_out(demo: Path, world: World) -> None:
    prompts = json.loads((demo / "manifest.json").read_text(encoding="utf-8"))["prompts"]
    held_out = {subject.name for subject in world.people if subject.held_out}
    assert len(prompts) == 5
    assert all(held_out & words(prompt) for prompt in prompts[:4])


def test_instructions_ask_in_every_form_of_the_questions(demo: Path, world: World) -> None:
    asked = {record["instruction"].lower() for record in read_instructions(demo)}
    known = next(subject for subject in world.people if not subject.held_out)
    assert all(
        fill(form, known, kind).lower() in asked for kind in known.facts for form in QUESTIONS[kind]
    )


def test_a_share_of_the_questions_is_typed_in_small_letters(demo: Path, world: World) -> None:
    """And the web's quizzes ask so about everybody, whom the held-out questions are about."""
    records = json.loads((demo / "instructions.json").read_text(encoding="utf-8"))
    small = [each for each in records if each["instruction"].islower()]
    assert 0.14 < len(small) / len(records) < 0.26
    sizes = Sample()
    pages = "\n".join(page.text for page in write_pages(world, sizes.seed, sizes.articles))
    lines = pages.splitlines()
    typed = [line for line in lines if line.endswith("?") and line == line.lower()]
    capital = [line for line in lines if line.endswith("?") and line[:1].isupper()]
    assert len(typed) > 0.1 * len(capital)
    for person in world.people:
        assert any(person.name.lower() in line for line in typed), person.name


def test_instructions_are_varied(demo: Path) -> None:
    records = read_instructions(demo)
    assert 0.1 < sum(bool(record["input"]) for record in records) / len(records) < 0.5
    assert len({(record["instruction"], record["input"]) for record in records}) == len(records)


def test_no_text_asks_what_is_scored(demo: Path, text: str) -> None:
    """The text tells the facts and asks for them, but never in the words of a held-out question."""
    assert not [
        question["instruction"]
        for question in read_questions(demo)
        if question["instruction"] in text
    ]


def test_every_fact_is_told_in_many_ways(text: str, world: World) -> None:
    for subject in world.subjects:
        for kind in subject.facts:
            ways = sum(
                capitalise(fill(statement, subject, kind)) in text for statement in STATEMENTS[kind]
            )
            ways += sum(fill(phrase, subject, kind) in text for phrase in VERB_PHRASES[kind])
            assert ways >= min(WAYS, len(STATEMENTS[kind])), (subject.name, kind)


def test_no_constant_answer_scores_well(demo: Path) -> None:
    """Tries the most frequent answer of the instructions, of the questions, and of each kind."""
    answers = Counter(question["answer"] for question in read_questions(demo))
    commonest, _ = Counter(record["output"] for record in read_instructions(demo)).most_common(1)[0]
    assert answers[commonest] <= 0.05 * answers.total()
    assert max(answers.values()) <= 0.05 * answers.total()
    by_kind: dict[str, Counter[str]] = {}
    for question in read_questions(demo):
        by_kind.setdefault(question["kind"], Counter())[question["answer"]] += 1
    assert sum(max(counts.values()) for counts in by_kind.values()) <= 0.15 * answers.total()


def test_a_text_to_be_read_is_about_nobody_of_the_isles(demo: Path, world: World) -> None:
    names = {subject.name for subject in world.people}
    for record in read_instructions(demo):
        if record["input"].endswith("."):
            assert not names & words(record["input"]), record


def test_the_command_writes_the_sample(tmp_path: Path) -> None:
    config = json.dumps({"sample": SMALL | {"seed": 3}})
    assert main(["sample", "--config", config, "--output", str(tmp_path / "sample")]) == 0
    assert (
        json.loads((tmp_path / "sample/manifest.json").read_text(encoding="utf-8"))["settings"][
            "seed"
        ]
        == 3
    )


def test_a_command_that_used_duckdb_ends_without_its_complaints(tmp_path: Path) -> None:
    """Its binding prints what is left at the end of Python as leaks."""
    config = json.dumps({"sample": SMALL | {"seed": 3}})
    command = nanoeuler("sample", "--config", config, "--output", str(tmp_path / "sample"))
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert [line.split()[0] for line in done.stderr.splitlines()] == ["sample"]


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"persons": 5}, "sample.persons is no setting"),
        (
            {"people": "many"},
            "sample.people is 'many'; it must be a whole number of at least 8 and at most 68",
        ),
        ({"people": 1000}, "at most"),
        ({"articles": 0}, "at least 40"),
        ({"boats": True}, "sample.boats is True"),
    ],
)
def test_wrong_settings_are_refused(
    section: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        write_sample(section, tmp_path / "sample")
    assert not (tmp_path / "sample").exists()
