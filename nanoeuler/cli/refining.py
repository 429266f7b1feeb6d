"""The subcommand `refine`, which makes a deeper model of a trained one."""

import argparse

from nanoeuler import log
from nanoeuler.cli.options import add_model, add_path, finish, model_folder


def register(subparsers: argparse._SubParsersAction) -> None:
    """Add this subcommand."""
    parser = subparsers.add_parser(
        "refine",
        help="double a model's layers, so that it can be trained further",
        description="Write a model with twice the layers, each of half the step (h of "
        "x + h·f(x)): to first order the same function. To train it further, give its folder as "
        "pretrain.init_from. `pretrain.grow_at` refines a model within a run, with the moments of "
        "its optimizer.",
    )
    add_model(parser)
    add_path(parser, "--output", "DIR", "folder of the deeper model")
    finish(parser, run_refine)


def run_refine(options: argparse.Namespace) -> None:
    from nanoeuler.model.refining import refine_folder

    config = refine_folder(model_folder(options), options.output)
    log.line(
        "model",
        f"{options.output}: to train it further, set model.layers: {config.layers}, "
        f"model.step_size: {config.step_size:g} and pretrain.init_from: {options.output}",
    )
