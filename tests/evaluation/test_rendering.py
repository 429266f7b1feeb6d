"""Templates: values are escaped, missing ones are errors, and all of it is in the package."""

from importlib import resources

import pytest
from jinja2 import UndefinedError
from markupsafe import Markup

from nanoeuler.evaluation.report.charts import Bar, bars
from nanoeuler.evaluation.report.rendering import environment, render


def parts():
    return environment().get_template("parts.html").module


def test_text_is_escaped_and_markup_is_not():
    lead = Markup("<b>a < b</b>")
    made = render("header.html", above="a < b", title='"x"', lead=lead, below=None)
    assert '<p class="muted">a &lt; b</p>' in made
    assert "<h1>&#34;x&#34;</h1>" in made
    assert '<p class="lead"><b>a < b</b></p>' in made


def test_a_value_that_is_missing_is_an_error():
    with pytest.raises(UndefinedError, match="'title' is undefined"):
        render("header.html", above="", lead="", below=None)


def test_without_content_there_is_no_table_and_no_figure():
    assert parts().table(["a"], []).strip() == ""
    assert bars("Title", "note", []) == ""


def test_a_table_marks_row_headings_and_numbers():
    made = "".join(parts().table(["", "score"], [["sft", 0]]).splitlines())
    assert '<th scope="row">sft</th><td class="number">0</td>' in made
    assert '<thead><tr><th></th><th class="number">score</th></tr></thead>' in made


def test_bars_are_in_proportion_and_stay_in_their_track():
    entries = [Bar("a", 0.5, "50 %", 0, error=0.1), Bar("b", 1.2, "120 %")]
    made = bars("Scores", "share", entries, maximum=1.0)
    assert "width:50.00%" in made
    assert "left:40.00%;width:20.00%" in made
    assert "width:100.00%" in made


def test_every_template_is_valid():
    names = {
        path.name for path in resources.files("nanoeuler.evaluation.report.templates").iterdir()
    }
    assert set(environment().list_templates()) == names
    for name in names - {"style.css"}:
        environment().get_template(name)
