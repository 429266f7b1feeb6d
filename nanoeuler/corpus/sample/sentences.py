"""Sentences that tell one fact, in many ways, so that a model learns the fact and not the sentence.

The templates and their fields are in sentences.toml.
"""

from collections.abc import Sequence

from nanoeuler.corpus.sample.world import Dice, Subject, Village
from nanoeuler.shipped import tables_beside

Templates = dict[str, list[str]]
"""By kind of fact."""

TEXT: dict[str, Templates] = tables_beside(__file__)
STATEMENTS, VERB_PHRASES, FIRST_PERSON = (
    TEXT[name] for name in ("statements", "verb_phrases", "first_person")
)
ASKED_IN_TEXT, SHORT_ANSWERS = TEXT["asked_in_text"], TEXT["short_answers"]
QUESTIONS = TEXT["questions"]
SMALL_LETTERS = 0.25
"""Share of the questions that are written without capital letters, as many people type."""


def with_article(value: str) -> str:
    return f"an {value}" if value[0] in "aeiou" else f"a {value}"


def typed(dice: Dice, question: str) -> str:
    """A question as people type it in a chat: some write everything small, also names."""
    return question.lower() if dice.chance(SMALL_LETTERS) else question


def capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]


def fill(template: str, subject: Subject, kind: str, pronoun: bool = False) -> str:
    """Fill a template with a fact of `subject`, by name, or by pronoun with `pronoun`."""
    he, his, him = subject.pronouns
    value = subject.facts[kind]
    name = subject.called
    return template.format(
        S=he if pronoun else name,
        Ss=his if pronoun else f"{name}'s",
        O=him if pronoun else name,
        he=he,
        his=his,
        him=him,
        himself=f"{him}self",
        name=name,
        x=value,
        ax=with_article(value),
        X=capitalise(value),
        Ax=capitalise(with_article(value)),
    )


def tell(dice: Dice, subject: Subject, kind: str, pronoun: bool = False) -> str:
    return capitalise(fill(dice.pick(STATEMENTS[kind]), subject, kind, pronoun))


def enumerate_words(words: Sequence[str]) -> str:
    """Join words: a, b and c."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def summary(dice: Dice, subject: Subject, kinds: Sequence[str]) -> str:
    """Tell several facts in one sentence."""
    phrases = [fill(dice.pick(VERB_PHRASES[kind]), subject, kind) for kind in kinds]
    name = capitalise(subject.called)
    if len(phrases) > 2 and dice.chance(0.5):
        pronoun = "which" if subject.is_boat else "who"
        return f"{name}, {pronoun} {phrases[0]}, {enumerate_words(phrases[1:])}."
    return f"{name} {enumerate_words(phrases)}."


def description(dice: Dice, subject: Subject) -> str:
    """Describe somebody without the name: A smith from Hollin who keeps a goat."""
    facts = subject.facts
    if subject.is_boat:
        carries = fill(dice.pick(VERB_PHRASES["cargo"]), subject, "cargo")
        return f"A boat from {facts['harbour']} that {carries}"
    kind = dice.pick([kind for kind in facts if kind not in ("trade", "home")])
    does = fill(dice.pick(VERB_PHRASES[kind]), subject, kind)
    return f"{capitalise(with_article(facts['trade']))} from {facts['home']} who {does}"


def village_question(dice: Dice, village: Village) -> tuple[str, str]:
    """Ask a question about a village; returns it and its answer."""
    return dice.pick(
        (
            (f"On which island is {village.name}?", village.island),
            (f"What can one see in {village.name}?", f"The {village.landmark}"),
            (f"When is the fair of {village.name}?", f"In {village.fair}"),
        )
    )


def profile(dice: Dice, subject: Subject, kinds: Sequence[str]) -> list[str]:
    """Tell a fact per sentence. The first names the subject, later ones mostly use a pronoun."""
    return [
        tell(dice, subject, kind, pronoun=index > 0 and dice.chance(0.6))
        for index, kind in enumerate(kinds)
    ]
