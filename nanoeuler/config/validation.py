"""Checking values from a file against a section of `settings` or `sources`.

What YAML misread is coerced and defaults are filled in. The first mistake is explained in one
sentence. pydantic makes the JSON Schema that all of this goes by, and finds the mistakes.
"""

import copy
import difflib
import functools
import json
import math
import operator
import re
from collections.abc import Iterator, Mapping
from typing import Any

from nanoeuler.config.yaml_file import Key, Written
from nanoeuler.errors import UserError
from nanoeuler.storage.shape import LARGEST_COUNT, LARGEST_FLOAT, adapter, is_huge

Schema = dict[str, Any]
NULLS = ("null", "Null", "NULL", "~", "")
"""The ways to write null in YAML."""
UNKNOWN_KEY, MISSING_KEY = "unexpected_keyword_argument", "missing"
"""pydantic's words for the mistakes that concern a key and not its value."""


def check(value: Any, section: type, locations: Mapping[Key, str], source: str) -> Any:
    """Return `value` coerced to the types of `section`, with its defaults filled in.

    `locations` says where in the files each key is, and `source` names the files. Raises
    `UserError` with location, key and remedy of the first mistake.
    """
    schema = read_schema(section)
    value = fill_defaults(coerce(value, schema), schema)
    if too_large := next(huge_numbers(value), None):
        number = functools.reduce(operator.getitem, too_large, value)
        limit = LARGEST_FLOAT if isinstance(number, float) else LARGEST_COUNT
        raise UserError(
            f"{locate(too_large, locations, source)}: {dotted(too_large)} is beyond {limit:g}, "
            "which no such number here may be; lower it"
        )
    mistake = first_mistake(value, section)
    if mistake is not None:
        raise UserError(explain(*mistake, value, schema, locations, source))
    return value


# ---- the schema


@functools.cache
def read_schema(section: type) -> Schema:
    """The JSON Schema of a section, with definitions in the place of references to them."""
    schema = adapter(section).json_schema()
    return resolve(schema, schema.pop("$defs", {}))


def resolve(rule: Any, definitions: Mapping[str, Schema]) -> Any:
    """Replace references by definitions, and write `null` as one of the types of a value."""
    if isinstance(rule, list):
        return [resolve(item, definitions) for item in rule]
    if not isinstance(rule, dict):
        return rule
    rule = {name: resolve(item, definitions) for name, item in rule.items()}
    if reference := rule.pop("$ref", None):
        definition = resolve(definitions[reference.rpartition("/")[2]], definitions)
        definition.pop("description", None)  # the meaning of the key counts, not the class's
        rule = definition | rule
    match rule.get("anyOf"):
        case [{"type": str() as kind, **limits}, {"type": "null"}]:
            del rule["anyOf"]
            rule |= {"type": [kind, "null"], **limits}
    if rule.get("x-optional"):
        del rule["default"]
    return rule


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


def inner_rule(part: str | int, schema: Schema) -> Schema:
    """The rule for an item of a list, or for the value of a key in a section."""
    if isinstance(part, int):
        empty: Schema = {}
        return next((option["items"] for option in options(schema) if "items" in option), empty)
    other = schema.get("additionalProperties")
    known = properties(schema).get(part)
    return known or (other if isinstance(other, dict) else {})


def properties(schema: Schema) -> dict[str, Schema]:
    """The keys of a section, which may be one of several alternatives."""
    return next((each["properties"] for each in options(schema) if "properties" in each), {})


def find_rule(key: Key, schema: Schema) -> Schema:
    return functools.reduce(lambda rule, part: inner_rule(part, rule), key, schema)


def keys_of(schema: Schema, prefix: Key = ()) -> Iterator[Key]:
    """Every key of a schema; a section comes before the keys inside it."""
    for name, rule in schema.get("properties", {}).items():
        yield (*prefix, name)
        yield from keys_of(rule, (*prefix, name))


# ---- values


