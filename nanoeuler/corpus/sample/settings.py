"""The size of the sample: section `sample` of the configuration."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from nanoeuler.corpus.sample.world import BOATS, MEN, WOMEN
from nanoeuler.errors import UserError, brief

LEAST = {
    "seed": 0,
    "people": 8,
    "boats": 4,
    "paragraphs_per_book": 10,
    "articles": 40,
    "other_instructions": 20,
}
MOST = {"people": len(WOMEN) + len(MEN) - 4, "boats": len(BOATS)}


@dataclass(frozen=True)
class Settings:
    """The defaults are the demo's. Half of the people and boats are held out."""

    seed: int = 1
    people: int = 40
    boats: int = 10
    paragraphs_per_book: int = 110
    articles: int = 3000
    other_instructions: int = 450

    @classmethod
    def from_config(cls, section: Mapping[str, object]) -> "Settings":
        """Check the section `sample`. Raises `UserError` naming the key that is wrong."""
        known = [field.name for field in fields(cls)]
        chosen: dict[str, int] = {}
        for key, value in section.items():
            if key not in known:
                raise UserError(
                    f"sample.{key} is no setting of the sample; known are {', '.join(known)}"
                )
            most = MOST.get(key)
            if (
                isinstance(value, bool)
                or not isinstance(value, int)
                or value < LEAST[key]
                or (most is not None and value > most)
            ):
                limit = f" and at most {most}" if most is not None else ""
                raise UserError(
                    f"sample.{key} is {brief(value)}; it must be a whole number of at least "
                    f"{LEAST[key]}{limit}"
                )
            chosen[key] = value
        return cls(**chosen)
