"""YAML as people and strangers write it: values as written, bounds, sentences with lines."""

import contextlib
import io
import json
import re
import time
from pathlib import Path

import pytest
import yaml

from nanoeuler.config import load
from nanoeuler.config.yaml_file import MOST, front_matter, parse, parse_yaml, read_yaml, write_yaml
from nanoeuler.errors import UserError
from tests.checkouts import ROOT


def value_of(text: str) -> object:
    return parse_yaml(f"a: {text}", "x.yaml")[0]["a"]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        *(("8", 8), ("-3", -3), ("0", 0), ("3e-4", 3e-4), ("1.50", 1.5), (".5", 0.5), ("1e6", 1e6)),
        *(("true", True), ("FALSE", False), ("null", None), ("~", None), ("", None)),
        *(("-.inf", float("-inf")), ("+1.", 1.0), ("'true'", "true"), ('"8"', "8")),
        *((text, text) for text in ("010", "0x1F", "1_000", "12:30:45", "2026-11-05", "+5", "-0")),
        *((text, text) for text in ("yes", "no", "on", "off", "Y", "=", ".", "e5", "1e", "0b1")),
        *(("|\n  010\n", "010\n"), (">\n  1\n  2\n", "1 2\n"), ("9" * 5000, "9" * 5000)),
    ],
)
def test_plain_words_are_read_by_the_core_schema_and_others_as_written(written, value):
    found = value_of(written)
    assert (found, isinstance(found, bool)) == (value, isinstance(value, bool))
    assert isinstance(found, float) == isinstance(value, float)


@pytest.mark.parametrize("name", ["010", "3.10", "1e3", "on", "0x1F", "1_0", "2026-11-05", "7"])
def test_a_name_is_the_text_that_is_written(write_config, name):
    path = Path(write_config())
    path.write_text(re.sub("^run: .*", f"run: {name}", path.read_text(), flags=re.MULTILINE))
    assert load(path)["run"] == name


@pytest.mark.parametrize(
    ("written", "number"), [("010", 10), ("0x1F", 31), ("0o17", 15), ("1_0", 10), ("1e1", 10)]
)
def test_a_number_may_be_written_in_every_common_way(write_config, written, number):
    seed = load(write_config(f"seed: {written}"))["seed"]
    assert (seed, type(seed)) == (number, int)


def test_a_number_that_knows_its_text_leaves_the_reader_as_a_number(write_config):
    rate = load(write_config(learning_rate="3.0e-4"))["pretrain"]["learning_rate"]
    assert (rate, type(rate)) == (3e-4, float)