def coerce(value: Any, schema: Schema) -> Any:
    """Turn a scalar into the type that `schema` wants, where its meaning is beyond doubt.

    1.0e+6 is not a whole number, and a run may be named 3.10; `sft.epochs=2` and `010` give nothing
    but text. Other values are left for pydantic to refuse.
    """
    if isinstance(value, Mapping):
        return {str(key): coerce(item, inner_rule(key, schema)) for key, item in value.items()}
    if isinstance(value, list):
        return [coerce(item, inner_rule(0, schema)) for item in value]
    types = accepted_types(schema)
    if value is None and types == {"object"}:  # a section whose keys are all commented out
        return {}
    if isinstance(value, str):
        return coerce_text(value, types, schema)
    if types - {"null"} == {"string"}:
        is_number = isinstance(value, int | Written) and not isinstance(value, bool)
        return str(value) if is_number else value
    if isinstance(value, Written):
        value = float(value)
    if isinstance(value, float) and value.is_integer() and "number" not in types:
        return int(value) if "integer" in types else value
    return value


def coerce_text(text: str, types: set[str], schema: Schema) -> Any:
    """Read `text` as one of `types`, or return it unchanged."""
    stripped = text.strip()
    if "null" in types and stripped in NULLS:
        return None
    if any(text in named_values(option) for option in options(schema)):
        return text
    if "boolean" in types and stripped.lower() in ("true", "false"):
        return stripped.lower() == "true"
    if types & {"number", "integer"}:
        if re.fullmatch("0x[0-9a-fA-F]{1,99}|0o[0-7]{1,99}", stripped):
            return int(stripped, 0)
        try:
            number = float(stripped)
        except ValueError:
            return text
        if math.isfinite(number) and number.is_integer() and "integer" in types:
            digits = stripped.lstrip("+-").replace("_", "").isdigit()
            return int(stripped) if digits else int(number)
        if "number" in types:
            return number
    return text


def named_values(schema: Schema) -> list[Any]:
    """The values that a schema allows by name."""
    return schema.get("enum", [schema["const"]] if "const" in schema else [])


def fill_defaults(value: Any, schema: Schema) -> Any:
    """Add the default of every missing key. A section that is a default is filled in, too."""
    if isinstance(value, list):
        return [fill_defaults(item, inner_rule(0, schema)) for item in value]
    if not isinstance(value, Mapping):
        return value
    filled = dict(value)
    for key, rule in properties(schema).items():
        if key not in filled and "default" in rule:
            filled[key] = copy.deepcopy(rule["default"])
    return {key: fill_defaults(item, inner_rule(key, schema)) for key, item in filled.items()}


# ---- mistakes


def huge_numbers(value: Any, key: Key = ()) -> Iterator[Key]:
    """The keys of finite numbers that are too large to compute with."""
    if isinstance(value, Mapping | list):
        for part, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from huge_numbers(item, (*key, part))
    elif isinstance(value, int | float) and is_huge(value) and abs(value) < math.inf:
        yield key


def first_mistake(value: Any, section: type) -> tuple[str, Key] | None:
    """Kind and key of the mistake to explain. An unknown key comes first: it may cause others."""

    def rank(mistake: tuple[str, Key]) -> tuple[bool, list[str]]:
        kind, key = mistake
        section_key = key[:-1] if kind == UNKNOWN_KEY else key
        return kind != UNKNOWN_KEY, list(map(str, section_key))

    return min(mistakes(value, section), key=rank, default=None)


def mistakes(value: Any, section: type) -> list[tuple[str, Key]]:
    """Kind and key of every mistake."""
    from pydantic import ValidationError

    text = json.dumps(value, default=str)
    try:
        adapter(section).validate_json(text, strict=True)  # JSON, because its objects are sections
    except ValidationError as error:
        return [(item["type"], key_in(value, item["loc"])) for item in error.errors()]
    return []


def key_in(value: Any, location: Key) -> Key:
    """The part of pydantic's `location` that is in `value`.

    A missing key follows it, or an alternative of a union.
    """
    key: Key = ()
    for part in location:
        if isinstance(value, Mapping) and part not in value:
            continue
        try:
            value = value[part]
        except (IndexError, TypeError):
            continue
        key += (part,)
    return key


