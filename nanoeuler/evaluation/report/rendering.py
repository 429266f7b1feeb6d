"""Render the templates: their values are escaped, and a value that is missing is an error."""

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_eval_context
from jinja2.nodes import EvalContext
from markupsafe import Markup

from nanoeuler.evaluation import formats


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


SECTION = re.compile(r'<section(?: id="([^"]+)")?><h2>(.*?)</h2>')
"""The start of a section, whose name may be given."""
SCRIPTS = ("elements", "charts", "tables", "depth", "attention")
"""Files in scripts/ that every page has, in this order."""


def render_page(
    title: str,
    sections: Sequence[Markup],
    scripts: Sequence[str] = (),
    reload: int | None = None,
) -> str:
    """A page of sections, with a list of them behind the first. `scripts`: texts of further ones
    that it needs. `reload`: the seconds after which it reads itself again.

    The page allows no other script than its own, by hash, and no connection: a text that a model
    wrote can do nothing even if it were not escaped.
    """
    texts = [*map(own_script, SCRIPTS), *scripts, *([own_script("watch")] if reload else [])]
    script = "\n" + "\n".join(texts)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    contents: dict[str, str] = {}  # name → heading
    first, *others = (anchored(section, contents) for section in sections)
    return render(
        "page.html",
        title=title,
        first=first,
        contents=contents,
        sections=others,
        script=Markup(script),
        digest=digest,
        reload=reload,
    )


def own_script(name: str) -> str:
    folder = resources.files("nanoeuler.evaluation.report") / "scripts"
    return (folder / f"{name}.js").read_text(encoding="utf-8")


def anchored(section: Markup, contents: dict[str, str]) -> Markup:
    """A section whose headings can be linked to; their names and texts are added to `contents`."""

    def anchor(found: re.Match[str]) -> str:
        heading = Markup(found[2])
        name = found[1] or re.sub(r"\W+", "-", heading.unescape().lower()).strip("-")
        contents[name] = heading
        link = render("anchor.html", name=name, heading=heading)
        return f'<section id="{name}"><h2>{heading}{link}</h2>'

    return Markup(SECTION.sub(anchor, section))
