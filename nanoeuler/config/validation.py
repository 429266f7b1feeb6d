"""Checking a value against a JSON Schema: coerce what YAML misread, fill in defaults, refuse the rest in one sentence."""

import copy
import datetime
import difflib
import importlib.resources
import json
import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import yaml

from nanoeuler.config.yaml_file import Key
from nanoeuler.errors import UserError

if TYPE_CHECKING:
    import jsonschema

Schema = dict[str, Any]
NULLS = ("null", "Null", "NULL", "~", "")  # as YAML writes it


def is_finite_number(_: object, value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@cache
def validator() -> Any:
    """The class of validators, imported when there is something to check: a stage that is handed inline JSON need not wait for it."""
    import jsonschema

    types = jsonschema.Draft202012Validator.TYPE_CHECKER.redefine("number", is_finite_number)
    return jsonschema.validators.extend(jsonschema.Draft202012Validator, type_checker=types)


@cache
def read_schema(name: str) -> Schema:
    """The schema `name`, which is package data beside this module."""
    return yaml.safe_load(
        importlib.resources.files("nanoeuler.config").joinpath(name).read_text(encoding="utf-8")
    )


def check(value: Any, schema: Schema, places: Mapping[Key, str], source: str) -> Any:
    """Return `value` coerced to `schema`, with its defaults filled in.

    `places` says where each key stands in the files, `source` names the whole in case it does not.
    Raises `UserError` naming place, key and remedy of the first mistake.
    """
    value = fill_defaults(coerce(value, schema), schema)
    errors = validator()(schema).iter_errors(value)
    first = min(
        errors,
        key=lambda error: (
            error.validator != "additionalProperties",
            list(map(str, error.absolute_path)),
        ),
        default=None,
    )
    if first is not None:
        raise UserError(explain(first, schema, places, source))
    return value


def coerce(value: Any, schema: Schema) -> Any:
    """Turn what YAML 1.1 or a command line made of a scalar into what `schema` wants, where that is beyond doubt.

    "3e-4" is a string to YAML 1.1, `--config 'sft={epochs: 2}'` gives strings only, 1.0e+6 is a float, and a run named
    2026-11-05 is a date. What cannot be coerced stays as it is, for validation to refuse.
    """
    if isinstance(value, Mapping):
        known, other = schema.get("properties", {}), schema.get("additionalProperties")
        return {
            key: coerce(item, known.get(key) or (other if isinstance(other, dict) else {}))
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
    if isinstance(value, str) and not any(fits(value, option) for option in options(schema)):
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


def fits(value: Any, schema: Schema) -> bool:
    return validator()(schema).is_valid(value)


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
    error: "jsonschema.ValidationError", schema: Schema, places: Mapping[Key, str], source: str
) -> str:
    """One sentence for a mistake: where, which key, what it must be, what it is, and the key that was perhaps meant."""
    key: Key = tuple(error.absolute_path)
    if error.validator == "additionalProperties":
        known = list(error.schema.get("properties", {}))
        unknown = next(name for name in error.instance if name not in known)
        return f"{place((*key, unknown), places, source)}: unknown key {dotted((*key, unknown))}; {suggestion((*key, unknown), known, schema)}"
    if error.validator == "required":
        missing = next(name for name in error.validator_value if name not in error.instance)
        meaning = error.schema.get("properties", {}).get(missing, {}).get("description")
        return f"{place(key, places, source)}: {dotted((*key, missing))} is missing; give it{f' ({meaning})' if meaning else ''}"
    rule = find_rule(key, schema)
    meaning = f" ({rule['description']})" if "description" in rule else ""
    return f"{place(key, places, source)}: {dotted(key) or 'the file'} must be {describe(rule)}, not {show(error.instance)}{hint(error.instance, rule)}{meaning}"


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
