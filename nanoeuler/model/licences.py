"""The licence of a model, from those of the data that it learned from."""

import re
from collections.abc import Iterable


def is_non_commercial(licence: str) -> bool:
    words = licence.casefold().replace("-", " ").split()
    return "nc" in words or "noncommercial" in words or ("non" in words and "commercial" in words)


def forced_licence(licences: Iterable[str]) -> str | None:
    """The licence that data under these forces on a model, as hubs name it; None where the owner
    chooses."""
    restricted = {licence for licence in licences if is_non_commercial(licence)}
    if not restricted:
        return None
    named = {re.sub(r"[\s_]+", "-", licence.strip()).casefold() for licence in restricted}
    return "cc-by-nc-4.0" if named == {"cc-by-nc-4.0"} else "other"
