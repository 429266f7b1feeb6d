"""The page: sections in order, with their style, in one file.

nanoeuler report --config config/config.yaml --run results/demo --output results/demo/report.html
"""

from importlib import resources

from nanoeuler.evaluation.report import background, depth, headline, pipeline, results, training
from nanoeuler.evaluation.report.gather import Run
from nanoeuler.evaluation.report.markup import Markup, element, join, section


def page(run: Run) -> str:
    """The report of `run` as a self-contained HTML document."""
    return document(
        run.name,
        headline.header(run),
        headline.tiles(run),
        section("Results", headline.comparisons(run), results.evaluation_table(run)),
        results.samples(run),
        results.questions(run),
        training.training(run),
        results.heads(run),
        depth.depth(run),
        background.data(run),
        background.gradients(run),
        background.licences(run),
        pipeline.pipeline(run),
        background.provenance(run),
    )


def document(title: str, *content: Markup) -> str:
    """HTML that needs no other file and runs nothing."""
    style = (
        resources.files("nanoeuler.evaluation.report")
        .joinpath("style.css")
        .read_text(encoding="utf-8")
    )
    head = join(
        [
            Markup('<meta charset="utf-8">'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Markup('<meta name="color-scheme" content="light dark">'),
            element("title", f"{title} · nanoeuler"),
            element("style", Markup(style)),
        ]
    )
    body = element("main", *content)
    return f'<!doctype html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{body}\n</body>\n</html>\n'
