"""Checking a value against a JSON Schema: coerce what YAML misread, fill in defaults, refuse the rest in one sentence."""

import copy
import datetime
import difflib
import functools
import json
import math
import operator
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from nanoeuler.config.section import Section
from nanoeuler.config.yaml_file import Key
from nanoeuler.errors import UserError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Schema = dict[str, Any]
NULLS = ("null", "Null", "NULL", "~", "")
"""How YAML writes null."""
UNKNOWN_KEY, MISSING_KEY = "unexpected_keyword_argument", "missing"
"""The two kinds of mistake, in pydantic's words, that concern a key and not its value."""


@functools.cache
def adapter(section: type) -> "TypeAdapter[Any]":
    from pydantic import TypeAdapter  # only who checks a configuration waits for it

    return TypeAdapter(section)


@functools.cache
def read_schema(section: type) -> Schema:
    """The JSON Schema of `section`, with every reference replaced by what it refers to."""
    schema = adapter(section).json_schema()
    return resolve(schema, schema.pop("$defs", {}))


def resolve(rule: Any, definitions: Mapping[str, Schema]) -> Any:
    """Put definitions in the place of references, and write `null` as one of the types of a value."""
    if isinstance(rule, list):
        return [resolve(item, definitions) for item in rule]
    if not isinstance(rule, dict):
        return rule
    rule = {name: resolve(item, definitions) for name, item in rule.items()}
    if reference := rule.pop("$ref", None):
        definition = resolve(definitions[reference.rpartition("/")[2]], definitions)
        definition.pop("description", None)  # the class's; that of the key counts
        rule = definition | rule
    match rule.get("anyOf"):
        case [{"type": str() as kind, **limits}, {"type": "null"}]:
            del rule["anyOf"]
            rule |= {"type": [kind, "null"], **limits}
    if rule.get("x-optional"):
        del rule["default"]
    return rule


def check(value: Any, section: type[Section], places: Mapping[Key, str], source: str) -> Any:
    """Return `value` coerced to the types of `section`, with its defaults filled in.

    `places` says where in the files each key is; a key that is in none of them is in `source`.
    Raises `UserError` with place, key and remedy of the first mistake.
    """
    schema = read_schema(section)
    value = fill_defaults(coerce(value, schema), schema)
    if (mistake := first_mistake(value, section)) is not None:
        raise UserError(explain(*mistake, value, schema, places, source))
    return value


def first_mistake(value: Any, section: type[Section]) -> tuple[str, Key] | None:
    """Kind and key of the mistake to report. Unknown keys come first: they may explain the others."""
    from pydantic import ValidationError

    try:
        # as JSON, in which pydantic is strict about types and yet builds sections
        adapter(section).validate_json(json.dumps(value, default=str), strict=True)
        return None
    except ValidationError as error:
        found = [(item["type"], path_in(value, item["loc"])) for item in error.errors()]

    def rank(mistake: tuple[str, Key]) -> tuple[bool, list[str]]:
        kind, path = mistake
        section = path[:-1] if kind == UNKNOWN_KEY else path
        return kind != UNKNOWN_KEY, list(map(str, section))

    return min(found, key=rank)


def path_in(value: Any, location: Key) -> Key:
    """The part of pydantic's `location` that leads to a value, or to the section that lacks it.

    Behind it come the alternatives of a union, which are no part of the file.
    """
    path: Key = ()
    for part in location:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            break
        path += (part,)
    return path


def coerce(value: Any, schema: Schema) -> Any:
    """Turn what YAML 1.1 or a command line made of a scalar into what `schema` wants, where that is beyond doubt.

    "3e-4" is a string to YAML 1.1, `--config 'sft={epochs: 2}'` gives strings only, 1.0e+6 is a float, and a run named
    2026-11-05 is a date. What cannot be coerced stays as it is, for validation to refuse.
    """
    if isinstance(value, Mapping):
        known, other = schema.get("properties", {}), schema.get("additionalProperties")
        return {
            str(key): coerce(item, known.get(key) or (other if isinstance(other, dict) else {}))
            for key, item in value.items()
        }
    if isinstance(value, list):
        items = next((option["items"] for option in options(schema) if "items" in option), {})
        return [coerce(item, items) for item in value]
    types = accepted_types(schema)
    if value is None and types == {"object"}:  # a section whose keys are all commented out
        return {}
    if isinstance(value, str) and "null" in types and value.strip() in NULLS:
        return None
    if isinstance(value, str) and not any(value in words(option) for option in options(schema)):
        return parse_scalar(value, types)
    if (
        isinstance(value, float)
        and value.is_integer()
        and "integer" in types
        and "number" not in types
    ):
        return int(value)
    if types == {"string"} or types == {"string", "null"}:
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, datetime.date):
            return value.isoformat()
    return value


def parse_scalar(text: str, types: set[str]) -> Any:
    """Read `text` as one of `types`, or return it unchanged."""
    stripped = text.strip()
    if "boolean" in types and stripped.lower() in ("true", "false"):
        return stripped.lower() == "true"
    if types & {"number", "integer"}:
        try:
            number = float(stripped)
        except ValueError:
            return text
        if math.isfinite(number) and number.is_integer() and "integer" in types:
            return (
                int(stripped) if stripped.lstrip("+-").replace("_", "").isdigit() else int(number)
            )
        if "number" in types:
            return number
    return text


def options(schema: Schema) -> list[Schema]:
    """The alternatives of a schema: those of `anyOf`, or the schema itself."""
    return schema.get("anyOf", [schema])


def accepted_types(schema: Schema) -> set[str]:
    types: set[str] = set()
    for option in options(schema):
        kind = option.get("type", [])
        types.update([kind] if isinstance(kind, str) else kind)
        if None in option.get("enum", []):
            types.add("null")
    return types


