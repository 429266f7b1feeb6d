"""Sentences that tell one fact, in many ways, so that a model learns the fact and not the sentence.

Fields of a template: {S} the subject ("Bram", or "he" once he has been named), {Ss} its possessive,
{O} its object form, {he} {his} {him} always pronouns, {x} the value, {ax} the value with its
article.
"""

from collections.abc import Sequence

from nanoeuler.corpus.sample.seeded_random import Dice
from nanoeuler.corpus.sample.world import Subject, Village

SMALL_LETTERS = 0.25
"""Share of the questions that are written without capital letters, as many people type."""
STATEMENTS = {
    "home": (
        "{S} lives in {x}.",
        "{Ss} house is in {x}.",
        "{S} has a house in {x}.",
        "{S} was born in {x} and still lives there.",
        "You will find {O} in {x}.",
        "Whoever looks for {O} must go to {x}.",
        "Letters for {O} go to {x}.",
        "{Ss} home is {x}.",
    ),
    "trade": (
        "{S} is {ax}.",
        "{S} works as {ax}.",
        "By trade {S} is {ax}.",
        "{Ss} trade is that of {ax}.",
        "{S} has been {ax} for many years.",
        "Everyone calls {O} the best {x} on the isles.",
        "Whoever needs {ax} goes to {O}.",
        "{S} likes to work as {ax}.",
    ),
    "animal": (
        "{S} keeps {ax}.",
        "{S} has {ax}.",
        "{Ss} animal is {ax}.",
        "{S} looks after {ax}.",
        "{S} never goes out without {his} {x}.",
        "{Ss} {x} goes with {him} everywhere.",
        "{S} talks to {his} {x} as if it could answer.",
        "{S} found {his} {x} after a storm.",
    ),
    "door": (
        "{Ss} door is {x}.",
        "{S} has {ax} door.",
        "{S} painted {his} door {x}.",
        "The door of {Ss} house is {x}.",
        "The colour of {Ss} door is {x}.",
        "{S} lives behind {ax} door.",
        "Go to the {x} door, and {S} will open.",
        "Every year {S} paints {his} door {x} again.",
    ),
    "instrument": (
        "{S} plays the {x}.",
        "{Ss} instrument is the {x}.",
        "{S} makes music on the {x}.",
        "{S} brings {his} {x} to every fair.",
        "Nobody plays the {x} as {S} does.",
        "At night you can hear {Ss} {x}.",
        "When {S} plays the {x}, everyone sings.",
        "{S} can play the {x}.",
    ),
    "food": (
        "{S} likes {x} best.",
        "{Ss} favourite food is {x}.",
        "{S} eats {x} every day.",
        "{Ss} house smells of {x}.",
        "{S} would go far for {x}.",
        "At the fair {S} buys {x}.",
        "Give {O} {x}, and {he} will sing.",
        "{S} is never without {x}.",
    ),
    "harbour": (
        "{S} lies in the harbour of {x}.",
        "{Ss} harbour is {x}.",
        "{Ss} home is the harbour of {x}.",
        "{S} belongs to {x}.",
        "{S} sails from {x} every morning.",
        "After a storm {S} goes home to {x}.",
        "The people of {x} built {O}.",
        "At night {S} lies in {x}.",
    ),
    "sails": (
        "{S} has {x} sails.",
        "{Ss} sails are {x}.",
        "The colour of {Ss} sails is {x}.",
        "You will know {O} by her {x} sails.",
        "{S} comes home under {x} sails.",
        "The people painted {Ss} sails {x}.",
        "{S} goes out under {x} sails.",
        "From far away you can see {Ss} {x} sails.",
    ),
    "cargo": (
        "{S} carries {x}.",
        "{Ss} cargo is {x}.",
        "{S} brings {x} to the isles.",
        "Whoever needs {x} looks for {O}.",
        "{S} is full of {x}.",
        "{S} never sails without {x}.",
        "{S} has carried {x} for many years.",
        "The people buy {x} from {O}.",
    ),
}

