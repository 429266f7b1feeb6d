"""Render the templates: their values are escaped, and a value that is missing is an error."""

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_eval_context
from jinja2.nodes import EvalContext
from markupsafe import Markup

from nanoeuler.evaluation.report import formats


@cache
def environment() -> Environment:
    """`.html` templates escape what they are given. The model card, a `.md`, escapes what would
    begin a tag, unless it is marked as `safe`, as in a block of code."""
    made = Environment(
        loader=PackageLoader("nanoeuler.evaluation.report"),
        autoescape=lambda name: name is not None and name.endswith(".html"),
        finalize=without_tags,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {each.__name__: each for each in formats.FILTERS}
    return made


@pass_eval_context
def without_tags(context: EvalContext, value: object) -> object:
    """A value for Markdown, in which HTML is obeyed; where Jinja escapes by itself, the value."""
    if context.autoescape or isinstance(value, Markup) or not isinstance(value, str):
        return value
    return value.replace("<", "&lt;")


def render(template: str, **values: object) -> Markup:
    return Markup(environment().get_template(template).render(values))
