"""How often replies end as the preferences teach."""

import math

from nanoeuler.evaluation.answers import Question
from nanoeuler.evaluation.preferred_style import preferred_share
from nanoeuler.evaluation.replies import Reply


def reply(text: str) -> Reply:
    return Reply(text, tokens=len(text), stopped=True)


def test_the_share_of_replies_with_the_preferred_ending():
    polite, free = (
        Question("Who?", "", "Ada", None, "At your service."),
        Question("Who?", "", "Ada"),
    )
    replies = [
        reply("Ada\nAt your service.\n"),
        reply("Ada"),
        reply("At your service. Ada"),
        reply("Bo\nAt your service."),
        reply("At your service."),
    ]
    found = preferred_share([polite] * 4 + [free], replies)
    assert found == {
        "replies": 4,
        "preferred": 2,
        "share": 0.5,
        "standard_error": math.sqrt(0.25 / 4),
    }


def test_questions_without_a_preferred_ending_have_no_share():
    assert preferred_share([Question("Who?", "", "Ada")], [reply("Ada")]) is None