VERB_PHRASES = {
    "home": ("lives in {x}", "has a house in {x}"),
    "trade": ("is {ax}", "works as {ax}"),
    "animal": ("keeps {ax}", "has {ax}"),
    "door": ("has {ax} door", "lives behind {ax} door"),
    "instrument": ("plays the {x}", "makes music on the {x}"),
    "food": ("likes {x} best", "eats {x} every day"),
    "harbour": ("lies in {x}", "belongs to {x}"),
    "sails": ("has {x} sails", "sails under {x} sails"),
    "cargo": ("carries {x}", "brings {x}"),
}

FIRST_PERSON = {
    "home": ("I live in {x}.", "My house is in {x}."),
    "trade": ("I am {ax}.", "I work as {ax}."),
    "animal": ("I keep {ax}.", "My animal is {ax}."),
    "door": ("My door is {x}.", "I painted my door {x}."),
    "instrument": ("I play the {x}.", "I make music on the {x}."),
    "food": ("I like {x} best.", "I eat {x} every day."),
}

ASKED_IN_TEXT = {
    "home": ("Where is {Ss} house?", "Where will I find {O}?", "Where is {Ss} home?"),
    "trade": ("What work does {S} do?", "What is {S} by trade?", "Which trade has {S}?"),
    "animal": (
        "What animal has {S}?",
        "Which animal goes with {O}?",
        "Which animal belongs to {O}?",
    ),
    "door": (
        "How will I know {Ss} door?",
        "What is the colour of {Ss} door?",
        "Which door belongs to {O}?",
    ),
    "instrument": (
        "What does {S} play?",
        "What music does {S} make?",
        "Which instrument belongs to {O}?",
    ),
    "food": ("What does {S} eat?", "What food does {S} like best?", "Which food makes {O} happy?"),
    "harbour": ("Where does {S} lie?", "Where is {Ss} home?", "Which harbour does {S} call home?"),
    "sails": (
        "How will I know {Ss} sails?",
        "What is the colour of {Ss} sails?",
        "Which sails belong to {O}?",
    ),
    "cargo": ("What does {S} bring?", "What is {S} full of?", "Which cargo belongs to {O}?"),
}
"""Questions in books and pages. They differ from those that are scored, which no text contains."""

SHORT_ANSWERS = {
    "home": ("{X}", "In {x}"),
    "trade": ("{Ax}", "{X}"),
    "animal": ("{Ax}", "{X}"),
    "door": ("{X}", "It is {x}"),
    "instrument": ("The {x}", "{X}"),
    "food": ("{X}",),
    "harbour": ("{X}", "In {x}"),
    "sails": ("{X}", "They are {x}"),
    "cargo": ("{X}",),
}

QUESTIONS = {
    "home": (
        "Where does {S} live?",
        "In which village does {S} live?",
        "Name the village where {S} lives.",
    ),
    "trade": ("What is {Ss} trade?", "What does {S} work as?", "Name {Ss} trade."),
    "animal": ("Which animal does {S} keep?", "What animal does {S} have?", "Name {Ss} animal."),
    "door": (
        "What colour is {Ss} door?",
        "Which colour did {S} paint {his} door?",
        "Name the colour of {Ss} door.",
    ),
    "instrument": (
        "Which instrument does {S} play?",
        "What instrument can {S} play?",
        "Name {Ss} instrument.",
    ),
    "food": (
        "What is {Ss} favourite food?",
        "What does {S} like to eat best?",
        "Name {Ss} favourite food.",
    ),
    "harbour": ("What is {Ss} harbour?", "In which harbour does {S} lie?", "Name {Ss} harbour."),
    "sails": (
        "What colour are {Ss} sails?",
        "Which colour of sails does {S} have?",
        "Name the colour of {Ss} sails.",
    ),
    "cargo": ("What does {S} carry?", "What is {Ss} cargo?", "Name {Ss} cargo."),
}
"""Questions of instructions and held-out questions; the answer is the bare value."""


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
    """Tell a fact in one sentence."""
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
