"""Options that several subcommands have."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoeuler.backend import DEVICES
from nanoeuler.errors import UserError

if TYPE_CHECKING:
    from nanoeuler.model.config import ModelConfig

Handler = Callable[[argparse.Namespace], int | None]


def add_config(parser: argparse.ArgumentParser, sections: str) -> None:
    parser.add_argument(
        "--config",
        required=True,
        metavar="C",
        help="configuration: a YAML file, a run's configuration.json, or inline JSON with "
        f"{sections}",
    )


def add_path(parser: argparse.ArgumentParser, flag: str, metavar: str, meaning: str) -> None:
    """A path that must be given."""
    parser.add_argument(flag, required=True, type=Path, metavar=metavar, help=meaning)


def add_optional_path(
    parser: argparse.ArgumentParser, flag: str, metavar: str, meaning: str
) -> None:
    parser.add_argument(flag, type=Path, metavar=metavar, help=meaning)


def add_model(parser: argparse.ArgumentParser) -> None:
    """The model, as an argument or as the option `--model`; `model_folder` reads them."""
    meaning = "model folder, or the folder of a stage or a run, such as results/demo"
    parser.add_argument("folder", nargs="?", metavar="DIR", help=meaning)
    parser.add_argument("--model", metavar="DIR", help="the same as an option")


def model_folder(options: argparse.Namespace) -> Path:
    """The model folder that was asked for. Raises `UserError` unless it was given once."""
    from nanoeuler.inference.finding import find_model

    given = [folder for folder in (options.folder, options.model) if folder is not None]
    if len(given) == 1:
        return find_model(Path(given[0]))
    if given:
        raise UserError(f"{given[0]} and {given[1]} are two models; give one of them")
    models = sorted(Path("results").glob("*/*/model/config.json"), key=modified, reverse=True)
    found = models[0].parent if models else "models/stories, which is shipped"
    raise UserError(f"no model was given; name its folder, for example {found}")


def modified(path: Path) -> float:
    return path.stat().st_mtime


def config_model(config: dict[str, Any]) -> "ModelConfig":
    """The model of `--config`."""
    from nanoeuler.model.config import ModelConfig

    if "model" not in config:
        raise UserError(
            "--config: there is no model section; "
            'give one, such as \'{"model": {"preset": "small"}}\''
        )
    return ModelConfig.from_dict(config["model"])


def add_threads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        metavar="N",
        help="threads (default 1); the result is the same for any number",
    )


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        choices=DEVICES,
        default="auto",
        help="engine (default: auto, the fastest there is)",
    )


def add_gpus(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gpus", type=int, metavar="N", help="1: a GPU may be used; 0 forces the CPU"
    )


def add_shared_gpus(parser: argparse.ArgumentParser) -> None:
    """`--gpus` of a stage that several GPUs can share: None, a number, or "auto"."""
    parser.add_argument(
        "--gpus",
        type=gpus_or_auto,
        metavar="N",
        help="GPUs that share the work (default 1); auto takes all there are, 0 forces the CPU",
    )


def add_ranks(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ranks",
        type=int,
        default=1,
        metavar="N",
        help="processes that share the work, on a CPU (default 1)",
    )


def gpus_or_auto(text: str) -> int | str:
    try:
        return text if text == "auto" else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor auto") from None


def add_json(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--json",
        action="store_true",
        help="print JSON for programs, in bytes, seconds, tokens and shares",
    )


def finish(parser: argparse.ArgumentParser, handler: Handler) -> None:
    """Add the option `--log`, which every subcommand has, and the function that runs it."""
    parser.add_argument(
        "--log", type=Path, metavar="FILE", help="append log lines to this file as well"
    )
    parser.set_defaults(handler=handler, parser=parser)
