"""A command-line parser with the options that several subcommands have. It refuses in one sentence,
with the name that was probably meant."""

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from nanoeuler.backend import DEVICES
from nanoeuler.errors import UserError, nearest

if TYPE_CHECKING:
    from nanoeuler.model.config import ModelConfig

LONGEST = 300
"""Characters of a refusal that are shown; what was typed may be of any length."""
Handler = Callable[[argparse.Namespace], int | None]


class UsageError(UserError):
    """A command line that cannot be read."""


class Parser(argparse.ArgumentParser):
    """The parser of the command or of a subcommand. Raises `UsageError` instead of exiting."""

    later: "Callable[[Parser], None] | None" = None
    passes_on = False
    """Does the command pass on to Snakemake, as `theirs`, what stands behind `--`?"""

    def add_later(self, add: "Callable[[Parser], None]") -> None:
        """Let `add` add the arguments when they are needed: it has to import what they mean."""
        self.later = add

    def complete(self) -> None:
        """Add the arguments that come later."""
        add, self.later = self.later, None
        if add:
            add(self)

    def parse_known_args(self, words: Any = None, namespace: Any = None) -> Any:
        self.complete()
        if not self.passes_on:
            return super().parse_known_args(words, namespace)
        end = words.index("--") if "--" in words else len(words)
        options, unknown = super().parse_known_args(words[:end], namespace)
        options.theirs = words[end + 1 :]
        return options, unknown

    def add_config(self, sections: str) -> None:
        self.add_argument(
            "--config",
            required=True,
            metavar="C",
            help="configuration: a YAML file, a run's configuration.json, or inline JSON with "
            f"{sections}",
        )

    def add_path(self, flag: str, metavar: str, meaning: str) -> None:
        """A path that must be given."""
        self.add_argument(flag, required=True, type=Path, metavar=metavar, help=meaning)

    def add_optional_path(self, flag: str, metavar: str, meaning: str) -> None:
        self.add_argument(flag, type=Path, metavar=metavar, help=meaning)

    def add_flag(self, flag: str, meaning: str) -> None:
        self.add_argument(flag, action="store_true", help=meaning)

    def add_number(
        self,
        flag: str,
        meaning: str,
        default: float | None = None,
        kind: type = int,
        metavar: str = "N",
    ) -> None:
        self.add_argument(flag, type=kind, default=default, metavar=metavar, help=meaning)

    def add_model(self) -> None:
        """The model, as an argument or as the option `--model`; `model_folder` reads them."""
        meaning = "model folder, or the folder of a stage or a run, such as results/demo"
        self.add_argument("folder", nargs="?", metavar="DIR", help=meaning)
        self.add_argument("--model", metavar="DIR", help="the same as an option")

    def add_threads(self) -> None:
        self.add_number(
            "--threads", "threads (default 1); the result is the same for any number", 1
        )

    def add_device(self) -> None:
        self.add_argument(
            "--device",
            choices=DEVICES,
            default="auto",
            help="engine (default: auto, the fastest there is)",
        )

    def add_quantize(self) -> None:
        self.add_argument(
            "--quantize",
            choices=("int8", "int4"),
            help="round the weights to 8 or 4 bits, for speed and memory on a CPU (default: as "
            "they are)",
        )

    def add_gpus(self) -> None:
        self.add_number("--gpus", "1: a GPU may be used; 0 forces the CPU")

    def add_shared_gpus(self) -> None:
        """`--gpus` of a stage that several GPUs can share: None, a number, or "auto"."""
        self.add_argument(
            "--gpus",
            type=gpus_or_auto,
            metavar="N",
            help="GPUs that share the work (default 1); auto takes all there are, 0 forces the CPU",
        )

    def add_ranks(self) -> None:
        self.add_number("--ranks", "processes that share the work, on a CPU (default 1)", 1)

    def add_json(self, group: argparse._ActionsContainer | None = None) -> None:
        meaning = "print JSON for programs, in bytes, seconds, tokens and shares"
        (group or self).add_argument("--json", action="store_true", help=meaning)

    def finish(self, handler: Handler, resumes: bool = False) -> None:
        """Add the option `--log`, which every subcommand has, and the function that runs it.

        `resumes`: the same command goes on where it was interrupted.
        """
        self.add_argument(
            "--log", type=Path, metavar="FILE", help="append log lines to this file as well"
        )
        self.set_defaults(handler=handler, parser=self, resumes=resumes)

    def read(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        """Parse; an argument that is left over is refused by the subcommand that was given it."""
        words = sys.argv[1:] if arguments is None else arguments
        try:
            return self.read_words(words)
        except UsageError as error:
            file = next((each for each in words if each[:1] == "-" and os.path.lexists(each)), None)
            if file is None:
                raise
            raise UsageError(f"{error}; if you mean the file {file}, write ./{file}") from error

    def read_words(self, words: Sequence[str]) -> argparse.Namespace:
        options, unknown = self.parse_known_args(words)
        parser: Parser = getattr(options, "parser", self)
        end = unknown.index("--") if "--" in unknown else len(unknown)
        for word in unknown[:end]:
            if word.startswith("-"):
                parser.refuse_option(word)
        left = unknown[:end] + unknown[end + 1 :]  # argparse takes words in one place only
        if left:
            parser.add_words(options, left)
        return options

    def add_words(self, options: argparse.Namespace, words: Sequence[str]) -> None:
        """Add words to the argument that takes several. Refuses them where there is none."""
        for action in self._get_positional_actions():
            if action.nargs in ("*", "+"):
                further = [self._get_value(action, word) for word in words]
                setattr(options, action.dest, [*getattr(options, action.dest), *further])
                return
        self.refuse(f"{words[0]!r} is one argument too many", self.help_sentence())

    def refuse_option(self, argument: str) -> NoReturn:
        flags = [flag for action in self._actions for flag in action.option_strings]
        name = argument.partition("=")[0]
        behind = "; Snakemake's go behind --" if self.passes_on else ""
        self.refuse(f"there is no option {name}", self.suggestion(name, flags) + behind)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        if isinstance(action, argparse._SubParsersAction):
            self.refuse(f"there is no command {value!r}", self.suggestion(value, known))
        flag = "/".join(action.option_strings) or action.metavar or action.dest
        self.refuse(f"{flag} is {value!r}", f"it must be one of {', '.join(known)}")

    def suggestion(self, name: str, known: Iterable[str]) -> str:
        near = nearest(name, known)
        return f"did you mean {near}?" if near else self.help_sentence()

    def help_sentence(self) -> str:
        return f"`{self.prog} --help` lists what there is"

    def error(self, message: str) -> NoReturn:
        self.refuse(message, self.help_sentence())

    def refuse(self, problem: str, remedy: str) -> NoReturn:
        shown = problem if len(problem) <= LONGEST else problem[: LONGEST - 1] + "…"
        raise UsageError(f"{self.prog}: {shown}; {remedy}")


Subparsers: TypeAlias = "argparse._SubParsersAction[Parser]"


def model_folder(options: argparse.Namespace) -> Path:
    """The model folder that was asked for. Raises `UserError` unless it was given once."""
    from nanoeuler.inference.finding import find_model

    given = [folder for folder in (options.folder, options.model) if folder is not None]
    if len(given) == 1:
        return find_model(Path(given[0]))
    if given:
        raise UserError(f"{given[0]} and {given[1]} are two models; give one of them")
    models = Path("results").glob("*/*/model/config.json")
    newest = max(models, key=lambda path: path.stat().st_mtime, default=None)
    found = newest.parent if newest else "models/novels, which is shipped"
    raise UserError(f"no model was given; name its folder, for example {found}")


def config_model(config: dict[str, Any]) -> "ModelConfig":
    from nanoeuler.model.config import ModelConfig

    if "model" not in config:
        raise UserError(
            "--config: there is no model section; "
            'give one, such as \'{"model": {"preset": "small"}}\''
        )
    return ModelConfig.from_dict(config["model"])


def gpus_or_auto(text: str) -> int | str:
    try:
        return text if text == "auto" else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor auto") from None
