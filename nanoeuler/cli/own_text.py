"""Subcommand `train`: from one's own text to a model, in one line.

    nanoeuler train my-novel.txt --minutes 10

    nanoeuler train my-notes --from models/stories

It writes a configuration, results/<name>/config.yaml, and has Snakemake run it. The same command
resumes a run that was stopped, and takes the configuration as it then is.
"""

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nanoeuler.cli.parser import Subparsers
from nanoeuler.cli.workflow import run_snakemake
from nanoeuler.corpus.sources import is_named
from nanoeuler.errors import UserError, brief
from nanoeuler.shipped import HOME, find_snakefile

MOST_MINUTES = 24 * 60
RESULTS = Path("results")
ALIKE = re.compile(r"(?<=[\s'])(\./)+(?=[^\s'/])|(?<=[^\s'/])/+(?=[\s']|$)")
"""What of the paths in a command makes no difference."""


def register(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "train",
        help="from your own text to a model that you can talk to, in one line",
        description="Train a model on your own text: choose its size for the text and the minutes, "
        "train it, print samples as it learns, write a report, and open a chat. Ctrl-C saves and "
        "stops; the same command resumes.",
    )
    parser.add_argument("words", nargs="+", metavar="TEXT", help="text files, folders or globs")
    parser.add_number(
        "--minutes",
        "about how long it may take on this machine (default 10); "
        "little text needs less, and then takes less",
        10.0,
        kind=float,
        metavar="M",
    )
    parser.add_argument(
        "--name",
        metavar="NAME",
        help="name of the run, whose folder is results/NAME (default: that of the first text)",
    )
    parser.add_argument(
        "--encoding",
        metavar="NAME",
        help="encoding of the files that are not Unicode, like cp1251 (default: found out by "
        "their language)",
    )
    parser.add_argument(
        "--separator",
        metavar="LINE",
        help="a line that parts documents in a file (default <|endoftext|>)",
    )
    parser.add_argument(
        "--from",
        dest="start",
        type=Path,
        metavar="MODEL",
        help="go on from this model, with its tokenizer: models/stories, or the folder of any "
        "model, run or stage (default: begin with random weights)",
    )
    parser.finish(run_train, resumes=True)


def run_train(options: argparse.Namespace) -> int:
    from nanoeuler.planning.own_run import together
    from nanoeuler.storage.names import FORM_OF_NAME, is_name

    if not 1 <= options.minutes <= MOST_MINUTES:
        raise UserError(
            f"--minutes {options.minutes:g}: give 1 to {MOST_MINUTES}; "
            "for more, raise pretrain.tokens in the configuration that a shorter run writes"
        )
    texts = together(options.words)
    if options.name is not None and not is_name(options.name):
        raise UserError(f"--name {brief(options.name)}: give {FORM_OF_NAME}")
    reading = reading_of(options)
    words = ["--minutes", f"{options.minutes:g}"]
    words += ["--name", options.name] if options.name is not None else []
    for key, value in reading.items():
        words += [f"--{key}", value]
    words += ["--from", str(options.start)] if options.start is not None else []
    dashed = any(text.startswith("-") for text in texts)
    words = [*words, "--", *texts] if dashed else [*texts, *words]
    request = command_line(["nanoeuler", "train", *words])
    name = options.name or choose_name(texts, RESULTS, f"# {request}")
    config_file = RESULTS / name / "config.yaml"
    prepare(config_file, name, texts, options.minutes, request, options.start, reading)
    arguments = ["--cores", "all", "--configfile", str(config_file), "--quiet", "all"]
    return run_snakemake(arguments) or show_results(config_file)


def reading_of(options: argparse.Namespace) -> dict[str, str]:
    """What says how the texts are read. Raises `UserError` where it says nothing."""
    if options.encoding is not None:
        try:
            "".encode(options.encoding)
        except (LookupError, ValueError) as error:
            raise UserError(
                f"--encoding {brief(options.encoding)}: Python does not know it; write a name like "
                "utf-8, cp1251 or gb18030"
            ) from error
    if options.separator is not None and not re.fullmatch(r"[^\n]*\S[^\n]*", options.separator):
        raise UserError(f"--separator {brief(options.separator)}: give one line of text")
    found = {"encoding": options.encoding, "separator": options.separator}
    return {key: value for key, value in found.items() if value is not None}


