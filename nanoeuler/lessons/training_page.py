"""A page that trains a model in the reader's browser, on the text that the reader gives it.

nanoeuler lesson --output lesson.html    then open lesson.html in a browser
"""

from importlib import resources
from typing import Any

from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from nanoeuler.browser import packing
from nanoeuler.browser.kernels import TRAINING, kernels
from nanoeuler.corpus.sample.books import BOOKS, book_text
from nanoeuler.corpus.sample.world import build_world
from nanoeuler.evaluation.formats import short_count
from nanoeuler.evaluation.report.charts import Series, line_chart
from nanoeuler.evaluation.report.rendering import render, render_page
from nanoeuler.model.config import ModelConfig
from nanoeuler.model.spec import parameter_count, tensor_table

VOCABULARY = 256  # bytes
BITS = 8.0  # of a byte, to a model that knows nothing
HEAD_SIZE = 16  # of all sizes, since the kernels are made for one


def shape(dim: int, layers: int, context: int) -> ModelConfig:
    """A model as examples/train.py makes it."""
    heads = dim // HEAD_SIZE
    return ModelConfig(
        VOCABULARY, dim, layers, heads, heads // 2, dim * 8 // 3, context, mtp_heads=1
    )


SIZES = [(shape(32, 1, 128), 8), (shape(64, 2, 128), 8), (shape(128, 5, 128), 16)]
"""Models, the last of the demo's size, and rows of a step."""
SEED, PEOPLE, BOATS, PARAGRAPHS = 1, 60, 20, 240
"""Seed and size of the text that stands in the page at first, some 47 kB."""


def training_page(sizes: list[tuple[ModelConfig, int]] = SIZES) -> str:
    """The page; its models have heads of one size."""
    description = {
        "sizes": [describe(config, rows) for config, rows in sizes],
        "kernels": kernels(sizes[0][0], TRAINING),
    }
    chart = line_chart(
        "Bits per byte",
        "of the text that it learns from, and of a tenth that it never reads",
        "step",
        [
            Series("training", [(0, BITS)], 0, shown=f"{BITS:.2f}"),
            Series("held out", [(0, BITS)], 1, shown=f"{BITS:.2f}"),
        ],
    )
    folder = resources.files(__package__)
    top = render(
        "header.html",
        above="nanoeuler · lesson 7",
        title="Train a model in your browser",
        lead="It begins with random weights and learns to foretell the next byte of your text. "
        "Nothing is sent anywhere: your GPU computes, with the kernels of this project.",
        below=None,
    )
    section = Markup((folder / "training_page.html").read_text(encoding="utf-8")).format(
        text=sample_text(), chart=chart, description=Markup(htmlsafe_json_dumps(description))
    )
    names = (*packing.SCRIPTS, "training_ops")
    own = (folder / "training_page.js").read_text(encoding="utf-8")
    return render_page("Train a model", [top, section], [*map(packing.script, names), own])


def describe(config: ModelConfig, rows: int) -> dict[str, Any]:
    return {
        "name": short_count(parameter_count(config)),
        "config": packing.describe_config(config),
        "rows": rows,
        "tensors": [
            [tensor.name, tensor.size, tensor.initial_std, tensor.decay]
            for tensor in tensor_table(config)
        ],
    }


def sample_text() -> str:
    """A book of the demo's invented world."""
    return book_text(BOOKS[0], build_world(SEED, PEOPLE, BOATS), SEED, PARAGRAPHS)
