"""Render the templates: a page escapes its values, and a value that is missing is an error."""

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from nanoeuler.evaluation.report import formats


@cache
def environment() -> Environment:
    """`.html` templates escape what they are given; the model card, a `.md`, does not."""
    made = Environment(
        loader=PackageLoader("nanoeuler.evaluation.report"),
        autoescape=lambda name: name is not None and name.endswith(".html"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {each.__name__: each for each in formats.FILTERS}
    return made


def render(template: str, **values: object) -> Markup:
    return Markup(environment().get_template(template).render(values))
