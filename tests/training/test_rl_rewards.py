"""What a reply earns: answers, numbers, patterns, sums, and one's own functions."""

from decimal import Decimal

import pytest

from nanoeuler.errors import UserError
from nanoeuler.training.rewards import Rewards, last_number


@pytest.fixture
def earned(tmp_path):
    def earned(given, reply, answer):
        rewards = Rewards(given, 5, tmp_path)
        try:
            return rewards.of("Asked.", reply, answer)
        finally:
            rewards.close()

    return earned


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("10", "10"),
        ("It is 10.0.", "10"),
        ("1,000 pence", "1000"),
        ("1,234,567.50", "1234567.5"),
        ("1,2", "2"),
        ("1,0000", "0"),
        ("from 3-5", "5"),
        ("(7)-2", "2"),
        ("x = -5", "-5"),
        ("−5", "-5"),
        ("$-5", "-5"),
        (".5", "0.5"),
        ("0.1 + 0.2 = 0.3", "0.3"),
        ("3.", "3"),
        ("1.2.3", "1.2"),
        ("page 12a", "12"),
        ("10 ¼", "10"),
    ],
)
def test_the_last_number_of_a_text_is_exact(text, number):
    assert last_number(text) == Decimal(number)


@pytest.mark.parametrize("text", ["", "none", "٣", "-", "."])
def test_a_text_without_a_number_has_none(text):
    assert last_number(text) is None


def test_rewards_by_name(earned):
    assert earned("answer", " Fennick.\nAt your service.", "fennick") == 1
    assert earned("answer", "In Fennick", "Fennick") == 0
    assert earned("number", "5 + 5 = 10.0", "#### 10") == 1
    assert earned("number", "none", "10") == 0
    assert earned("regex", "It is 10.", r"\b10\b") == 1
    assert earned(r"regex:^\d+$", "10", "unused") == 1
    assert earned(r"regex:^\d+$", "ten", "unused") == 0


def test_json_that_a_schema_allows(tmp_path, earned):
    schema = tmp_path / "fare.json"
    schema.write_text(
        '{"type": "object", "required": ["pence"], "$defs": {"n": {"minimum": 0}},'
        '"properties": {"pence": {"type": "integer", "$ref": "#/$defs/n"}}}'
    )
    assert earned(f"schema:{schema}", '{"pence": 5}', "unused") == 1
    wrong_ones = (
        '{"pence": -5}',
        '{"pence": 0.5}',
        "{}",
        "[]",
        '{"pence": 5',
        "five",
        "[" * 99_999,
    )
    for wrong in wrong_ones:
        assert earned(f"schema:{schema}", wrong, "unused") == 0


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{", "JSONDecodeError"),
        ('{"type": "objekt"}', "SchemaError"),
        ('{"$ref": "https://127.0.0.1:9/other.json"}', "Unresolvable|WrappedReferencingError"),
    ],
)
def test_a_schema_that_is_none_or_lies_elsewhere_is_refused(tmp_path, earned, text, fault):
    (tmp_path / "none.json").write_text(text)
    with pytest.raises(UserError, match=rf"rl\.reward: .*({fault}).*; correct it"):
        earned(f"schema:{tmp_path}/none.json", "{}", "unused")


def test_a_list_is_a_sum_with_weights(earned):
    both = ["number", "0.25 * answer", "-1e-1*regex:="]
    assert earned(both, "5 + 5 = 10", "10") == pytest.approx(1 - 0.1)
    assert earned(both, "10", "10") == pytest.approx(1.25)


@pytest.mark.parametrize(
    "given", ["", "numbers", "1.2.3 * number", "mine.py", "mine.py:", "* answer"]
)
def test_what_is_no_reward_is_refused(tmp_path, given):
    with pytest.raises(UserError, match=r"rl\.reward: .* is no reward; give answer, number, regex"):
        Rewards(given, 5, tmp_path)


def test_a_pattern_that_never_ends_is_stopped(tmp_path):
    rewards = Rewards("regex:(a+)+$", 0.5, tmp_path)
    with pytest.raises(UserError, match=r"took more than 0\.5 seconds"):
        rewards.of("Asked.", "a" * 40 + "b", "unused")


def test_a_function_sees_the_texts_as_they_are_and_may_import_what_lies_beside_it(tmp_path, earned):
    (tmp_path / "beside.py").write_text("WANTED = 'ä\\n\U0001f408'\n")
    own = tmp_path / "own.py"
    own.write_text(
        "import sys\nfrom beside import WANTED\n"
        "def own(prompt, reply, answer):\n"
        "    assert sys.stdin.read() == ''\n"
        "    return [prompt, reply, answer] == ['Asked.', WANTED, 'b\\x00']\n"
    )
    assert earned(f"{own}:own", "ä\n\U0001f408", "b\x00") == 1
