"""The section in which the reader asks the model that lies in the page."""

from markupsafe import Markup

from nanoeuler.evaluation.report.gather import Run
from nanoeuler.evaluation.report.playable import Playable
from nanoeuler.evaluation.report.rendering import render


def play(run: Run, model: Playable) -> Markup:
    """The form, with the prompts of the samples as examples; play.js does the rest."""
    samples = (run.evaluations.get(model.stage) or {}).get("samples") or []
    return render(
        "play.html",
        stage=model.stage,
        parameters=model.parameters,
        of=model.of,
        tuned=any(model.description["prompt"]),
        prompts=[sample["prompt"] for sample in samples],
        description=model.description,
        weights=model.weights,
    )
