"""The section in which the reader asks the model that lies in the page."""

from markupsafe import Markup

from nanoeuler.evaluation.report.gather import Run
from nanoeuler.evaluation.report.playable import Playable
from nanoeuler.evaluation.report.rendering import render


def play(run: Run, model: Playable) -> Markup:
    samples = (run.evaluations.get(model.stage) or {}).get("samples") or []
    return render(
        "play.html",
        stage=model.stage,
        parameters=model.parameters,
        tuned=any(model.description["prompt"]),
        prompt=samples[0]["prompt"] if samples else "",
        description=model.description,
        weights=model.weights,
    )
