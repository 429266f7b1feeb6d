"""Subcommand `completion`: what a shell needs to complete commands, options and their values."""

import argparse
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from nanoeuler.cli.parser import Parser, Subparsers

SHELLS = ("bash", "zsh")
FOR_ZSH = """\
autoload -Uz compinit bashcompinit
(( $+functions[compdef] )) || compinit
bashcompinit
"""
SCRIPT = """\
_nanoeuler() {
  local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}"
  local command="" words="" at
  for ((at = 1; at < COMP_CWORD; at++)); do
    case "${COMP_WORDS[at]}" in
      -*) break ;;
      *) case "${command:+$command }${COMP_WORDS[at]}" in
%(commands)s
        *) break ;;
      esac ;;
    esac
  done
  case "$command $previous" in
%(values)s
    *) case "$command" in
%(words)s
    esac ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o default -F _nanoeuler nanoeuler
"""


def register(subparsers: Subparsers) -> None:
    completion = subparsers.add_parser(
        "completion",
        help="print what bash or zsh needs to complete commands and options",
        description="Print what a shell needs to complete commands, options and their values. "
        'For this session: eval "$(nanoeuler completion bash)"; for all, put that line into '
        "~/.bashrc, or with zsh into ~/.zshrc.",
    )
    completion.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash or zsh")
    completion.finish(run_completion)


def run_completion(options: argparse.Namespace) -> None:
    print((FOR_ZSH if options.shell == "zsh" else "") + script(options.whole_parser), end="")


def script(parser: Parser) -> str:
    """The functions for bash, which zsh runs as well."""
    found = dict(commands(parser))
    return SCRIPT % {
        "commands": "\n".join(f'        "{name}") command="{name}" ;;' for name in found if name),
        "values": "\n".join(
            f'    "{name} {flag}") words="{joined(known(action))}" ;;'
            for name, each in found.items()
            for action in each._actions
            if known(action)
            for flag in action.option_strings
        ),
        "words": "\n".join(
            f'      "{name}") words="{joined(words_of(each))}" ;;' for name, each in found.items()
        ),
    }


def commands(parser: Parser, name: str = "") -> Iterator[tuple[str, Parser]]:
    """The parser and those of its subcommands, by their names: "", "chat", "gutenberg fetch"."""
    parser.complete()
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, each in action.choices.items():
                yield from commands(each, f"{name} {word}".strip())


def words_of(parser: Parser) -> Iterator[str]:
    """Completions of a command: its subcommands, known arguments and options."""
    for action in parser._actions:
        if action.option_strings:
            yield from action.option_strings
        else:
            yield from known(action)


def known(action: argparse.Action) -> Collection[str]:
    """The values that an argument may have, as far as they are known."""
    found: Any = action.choices or getattr(action, "completes", ())
    return found


def joined(words: Iterable[object]) -> str:
    return " ".join(map(str, words))
