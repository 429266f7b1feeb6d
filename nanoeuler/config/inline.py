"""A configuration on a command line: JSON of the sections that the command reads, resolved."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, get_args, get_origin

from nanoeuler.config.section import Section
from nanoeuler.config.settings import Configuration
from nanoeuler.config.sources import Sources
from nanoeuler.errors import UserError
from nanoeuler.storage.files import parse_json
from nanoeuler.storage.shape import Place, checker, describe, fields_of


class InlineSection(dict[str, Any]):
    """A part of an inline configuration; reading a key that it lacks is the user's mistake."""

    def __missing__(self, key: str) -> Any:
        raise UserError(
            f"--config is inline JSON without the key {key!r}; add it, or give the path of a YAML "
            "file, whose missing keys take their defaults"
        )


def read_inline(text: str) -> dict[str, Any]:
    """Parse the configuration. Raises `UserError` unless it is JSON whose values have the types
    that the sections declare."""
    values = parse_inline(text)
    wrong = misfit_of(values)
    if wrong is not None:
        raise UserError(
            f"--config is inline JSON whose {describe(values, wrong)}; correct it, or give the "
            "path of a YAML file"
        )
    if unknown := unknown_key(values, Configuration):
        raise UserError(explain_unknown(unknown, values))
    return values


def misfit_of(values: Mapping[str, Any]) -> Place | None:
    """The place of the first value of a configuration that has another type than is declared."""
    return fields_of({key: checker(kind) for key, kind in kinds_of(Configuration).items()})(values)


def unknown_key(value: Any, kind: Any) -> Place | None:
    """The place of the first key in `value` that the section `kind`, or one inside it, lacks."""
    origin, options = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return unknown_key(value, options[0])
    if isinstance(kind, type) and issubclass(kind, Section):
        known = kinds_of(kind)
    elif origin in (list, dict):
        known = defaultdict(lambda: options[-1])
    else:
        return None
    for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
        if origin is None and key not in known:
            return (key,)
        if (place := unknown_key(item, known[key])) is not None:
            return (key, *place)
    return None


def kinds_of(kind: type[Section]) -> dict[Any, Any]:
    """The types of a section's keys once it is resolved."""
    kinds: dict[Any, Any] = {item.name: item.type for item in fields(kind)}
    if kind is Configuration:  # ModelConfig checks its fields itself
        kinds |= {"sources": Sources, "model": dict[str, Any]}
    return kinds


def explain_unknown(place: Place, values: Mapping[str, Any]) -> str:
    from nanoeuler.config.validation import UNKNOWN_KEY, explain, read_schema  # slow to import

    if place[0] == "sources" and len(place) > 1:
        return explain(UNKNOWN_KEY, place[1:], values, read_schema(Sources), {}, "--config")
    return explain(UNKNOWN_KEY, place, values, read_schema(Configuration), {}, "--config")


def parse_inline(text: str) -> dict[str, Any]:
    try:
        return parse_json(text, object_hook=InlineSection)
    except ValueError as error:
        raise UserError(
            "--config is inline JSON (it starts with a brace) but is not valid: "
            f"{error}; quote it for the shell, or give the path of a YAML file"
        ) from error