def words(schema: Schema) -> list[Any]:
    """The values that a schema allows by name."""
    return schema.get("enum", [schema["const"]] if "const" in schema else [])


def fill_defaults(value: Any, schema: Schema) -> Any:
    """Add the default of every key that is missing. A section with a default is filled in turn."""
    if isinstance(value, list):
        items = next((option["items"] for option in options(schema) if "items" in option), {})
        return [fill_defaults(item, items) for item in value]
    if not isinstance(value, Mapping):
        return value
    filled = dict(value)
    for key, rule in schema.get("properties", {}).items():
        if key not in filled and "default" in rule:
            filled[key] = copy.deepcopy(rule["default"])
    other = schema.get("additionalProperties")
    return {
        key: fill_defaults(
            item,
            schema.get("properties", {}).get(key) or (other if isinstance(other, dict) else {}),
        )
        for key, item in filled.items()
    }


def explain(
    kind: str, path: Key, config: Any, schema: Schema, places: Mapping[Key, str], source: str
) -> str:
    """One sentence for a mistake: where, which key, what it must be, what it is, what was meant."""
    where = place(path, places, source)
    if kind == UNKNOWN_KEY:
        known = list(find_rule(path[:-1], schema).get("properties", {}))
        return f"{where}: unknown key {dotted(path)}; {suggestion(path, known, schema)}"
    rule, value = find_rule(path, schema), functools.reduce(operator.getitem, path, config)
    if kind == MISSING_KEY:
        missing = next(name for name in rule["required"] if name not in value)
        needed = f"{dotted((*path, missing))} is missing; give it"
        return f"{where}: {needed}{meaning(rule['properties'][missing])}"
    name = dotted(path) or "the file"
    problem = f"{name} must be {describe(rule)}, not {show(value)}{hint(value, rule)}"
    return f"{where}: {problem}{meaning(rule)}"


def meaning(rule: Schema) -> str:
    return f" ({rule['description']})" if "description" in rule else ""


def place(key: Key, places: Mapping[Key, str], source: str) -> str:
    """Where `key`, or else the section around it, stands."""
    for length in range(len(key), 0, -1):
        if key[:length] in places:
            return places[key[:length]]
    return source


def dotted(key: Key) -> str:
    """("corpus", "books", 0) as people write it: corpus.books[0]."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).lstrip(".")


def suggestion(key: Key, known: list[str], schema: Schema) -> str:
    """The known key that an unknown one was meant for: in its own section, or of that name elsewhere."""
    name = str(key[-1])
    if near := difflib.get_close_matches(name, known, n=1, cutoff=0.6):
        return f"did you mean {dotted((*key[:-1], near[0]))}?"
    everywhere = {dotted(other): other for other in keys_of(schema)}
    if elsewhere := [text for text, other in everywhere.items() if other[-1] == name]:
        return f"did you mean {' or '.join(elsewhere)}?"
    return f"known here: {', '.join(known) if known else 'nothing'}"


def keys_of(schema: Schema, prefix: Key = ()) -> Iterator[Key]:
    """Every key that a schema knows, sections before what they hold."""
    for name, rule in schema.get("properties", {}).items():
        yield (*prefix, name)
        yield from keys_of(rule, (*prefix, name))


def find_rule(key: Key, schema: Schema) -> Schema:
    """The part of `schema` that speaks of `key`."""
    for part in key:
        if isinstance(part, int):
            schema = next((option["items"] for option in options(schema) if "items" in option), {})
        else:
            other = schema.get("additionalProperties")
            schema = schema.get("properties", {}).get(part) or (
                other if isinstance(other, dict) else {}
            )
    return schema


def describe(rule: Schema) -> str:
    """What a value must be, in words."""
    if "anyOf" in rule:
        return " or ".join(describe(option) for option in rule["anyOf"])
    if "const" in rule:
        return show(rule["const"])
    if "enum" in rule:
        return either([show(value) for value in rule["enum"]])
    kind = rule.get("type", [])
    return (
        either([describe_type(name, rule) for name in ([kind] if isinstance(kind, str) else kind)])
        or "something else"
    )


def describe_type(name: str, rule: Schema) -> str:
    words = {
        "integer": "a whole number",
        "number": "a number",
        "string": "text",
        "boolean": "true or false",
        "null": "null",
        "object": "a section of keys",
    }
    if name == "array":
        items = rule.get("items", {})
        kind = {
            "integer": "whole numbers",
            "number": "numbers",
            "string": "texts",
            "object": "sections",
        }.get(items.get("type"), "values")
        return f"a list of {kind}" + (", each once" if rule.get("uniqueItems") else "")
    if name == "string":
        return rule.get("x-form", "text")
    return words[name] + (describe_range(rule) if name in ("integer", "number") else "")


def describe_range(rule: Schema) -> str:
    low = (
        f"of at least {rule['minimum']}"
        if "minimum" in rule
        else f"above {rule['exclusiveMinimum']}"
        if "exclusiveMinimum" in rule
        else ""
    )
    high = (
        f"at most {rule['maximum']}"
        if "maximum" in rule
        else f"below {rule['exclusiveMaximum']}"
        if "exclusiveMaximum" in rule
        else ""
    )
    limits = " and ".join(filter(None, [low, high]))
    return f" {limits}" if limits else ""


def hint(value: Any, rule: Schema) -> str:
    """A remedy for YAML's best-known trap: no, off, yes and on are booleans."""
    return (
        "; YAML reads yes, no, on and off as true and false: put the text in quotes"
        if isinstance(value, bool) and "string" in accepted_types(rule)
        else ""
    )


def either(words: list[str]) -> str:
    return (
        words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1] if words else ""
    )


def show(value: Any) -> str:
    """A value as it would be written in the file, shortened when long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "…"
