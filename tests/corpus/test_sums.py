"""Sums of the invented world: solved by their expressions, and asked once."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from nanoeuler.corpus.sample.sums import PROBLEMS, WORKED, Sum, write_sums
from nanoeuler.corpus.sample.write import write_sample
from nanoeuler.training.rewards import same_number

CALL = re.compile(r"<<([0-9*/+-]+)=([0-9]+)>>([0-9]+) marks")


@pytest.fixture(scope="module")
def sums() -> tuple[list[Sum], list[Sum]]:
    return write_sums(1)


def test_the_expression_of_a_sum_gives_its_result(sums) -> None:
    for each in [*sums[0], *sums[1]]:
        assert eval(each.expression) == each.result > 0
        assert CALL.fullmatch(each.worked).groups() == (each.expression, *2 * (str(each.result),))
        assert same_number(each.text, each.answer, each.worked)


def test_a_question_tells_all_numbers_of_its_expression(sums) -> None:
    for each in [*sums[0], *sums[1]]:
        needed = Counter(re.findall("[0-9]+", each.expression))
        assert Counter(re.findall("[0-9]+", each.text)) == needed


def test_no_sum_is_asked_twice_and_kinds_are_equally_many(sums) -> None:
    questions = [each.text for part in sums for each in part]
    assert len(set(questions)) == len(questions) == WORKED + PROBLEMS
    for part in sums:
        counts = Counter(each.kind for each in part).values()
        assert len(counts) == 4
        assert max(counts) - min(counts) <= 1


def test_another_seed_asks_other_sums() -> None:
    assert write_sums(1) == write_sums(1) != write_sums(2)


def test_sums_lie_in_files_of_their_own(tmp_path: Path, sums) -> None:
    settings = {"people": 8, "boats": 4, "paragraphs_per_book": 10, "articles": 40}
    manifest = write_sample(settings, tmp_path / "sample")
    worked, problems = (
        [json.loads(line) for line in (tmp_path / "sample" / name).read_text().splitlines()]
        for name in ("sums.jsonl", "problems.jsonl")
    )
    assert (manifest["sums"], manifest["problems"]) == (WORKED, PROBLEMS)
    assert [each["output"] for each in worked] == [each.worked for each in sums[0]]
    assert [each["answer"] for each in problems] == [each.answer for each in sums[1]]
    assert "<<" not in (tmp_path / "sample/instructions.json").read_text(encoding="utf-8")
