"""Every key of a sources file: what is downloaded, from where, and under which licence.

Each source declares its own section (nanoeuler/corpus/sources).
"""

from nanoeuler.corpus.sources.registry import SOURCES
from nanoeuler.storage.section import Section, key, section, with_keys


@section
@with_keys(
    {
        source.name: (source.entries, key(source.meaning, optional=True))
        for source in SOURCES
        if source.entries
    }
)
class Sources(Section):
    """A whole sources file."""
