"""The declarations of all sources, made from the list of their names."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from nanoeuler.corpus.sources import DATA_SETS, TEXTS
from nanoeuler.corpus.sources.data_sets import TuningData
from nanoeuler.corpus.sources.own_text import OWN_TEXT
from nanoeuler.corpus.sources.source import Source, Step, TextSource


def declared(name: str) -> Any:
    """The declaration in the module `name`."""
    return import_module(f"nanoeuler.corpus.sources.{name}").SOURCE


NAMED: Sequence[TextSource] = [declared(name) for name in TEXTS]
"""The sources of documents that `corpus.sources` names by their names."""
ALL_TEXTS: Sequence[TextSource] = [*NAMED, OWN_TEXT]
SOURCES: Sequence[Source] = [*ALL_TEXTS, *map(declared, DATA_SETS)]
RECORDS = {source.name: source for source in SOURCES if isinstance(source, TuningData)}
"""The data sets that the stages of tuning learn from."""
STEPS: Mapping[str, Step] = {step.rule: step for source in SOURCES for step in source.steps}
"""All steps by the names of their rules."""
FETCHING = [source.steps[0].rule for source in SOURCES if source.steps]
"""The rules that need the network."""
