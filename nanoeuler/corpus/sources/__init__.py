"""Sources of data: a text is declared in the module of its name, the rest in `data_sets`.

`registry` has the declarations, which take a while to import.
"""

TEXTS = {
    "gutenberg": ("gutenberg", "fetch a book of Project Gutenberg, or clean one"),
    "fineweb": (
        "fineweb",
        "extract the web pages of a FineWeb-Edu shard that pass the filters",
    ),
    "documents": (
        "documents",
        "extract the documents of a file (JSON lines, Parquet) that pass the filters",
    ),
}
"""Sources that `corpus.sources` names by their names → the command that fetches, and its help."""
DATA_SETS = {
    "instructions": ("instructions", "fetch instructions, check them, hold some out"),
    "preferences": ("preferences", "fetch preference pairs, check them, hold some out"),
    "problems": ("problems", "fetch problems with checkable answers, hold some out"),
    "questions": ("questions", "fetch held-out questions and check them"),
    "tasks": ("task", "fetch a task that models are scored by, and check its items"),
}
"""Data sets to tune on and to be measured on → the same."""
COMMANDS = TEXTS | DATA_SETS


def is_named(entry: object) -> bool:
    """Whether an entry of `corpus.sources` names a source, and not a path of one's own text."""
    return isinstance(entry, str) and entry in TEXTS
