"""`snakemake --report`: every file that it lists has a caption in proper reStructuredText.

The report itself cannot be made in a test, since Snakemake fetches parts of its page."""

import re
from pathlib import Path

import jinja2
import pytest
from docutils.core import publish_string

WORKFLOW = Path(__file__).parents[2] / "workflow"
CAPTIONS = sorted((WORKFLOW / "report").glob("*.rst"))


def test_every_listed_file_has_a_caption_and_every_caption_a_file():
    rules = "".join(path.read_text() for path in (WORKFLOW / "rules").glob("*.smk"))
    asked = re.findall(r'caption="\.\./report/([^"]+)"', rules)
    assert sorted(asked) == [path.name for path in CAPTIONS]
    assert rules.count("report(") == len(asked)


@pytest.mark.parametrize("path", CAPTIONS, ids=lambda path: path.stem)
def test_a_caption_is_valid(path):
    wildcards = {"wildcards": {"stage": "sft"}} if path.stem == "evaluation" else {}
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)
    text = environment.from_string(path.read_text()).render(
        snakemake={"config": {"run": "demo"}} | wildcards
    )
    options = {"halt_level": 2, "report_level": 2}  # a warning is an error
    assert publish_string(text, writer="html5", settings_overrides=options)
