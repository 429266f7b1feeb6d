"""Subcommands that say where a text comes from, `index` and `trace`; and `without`."""

import argparse
import json
from pathlib import Path
from typing import Any

from nanoeuler import log
from nanoeuler.cli.inference import folder_and_prompt, read_prompt
from nanoeuler.cli.parser import Subparsers
from nanoeuler.errors import UserError

SHOWN_STEPS = 6
"""Steps at which something was read that are named; the others are counted."""


def register_index(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "index",
        help="index token shards, for `nanoeuler trace`",
        description="Write a suffix array of the tokens of a corpus, in which `nanoeuler trace` "
        "finds a text.",
    )
    parser.add_path("--tokens", "MANIFEST", "manifest.json of the token shards")
    parser.add_path("--tokenizer", "FILE", "tokenizer.json")
    parser.add_path("--output", "DIR", "folder to write, such as data/corpora/demo/index-512")
    parser.add_threads()
    parser.finish(run_index)


def register(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "trace",
        help="say where a text comes from: its words in the training text, and the steps with them",
        description="Find the longest spans of a text that stand word for word in what a model "
        "learned from, the rarest first: in which documents, and at which steps it read them.",
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="DIR TEXT",
        help="the folder of a run's model, such as results/demo; and the text, such as a reply of "
        "that model; - reads it from standard input",
    )
    parser.add_argument("--model", metavar="DIR", help="the model as an option")
    parser.add_argument("--prompt", metavar="TEXT", help="the text as an option")
    parser.add_number("--min-tokens", "shortest span that is shown (default 8)", 8)
    parser.add_number("--spans", "most spans that are shown (default 10)", 10)
    parser.add_number("--documents", "most documents that are shown of a span (default 3)", 3)
    parser.add_json()
    parser.finish(run_trace)
    register_without(subparsers)


def register_without(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "without",
        help="train again without a document, and show what changes",
        description="Pretrain a run's model again without a document, on rows that are otherwise "
        "the same, and show bits per byte and a reply before and after. It takes as long as the "
        "run's pretraining, less what a checkpoint has from before the document was first read, "
        "and resumes where it stopped.",
    )
    parser.add_argument(
        "words",
        nargs="+",
        metavar="DOCUMENT RUN",
        help="a document or several: a title, a URL, a file, or SOURCE:NUMBER, as `nanoeuler "
        "trace` prints them; and the folder of the run, such as results/demo",
    )
    parser.add_argument(
        "--prompt",
        metavar="TEXT",
        help="the text that both continue (default: first words of a sentence of the document)",
    )
    parser.add_json()
    parser.add_device()
    parser.add_gpus()
    parser.finish(run_without, resumes=True)


def run_index(options: argparse.Namespace) -> None:
    from nanoeuler.tracing.index import build_index

    if options.threads < 1:
        raise UserError(f"--threads is {options.threads}: it must be at least 1")
    build_index(options.tokens, options.tokenizer, options.output, options.threads)


def run_trace(options: argparse.Namespace) -> None:
    from nanoeuler.tracing.trace import Tracer

    for name in ("min_tokens", "spans", "documents"):
        if getattr(options, name) < 1:
            flag = name.replace("_", "-")
            raise UserError(f"--{flag} is {getattr(options, name)}: it must be at least 1")
    folder, text = folder_and_prompt(options)
    text = read_prompt(text)
    found = Tracer(folder).trace(text, options.min_tokens, options.spans, options.documents)
    if options.json:
        print(json.dumps(found, ensure_ascii=False))
    else:
        print(log.printable(as_text(found)), end="")


def run_without(options: argparse.Namespace) -> int:
    from nanoeuler.backend import make_backend
    from nanoeuler.tracing.without import compare, leave_out, train_without
    from nanoeuler.training.stopping import Stopped

    *names, run = options.words
    if not names:
        raise UserError(f"{run}: name a document of the corpus and the folder of a run")
    prompt = None if options.prompt is None else read_prompt(options.prompt)
    left_out = leave_out(Path(run), names)
    settings = left_out.config["pretrain"]
    precision = settings["precision"], settings["residual_precision"]
    backend = make_backend(options.device, options.gpus, *precision)
    try:
        folder = train_without(left_out, backend)
    except Stopped as stopped:
        log.line("stopped", "the state is saved; run the same command again to go on")
        return 128 + stopped.signal_number
    found = compare(left_out, folder, backend, prompt)
    print(json.dumps(found, ensure_ascii=False) if options.json else log.printable(told(found)))
    return 0


def told(found: dict[str, Any]) -> str:
    """What a document was worth, for people."""
    lines = [f"without {origin(document)}" for document in found["documents"]]
    lines.append(f"{'bits per byte':<18}{'with':>9}{'without':>9}{'change':>9}")
    for name, values in found["bits_per_byte"].items():
        before, after = values["with"], values["without"]
        lines.append(f"  {name:<16}{before:>9.4f}{after:>9.4f}{after - before:>+9.4f}")
    lines.append(f"“{' '.join(found['prompt'].split())}” goes on")
    for name, reply in found["replies"].items():
        lines.append(f"  {name + ':':<10}{' '.join(reply.split())}")
    return "\n".join(lines)


def as_text(found: dict[str, Any]) -> str:
    """What was found, for people."""
    lines = []
    for span in found["spans"]:
        text = " ".join(span["text"].split())
        lines.append(f"“{text}” {log.counted(span['tokens'], 'token')}, {times(span['times'])}")
        for document in span["documents"]:
            lines.append(f"    {document['in']}: {origin(document)}")
            lines.append(f"        {reading(document['readings'])}")
    memorised = found["memorised"]
    least = memorised["least_tokens"]
    lines.append(
        f"{len(found['spans'])} of {log.counted(found['spans_found'], 'span')}; "
        f"{memorised['share']:.0%} of the text's {log.counted(found['tokens'], 'token')} are "
        f"memorised (in spans of {least} or more)"
    )
    return "\n".join(lines) + "\n"


def times(counts: dict[str, int]) -> str:
    """How often a span stands where."""
    return ", ".join(f"{count:,} × in {name}" for name, count in counts.items() if count)


def origin(document: dict[str, Any]) -> str:
    """A document as people name it."""
    names = [document.get(key) for key in ("title", "author", "address")]
    if document.get("source"):
        names.append(f"{document['source']}:{document['number']}")
    return ", ".join(filter(None, [*names, document.get("licence")]))


def reading(readings: list[dict[str, Any]]) -> str:
    """When a document was read."""
    if not readings:
        return "not read by this model"
    shown = [f"{each['step']} (epoch {each['epoch']})" for each in readings[:SHOWN_STEPS]]
    more = len(readings) - len(shown)
    steps = ", ".join(shown) + (f" and {more:,} more" if more else "")
    return f"read by {readings[0]['stage']} at step {steps}"
