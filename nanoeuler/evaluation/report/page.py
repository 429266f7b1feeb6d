"""The page: sections in order, in one HTML file that needs no other and runs nothing.

nanoeuler report --config config/config.yaml --run results/demo --output results/demo/report.html
"""

from nanoeuler.evaluation.report import background, depth, headline, pipeline, results, training
from nanoeuler.evaluation.report.gather import Run
from nanoeuler.evaluation.report.rendering import render


def page(run: Run) -> str:
    """The report of `run`."""
    sections = (
        headline.header,
        headline.tiles,
        results.scores,
        results.samples,
        results.questions,
        training.training,
        results.heads,
        depth.depth,
        background.data,
        background.gradients,
        background.licences,
        pipeline.pipeline,
        background.provenance,
    )
    return render("page.html", title=run.name, sections=[section(run) for section in sections])
