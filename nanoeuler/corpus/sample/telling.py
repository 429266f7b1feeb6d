"""Sentences that tell one fact: many ways for every kind, so that a reader learns the fact and not the sentence.

Fields of a template: {S} the subject ("Bram", or "he" once he has been named), {Ss} its possessive, {O} its object form, {he} {his} {him} always
pronouns, {x} the value, {ax} the value with its article.
"""

from collections.abc import Sequence

from nanoeuler.corpus.sample.dice import Dice
from nanoeuler.corpus.sample.world import Subject

STATEMENTS = {
    "home": (
        "{S} lives in {x}.",
        "{Ss} house stands in {x}.",
        "{S} was born in {x} and never moved away.",
        "{S} has a small house in {x}.",
        "You will find {O} in {x}.",
        "Whoever looks for {O} must go to {x}.",
        "{S} has always lived in {x}.",
        "The village where {S} lives is {x}.",
        "{S} calls {x} {his} home.",
        "Letters for {O} are sent to {x}.",
        "Of all the villages {S} chose to live in {x}.",
    ),
    "trade": (
        "{S} is {ax}.",
        "{S} works as {ax}.",
        "{S} has been {ax} for twenty years.",
        "{S} learned the trade of {ax} from an aunt.",
        "By trade {S} is {ax}.",
        "{S} earns {his} bread as {ax}.",
        "Everyone calls {O} the best {x} on the islands.",
        "Whoever needs {ax} sends for {O}.",
        "{S} became {ax}, as {his} mother had been before {him}.",
        "{Ss} work is that of {ax}.",
        "{S} is proud to be {ax}.",
    ),
    "animal": (
        "{S} keeps {ax}.",
        "{S} has {ax} that sleeps by the stove.",
        "{S} never goes out without {his} {x}.",
        "{Ss} {x} follows {him} everywhere.",
        "{Ss} animal is {ax}.",
        "{S} found {his} {x} on the beach after a storm.",
        "{S} talks to {his} {x} as others talk to their neighbours.",
        "{S} shares {his} supper with {ax}.",
        "Beside {O} walks {ax}.",
        "{S} would not sell {his} {x} for a bag of gold.",
        "{S} looks after {ax}.",
    ),
    "door": (
        "{Ss} door is {x}.",
        "{S} has {ax} door.",
        "{S} painted {his} door {x}.",
        "The door of {Ss} house is {x}.",
        "Every spring {S} paints {his} door {x} again.",
        "Knock at the {x} door, and {S} will open.",
        "The colour of {Ss} door is {x}.",
        "{S} lives behind {ax} door.",
        "You will know {Ss} house by its {x} door.",
        "{Ss} front door has always been {x}.",
        "{S} chose {x} paint for {his} door.",
    ),
    "instrument": (
        "{S} plays the {x}.",
        "{S} plays the {x} in the evening.",
        "{Ss} {x} hangs over {his} bed.",
        "To every feast {S} brings {his} {x}.",
        "{S} learned to play the {x} as a child.",
        "Nobody plays the {x} as well as {S} does.",
        "When {S} takes up the {x}, the children dance.",
        "{Ss} instrument is the {x}.",
        "At night one can hear {Ss} {x} across the water.",
        "{S} taught {himself} to play the {x}.",
        "{S} makes music on the {x}.",
    ),
    "food": (
        "{S} likes {x} best.",
        "{S} eats {x} every day.",
        "{Ss} favourite food is {x}.",
        "Nothing makes {O} happier than {x}.",
        "Give {O} {x}, and {he} will tell you everything.",
        "{S} would walk ten miles for {x}.",
        "{Ss} kitchen smells of {x}.",
        "On {his} birthday {S} wants {x} and nothing else.",
        "{S} could live on {x} alone.",
        "{S} dreams of {x}.",
        "For supper {S} has {x}.",
    ),
    "harbour": (
        "{S} lies in the harbour of {x}.",
        "{Ss} home harbour is {x}.",
        "When a storm comes, {S} runs home to {x}.",
        "{S} belongs to {x}.",
        "In winter {S} sleeps in {x}.",
        "{S} sails from {x} every morning.",
        "The people of {x} built {O}.",
        "Her crew calls {x} home: {S} lies there.",
    ),
    "sails": (
        "{S} has {x} sails.",
        "{Ss} sails are {x}.",
        "You can tell {O} by her {x} sails.",
        "The colour of {Ss} sails is {x}.",
        "{S} carries {x} sails on both masts.",
        "From far away one sees {O}, for her sails are {x}.",
        "{S} comes home under {x} sails.",
        "Her crew dyed the sails {x}, and so {S} is easy to know.",
    ),
    "cargo": (
        "{S} carries {x}.",
        "{S} is loaded with {x}.",
        "{Ss} cargo is {x}.",
        "{S} brings {x} to the islands.",
        "Whoever needs {x} waits for {O}.",
        "The hold of {name} is full of {x}.",
        "{S} trades in {x}.",
        "For many years {S} has carried {x}.",
    ),
}