def prepare(
    config_file: Path,
    name: str,
    texts: Sequence[str],
    minutes: float,
    request: str,
    start: Path | None = None,
    reading: Mapping[str, str] | None = None,
) -> None:
    """Write the configuration that `request` asks for, unless it is there already.

    `reading` has the encoding and the separator of the texts, where they are given.
    """
    from nanoeuler import log
    from nanoeuler.config import load
    from nanoeuler.config.paths import Paths
    from nanoeuler.corpus.sources.own_text import warning
    from nanoeuler.planning import continued_run, own_run
    from nanoeuler.storage.files import require_place

    first_line = f"# {request}"

    def is_there() -> bool:
        found = config_file.is_file() and asks(config_file, first_line)
        if found:
            log.line("config", f"{config_file} is there and is taken as it is")
        return found

    if is_there():
        if Paths(load(config_file)).own_text_changed():
            log.line("config", "its text has changed; other --minutes choose its settings anew")
        return
    if not belongs(config_file, texts, first_line) and (other := taken(name, RESULTS)):
        raise UserError(f"{other}; give this run a name of its own with --name")
    first, *others = candidates(texts)
    if name in others and (other := taken(first, RESULTS)):
        log.line("config", f"{other}, so this run is called {name}")
    place = config_file
    while not place.parent.exists():
        place = place.parent
    require_place(place)  # before anything is measured
    snakefile = find_snakefile()
    entries = [{"path": text, **reading} if reading else text for text in texts]
    if start is None:
        text = own_run.read_text(entries)
        if little := warning(text.bytes):
            log.line("warning", little)
        choice, engine = own_run.choose_here(text, minutes)
        config = own_run.make_config(name, entries, text, choice)
        rate = choice.tokens_per_second
    else:
        parent = continued_run.read_start(start, config_file.parent)
        text = continued_run.read_text(entries, parent)
        speed, engine = continued_run.speed_here(parent)
        tokens = continued_run.choose_tokens(text, parent, minutes, speed)
        config = continued_run.make_config(name, entries, text, parent, tokens)
        rate = 1 / speed.of_token
    if is_there():  # by the same command, in the seconds that the measuring took
        return
    workflow = [] if snakefile == Path("Snakefile") else ["--snakefile", str(snakefile)]
    rerun = command_line(["snakemake", *workflow, "--configfile", str(config_file)])
    comment = [
        request,
        "",
        f"Chosen for {log.size(text.bytes)} of text and {log.counted(minutes, 'minute')} on "
        f"{engine}, at {rate:,.0f} tokens/s.",
        "Change what you like. The command above takes this file as it is, and so does",
        f"  {rerun}",
    ]
    if kept := own_run.write_config(config_file, comment, config):
        log.line("config", f"{config_file} was made by another command; it is kept as {kept}")
    log.line("config", f"{config_file} has the settings, to be changed and run again")


def show_results(config_file: Path) -> int:
    """Say where everything is, and open a chat where a person sits at a terminal."""
    from nanoeuler import log
    from nanoeuler.cli.greeting import next_steps
    from nanoeuler.config import load
    from nanoeuler.config.paths import Paths

    config = load(config_file)
    log.tell(next_steps(config), sys.stdout)
    if sys.stdin.isatty() and sys.stdout.isatty():
        model = Paths(config).model_folder(Paths(config).last_stage)
        os.execv(sys.executable, [sys.executable, "-m", "nanoeuler", "chat", "--model", model])
    return 0


UNNAMED = "own-text"


# ---- the folder of results, so that no text replaces another's model


def choose_name(texts: Sequence[str], results: Path, first_line: str) -> str:
    """The name of the run of `texts`: one that is there already, or else a free one.

    `first_line` is that of the configuration that is asked for.
    """
    names = list(dict.fromkeys(candidates(texts)))
    for name in names:
        if belongs(results / name / "config.yaml", texts, first_line):
            return name
    return next((name for name in names if not taken(name, results)), names[-1])