@pytest.mark.parametrize(
    "value",
    ["1e3", "010", "3.10", "0x1F", "on", "null", "1_000", ".5", "-.inf", "12:30", "a: b"],
)
def test_what_is_written_is_read_as_it_was(value):
    file = io.StringIO()
    written = {"run": value, "rates": [1e-5, 0.1, 3e30], "deep": {"é\n": [True, None, -3]}}
    write_yaml(written, file)
    assert parse_yaml(file.getvalue(), "x.yaml")[0] == written


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: !!timestamp x", r"line 1: the tag !!timestamp is not read; write the value alone"),
        ("a: 1\nb: !!bool x", r"line 2: the tag !!bool is not read"),
        ("a: !!int ''", "the tag !!int is not read"),
        ("a: !!set {b, c}", "the tag !!set is not read"),
        ("a: !!python/object/apply:os.system [ls]", "the tag !!python/object/apply:os.system is"),
        ("a: ! x", "the tag ! is not read"),
        ("!!map {a: 1}", "the tag !!map is not read"),
        ("!!str a: 1", "a key that is no plain word"),
        ("a: 1\n\n? {b: 1}\n: 2", "line 3: not valid YAML: a key that is no plain word"),
        ("a: 1\nb: 2\na: 3", "line 3: a is given twice; keep one of them"),
        ("a: {b: {c: 1, 'c': 2}}", r"line 1: a\.b\.c is given twice"),
        ("a: *b\nb: &b 1", r"line 1: the alias \*b stands for no value that ends before it"),
        ("a: &a {b: *a}", r"line 1: the alias \*a stands for no value"),
        ("a: 1\n---\nb: 2", "line 2: not valid YAML: a second document begins"),
        ("a: [1, 2\nb: 3", "line 2: not valid YAML: expected ',' or ']'"),
        ("a:\n\tb: 1", "line 2: not valid YAML: found character .* that cannot start any token"),
        ("a: 1\nb: \x07", "line 2: not valid YAML: it has a control character; delete it"),
        ("a: " + "[" * 200, "line 1: nested too deeply"),
        ("\n- 0" * 100_001, "line 100001: more than 100,000 values"),
        ("a: {<<: 3}", "<< adds the keys of sections"),
        ("%YAML 9.9\n---\na: 1", "line 1: not valid YAML: found incompatible YAML document"),
    ],
)
def test_what_is_not_read_is_one_sentence_with_its_line(text, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        parse_yaml(text, "x.yaml")
    assert str(caught.value).startswith("x.yaml, line ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_aliases_are_copies_and_merged_keys_give_way_to_those_written():
    text = "a: &a {x: 1, y: [2]}\nb: &b {y: 3, z: 4}\nc: *a\nd: {<<: [*a, *b], x: 5}\n&k e: *k\n"
    content, places = parse_yaml(text, "x.yaml")
    assert content["c"] == {"x": 1, "y": [2]}
    assert content["d"] == {"x": 5, "y": [2], "z": 4}
    assert content["e"] == "e"
    content["c"]["y"].append(7)
    assert content["a"]["y"] == content["d"]["y"] == [2]
    assert (places[("a", "y", 0)], places[("c",)]) == ("x.yaml, line 1", "x.yaml, line 3")


ALIASES = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))
KEYS = "".join(f"k{n}: 0, " for n in range(900))
BOMBS = {
    "aliases": ALIASES,
    "wide": "a: &a [" + "x, " * 900 + "]\nb: [" + "*a, " * 900 + "]",
    "merges": f"a: &a {{{KEYS}}}\nb: {{<<: [" + "*a, " * 900 + "]}",
    "a padded one": ALIASES + "# padding\n" * 95_000,
    "many keys": "".join(f"k{n}: 0\n" for n in range(110_000))[:999_990],
    "deep": "a: " + "{b: " * 200_000,
    "a list that does not end": "a: [" + "0, " * 49_990,
    "tabs": "a:\tb\n" + "k: [a,\tb]\n" * 90_000,
    "one long word": "a: " + "0" * 999_000,
    "an anchor for each": "a: [" + ", ".join(f"&x{n} 0" for n in range(90_000)) + "]",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_no_document_takes_long(bomb):
    text = BOMBS[bomb]
    assert len(text) <= MOST
    began = time.process_time()
    with contextlib.suppress(UserError):
        parse_yaml(text, "x.yaml")
    assert time.process_time() - began < 8  # seconds; 2 here


def test_a_file_of_more_than_a_megabyte_is_refused(tmp_path):
    (tmp_path / "a.yaml").write_text("# x\n" * 250_001)
    with pytest.raises(UserError, match=r"a\.yaml: more than 1 MB"):
        read_yaml(tmp_path / "a.yaml")


def test_many_tasks_take_a_time_in_proportion(write_config):
    """Each was compared with all before: 4 times as many took 16 times as long."""

    def seconds(count: int) -> float:
        tasks = [{"name": f"t{n}", "kind": "piqa", "url": "a.jsonl"} for n in range(count)]
        path = write_config(f"evaluate: {{tasks: {json.dumps(tasks)}}}")
        began = time.process_time()
        assert len(load(path)["evaluate"]["tasks"]) == count
        return time.process_time() - began

    seconds(10)
    assert seconds(12_800) < 8 * seconds(3_200)


def test_snakemakes_templates_are_refused_before_their_code_runs(tmp_path):
    text = f"__use_yte__: true\n?open({str(tmp_path / 'ran')!r}, 'w'):\n  run: x\n"
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(UserError, match="line 1: __use_yte__ makes a template of the file"):
        load(tmp_path / "a.yaml")


@pytest.mark.parametrize("file", ["config.yaml", "medium.yaml", "sources.yaml"])
def test_a_file_is_the_same_to_libyaml_and_to_pyyaml(file):
    text = (ROOT / "config" / file).read_text()
    slow = yaml.parse(text, Loader=yaml.SafeLoader)
    assert list(map(told, parse(text, quick=True))) == list(map(told, slow))


def told(event: yaml.Event) -> tuple[object, ...]:
    names = ("value", "anchor", "tag")
    return type(event), event.start_mark.line, *(getattr(event, name, None) for name in names)


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ("---\nlicense: mit\n---\n# A model", "mit"),
        ("---\r\nlicense: 2.0\r\n--- \r\n# A model", "2.0"),
        ("---\nlicense: no\nbase: [a]\n", "no"),
        ("# A model\n---\nlicense: mit\n---\n", None),
        ("---\n- license\n---\n", None),
        ("", None),
    ],
)
def test_the_front_matter_of_a_card_is_read(tmp_path, card, licence):
    (tmp_path / "README.md").write_bytes(card.encode())
    found = front_matter(tmp_path / "README.md").get("license")
    assert (None if found is None else str(found)) == licence


@pytest.mark.parametrize(
    ("matter", "sentence"),
    [
        ("license: !!python/name:os.system", r"README\.md, line 3: the tag !!python/name"),
        (BOMBS["aliases"], r"README\.md, line \d+: more than 100,000 values"),
        ("# x\n" * 300_000, r"README\.md: more than 1 MB of front matter"),
        ("x" * 3_000_000, r"README\.md: more than 1 MB of front matter"),
    ],
)
def test_front_matter_of_a_stranger_is_bounded(tmp_path, matter, sentence):
    (tmp_path / "README.md").write_text(f"---\na: b\n{matter}\n---\n")
    with pytest.raises(UserError, match=sentence):
        front_matter(tmp_path / "README.md")
