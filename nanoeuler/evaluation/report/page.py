"""The page: sections in order, in one HTML file that needs no other.

nanoeuler report --config config/config.yaml --run results/demo --output results/demo/report.html
"""

from nanoeuler.evaluation.report import (
    background,
    depth,
    headline,
    pipeline,
    planned,
    results,
    training,
)
from nanoeuler.evaluation.report.gather import Run, entitled
from nanoeuler.evaluation.report.play import play
from nanoeuler.evaluation.report.playable import playable
from nanoeuler.evaluation.report.rendering import render_page

PLAY = ("tokenizer", "model", "play")
"""Scripts of a page that holds a model."""


def page(run: Run, reload: int | None = None, with_model: bool = True) -> str:
    """The report of `run`. With `reload`, that of a run which is still training: a page that reads
    itself again after so many seconds, and holds no model."""
    model = playable(run) if with_model and not reload else None
    run = entitled(run)
    sections = (
        headline.header,
        *([lambda run: play(run, model)] if model else []),
        headline.tiles,
        results.scores,
        results.samples,
        results.reading,
        results.questions,
        training.training,
        results.heads,
        depth.depth,
        background.data,
        background.gradients,
        background.licences,
        planned.planned,
        pipeline.pipeline,
        background.provenance,
    )
    drawn = [section(run) for section in sections]
    return render_page(run.name, drawn, PLAY if model else (), reload)