def taken(name: str, results: Path) -> str | None:
    """What is called `name` already, a run or its corpus, or will be: those of the configurations
    that are shipped, or lie in `config`. None where nothing is.
    """
    from nanoeuler.config import RESOLVED, read_resolved

    if (results / name).exists():
        return f"{results / name} belongs to another run"
    for file in sorted(results.glob(f"*/{RESOLVED}")):
        with contextlib.suppress(UserError):
            if ((read_resolved(file) or {}).get("corpus") or {}).get("name") == name:
                return f"{file.parent} has a corpus of the name {name}"
    for folder in dict.fromkeys((HOME / "config", Path("config").absolute())):
        for file in sorted(folder.glob("*.yaml")):
            run, corpus = part_of(file).get("run"), part_of(file, "corpus").get("name")
            if name in (run, corpus):
                return f"{name} is the name of the run or corpus of config/{file.name}"
    return None


def candidates(texts: Sequence[str]) -> Iterator[str]:
    """Names for the run of `texts`, the shortest first."""
    import hashlib  # these take as long as all else that `--help` imports

    from nanoeuler.storage.names import plain_name

    name = name_of(texts[0])
    yield name
    around = plain_name(shown(texts[0]).parent.name)
    if around:
        yield f"{around}-{name}"
    paths = "\n".join(sorted(real_paths(texts)))
    yield f"{name}-{hashlib.sha256(os.fsencode(paths)).hexdigest()[:8]}"


def name_of(path: str) -> str:
    """A name for a run: that of the file or folder, as `plain_name` writes it."""
    from nanoeuler.storage.names import plain_name

    return plain_name(shown(path).stem) or UNNAMED


def shown(path: str) -> Path:
    """The file or folder that `path` names, or that a glob starts from."""
    import glob

    whole = os.path.abspath(os.path.expanduser(path))
    while glob.has_magic(whole) and not os.path.exists(whole):
        whole = os.path.dirname(whole)
    return Path(whole)


def command_line(words: Sequence[str]) -> str:
    """The words as a shell reads them, on one line whatever is in them."""
    import shlex

    return " ".join(
        shlex.quote(word) if word.isprintable() else f"$'{''.join(map(escaped, word))}'"
        for word in words
    )


def escaped(letter: str) -> str:
    if letter in "\\'":
        return f"\\{letter}"
    return letter if letter.isprintable() else f"\\U{ord(letter):08x}"


def belongs(config_file: Path, texts: Sequence[str], first_line: str) -> bool:
    """Whether this configuration is that of a run of `texts`."""
    if not config_file.is_file():
        return False
    return asks(config_file, first_line) or real_paths(sources(config_file)) == real_paths(texts)


def asks(config_file: Path, first_line: str) -> bool:
    """Whether a configuration begins with this line, which says what command has written it.

    `notes/` and `./notes` are `notes`.
    """
    with open(config_file, encoding="utf-8", errors="replace") as file:
        found = file.readline(100_000).rstrip("\n")
    return ALIKE.sub("", found) == ALIKE.sub("", first_line)


def sources(config_file: Path) -> list[str]:
    """The texts of one's own that a configuration names; none where it can't be read."""
    named = part_of(config_file, "corpus").get("sources")
    if not isinstance(named, list):
        return []
    paths = (each.get("path") if isinstance(each, dict) else each for each in named)
    return [str(path) for path in paths if not is_named(path)]


def part_of(config_file: Path, *keys: str) -> dict[str, Any]:
    """A configuration, or a section of it; empty where it can't be read."""
    from nanoeuler.config.yaml_file import read_yaml

    try:
        content, _ = read_yaml(config_file)
    except UserError:
        return {}
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else None
    return content if isinstance(content, dict) else {}


def real_paths(paths: Sequence[str]) -> set[str]:
    return {os.path.realpath(os.path.expanduser(path)) for path in paths}