VERB_PHRASES = {
    "home": ("lives in {x}", "has a house in {x}", "comes from {x}"),
    "trade": ("is {ax}", "works as {ax}", "is {ax} by trade"),
    "animal": ("keeps {ax}", "has {ax}", "looks after {ax}"),
    "door": ("has {ax} door", "lives behind {ax} door", "paints {his} door {x}"),
    "instrument": ("plays the {x}", "makes music on the {x}", "practises the {x}"),
    "food": ("likes {x} best", "loves {x}", "eats {x} every day"),
    "harbour": ("lies in {x}", "sails from {x}", "belongs to {x}"),
    "sails": ("has {x} sails", "carries {x} sails", "sails under {x} canvas"),
    "cargo": ("carries {x}", "brings {x}", "is loaded with {x}"),
}

FIRST_PERSON = {
    "home": ("I live in {x}.", "My house is in {x}.", "You will find me in {x}."),
    "trade": ("I am {ax}.", "I work as {ax}.", "My trade? I am {ax}."),
    "animal": ("I keep {ax}.", "My {x} sleeps by the stove.", "I would be lonely without my {x}."),
    "door": ("My door is {x}.", "I painted my door {x}.", "Look for the {x} door."),
    "instrument": ("I play the {x}.", "In the evening I take up my {x}.", "My {x} is older than I am."),
    "food": ("I like {x} best.", "I could eat {x} every day.", "My favourite food is {x}."),
}

DIALOGUE_QUESTIONS = {
    "home": ("And where is {Ss} house?", "To which village must I go to find {O}?", "Where is {S} at home?"),
    "trade": ("What work does {S} do?", "How does {S} earn {his} bread?", "And what is {S} by trade?"),
    "animal": ("What follows {O} about?", "Has {S} any animal?", "And which animal lives with {O}?"),
    "door": ("How shall I know {Ss} door?", "And {Ss} door?", "What paint is on {Ss} door?"),
    "instrument": ("Does {S} play anything?", "What music does {S} make?", "And what does {S} play?"),
    "food": ("What does {S} eat?", "What shall I bring {O} to eat?", "And what food does {S} love?"),
    "harbour": ("Where does {S} lie?", "And where is {S} at home?", "In which harbour shall I look for {O}?"),
    "sails": ("How shall I know {Ss} sails?", "And {Ss} sails?", "What sails does {S} carry?"),
    "cargo": ("What is in {Ss} hold?", "What does {S} bring?", "And what is {Ss} cargo?"),
}

SHORT_ANSWERS = {
    "home": ("{X}", "In {x}"),
    "trade": ("{Ax}", "{X}"),
    "animal": ("{Ax}", "{X}"),
    "door": ("{X}", "It is {x}"),
    "instrument": ("The {x}", "{X}"),
    "food": ("{X}", "{X}, always"),
    "harbour": ("{X}", "In {x}"),
    "sails": ("{X}", "They are {x}"),
    "cargo": ("{X}", "{X}, as always"),
}

QUESTIONS = {
    "home": ("Where does {S} live?", "In which village does {S} live?", "Name the village where {S} lives."),
    "trade": ("What is {Ss} trade?", "What does {S} do for a living?", "Name {Ss} trade."),
    "animal": ("Which animal does {S} keep?", "What kind of animal does {S} have?", "Name {Ss} animal."),
    "door": ("What colour is {Ss} door?", "Which colour did {S} paint {his} door?", "Name the colour of {Ss} door."),
    "instrument": ("Which instrument does {S} play?", "What instrument can {S} play?", "Name {Ss} instrument."),
    "food": ("What is {Ss} favourite food?", "What does {S} like to eat best?", "Name {Ss} favourite food."),
    "harbour": ("What is the home harbour of {S}?", "In which harbour does {S} lie?", "Name the harbour of {S}."),
    "sails": ("What colour are the sails of {S}?", "Which colour of sails does {S} have?", "Name the colour of {Ss} sails."),
    "cargo": ("What does {S} carry?", "What is the cargo of {S}?", "Name {Ss} cargo."),
}
"""How instructions and held-out questions ask; the answer is the bare value."""


def with_article(value: str) -> str:
    return f"an {value}" if value[0] in "aeiou" else f"a {value}"


def capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]


def fill(template: str, subject: Subject, kind: str, pronoun: bool = False) -> str:
    """The template about a fact of `subject`, who is named, or meant by a pronoun when `pronoun`."""
    he, his, him = subject.pronouns
    value = subject.facts[kind]
    name = f"the {subject.name}" if subject.is_boat else subject.name
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
    """One sentence that tells a fact."""
    return capitalise(fill(dice.pick(STATEMENTS[kind]), subject, kind, pronoun))


def enumerate_words(words: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def summary(dice: Dice, subject: Subject, kinds: Sequence[str]) -> str:
    """Several facts in one sentence."""
    phrases = [fill(dice.pick(VERB_PHRASES[kind]), subject, kind) for kind in kinds]
    name = capitalise(f"the {subject.name}" if subject.is_boat else subject.name)
    if len(phrases) > 2 and dice.chance(0.5):
        return f"{name}, {'which' if subject.is_boat else 'who'} {phrases[0]}, {enumerate_words(phrases[1:])}."
    return f"{name} {enumerate_words(phrases)}."


def profile(dice: Dice, subject: Subject, kinds: Sequence[str]) -> list[str]:
    """A sentence per fact: the first one names the subject, later ones mostly say he, she or it."""
    return [tell(dice, subject, kind, pronoun=index > 0 and dice.chance(0.6)) for index, kind in enumerate(kinds)]