def explain(
    kind: str, key: Key, config: Any, schema: Schema, locations: Mapping[Key, str], source: str
) -> str:
    """One sentence for a mistake: where it is, which key, what it must be and what it is."""
    where = locate(key, locations, source)
    if kind == UNKNOWN_KEY:
        known = list(properties(find_rule(key[:-1], schema)))
        return f"{where}: unknown key {dotted(key)}; {suggestion(key, known, schema)}"
    rule, value = find_rule(key, schema), functools.reduce(operator.getitem, key, config)
    if kind == MISSING_KEY:
        missing = next(name for name in rule["required"] if name not in value)
        meaning = meaning_of(rule["properties"][missing])
        return f"{where}: {dotted((*key, missing))} is missing; give it{meaning}"
    needed = f"{dotted(key) or 'the file'} must be {describe(rule)}"
    return f"{where}: {needed}, not {show(value)}{hint(value, rule)}{meaning_of(rule)}"


def meaning_of(rule: Schema) -> str:
    return f" ({rule['description']})" if "description" in rule else ""


def locate(key: Key, locations: Mapping[Key, str], source: str) -> str:
    """The location of `key`, or else of the section around it."""
    for length in range(len(key), 0, -1):
        if key[:length] in locations:
            return locations[key[:length]]
    return source


def dotted(key: Key) -> str:
    """("corpus", "books", 0) as people write it: corpus.books[0]."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).lstrip(".")


def suggestion(key: Key, known: list[str], schema: Schema) -> str:
    """The key that an unknown key probably means: in its own section, or elsewhere."""
    name = str(key[-1])
    if name.isdecimal():
        return "a comma parts keys: write a number without one, such as 0.1 or 50000"
    if near := difflib.get_close_matches(name, known, n=1, cutoff=0.6):
        return f"did you mean {dotted((*key[:-1], near[0]))}?"
    everywhere = {dotted(other): other for other in keys_of(schema)}
    if elsewhere := [text for text, other in everywhere.items() if other[-1] == name]:
        return f"did you mean {' or '.join(elsewhere)}?"
    return f"known here: {', '.join(known) if known else 'nothing'}"


def describe(rule: Schema) -> str:
    """The values that a rule allows, in words."""
    if "anyOf" in rule:
        return " or ".join(map(describe_option, rule["anyOf"]))
    if named := named_values(rule):
        return either([show(value) for value in named])
    kind = rule.get("type", [])
    kinds = [kind] if isinstance(kind, str) else kind
    return either([describe_type(name, rule) for name in kinds]) or "something else"


def describe_option(rule: Schema) -> str:
    """One of several alternatives; a section by its keys."""
    if "properties" in rule:
        return "{" + ", ".join(f"{name}: …" for name in rule["properties"]) + "}"
    return describe(rule)


def describe_type(name: str, rule: Schema) -> str:
    words = {
        "integer": "a whole number",
        "number": "a number",
        "boolean": "true or false",
        "null": "null",
        "object": "a section of keys",
    }
    many = {
        "integer": "whole numbers",
        "number": "numbers",
        "string": "texts",
        "object": "sections",
    }
    if name == "array":
        kind = many.get(rule.get("items", {}).get("type"), "values")
        return f"a list of {kind}" + (", each once" if rule.get("uniqueItems") else "")
    if name == "string":
        return rule.get("x-form", "text")
    return words[name] + (describe_range(rule) if name in ("integer", "number") else "")


def describe_range(rule: Schema) -> str:
    words = {
        "minimum": "of at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
    }
    limits = " and ".join(f"{word} {rule[name]}" for name, word in words.items() if name in rule)
    return f" {limits}" if limits else ""


def hint(value: Any, rule: Schema) -> str:
    """A remedy where a word was not read as it was meant."""
    if isinstance(value, bool) and "string" in accepted_types(rule):
        return "; put the text in quotes"
    if value in ("yes", "no", "on", "off") and "boolean" in accepted_types(rule):
        return "; write true or false"
    return ""


def either(words: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def show(value: Any) -> str:
    """A value as it would be written in the file, shortened when long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "…"
