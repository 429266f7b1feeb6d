"""Subcommands that use a model: `chat`, `generate` and `serve`."""

import argparse
import sys
from pathlib import Path
from typing import Any

from nanoeuler import log
from nanoeuler.cli.parser import Parser, Subparsers, model_folder
from nanoeuler.errors import UserError

MOST_PROMPT = 10_000_000
"""Bytes of a prompt on standard input: more tokens than any context has."""


def register(subparsers: Subparsers) -> None:
    chat = subparsers.add_parser(
        "chat",
        help="talk to a model",
        description="Talk to a tuned model, or let a base model continue what you type.",
    )
    chat.add_model()
    add_sampling(chat)
    chat.add_flag(
        "--history",
        "let the model see earlier turns (default: it sees each line alone, as in tuning)",
    )
    chat.finish(run_chat)
    generate = subparsers.add_parser(
        "generate",
        help="continue a prompt",
        description="Continue a prompt; the new text goes to standard output as it is made.",
    )
    generate.add_argument(
        "words",
        nargs="*",
        metavar="DIR PROMPT",
        help="the model's folder, or that of a stage or a run, such as results/demo; and the text "
        "to continue, or the instruction for a tuned model; - reads it from standard input",
    )
    generate.add_argument("--model", metavar="DIR", help="the model as an option")
    generate.add_argument("--prompt", help="the text as an option")
    add_sampling(generate)
    generate.add_argument(
        "--input", default="", help="further input to the instruction (tuned models)"
    )
    generate.add_argument(
        "--regex",
        metavar="R",
        help="the text matches this regular expression, or ends at --max-tokens",
    )
    generate.add_argument(
        "--schema",
        metavar="FILE",
        type=Path,
        help="the text is JSON, valid by the JSON schema in this file, or ends at --max-tokens "
        "(both need the extra `forms`)",
    )
    generate.add_flag("--raw", "continue the bare prompt, without a tuned model's template")
    generate.finish(run_generate)
    register_serve(subparsers)


def add_sampling(parser: Parser) -> None:
    """How a model chooses tokens, and where it runs; `Sampling` has the defaults."""
    parser.add_number("--max-tokens", "longest reply (default 200)")
    parser.add_number(
        "--temperature",
        "0: always the likeliest token; 1: as the model is (default 0.7)",
        kind=float,
        metavar="X",
    )
    parser.add_number(
        "--top-k", "choose among the K likeliest tokens (default 0: all)", metavar="K"
    )
    parser.add_number(
        "--top-p",
        "choose among the fewest tokens that hold the share P (default 0.95)",
        kind=float,
        metavar="P",
    )
    parser.add_number("--seed", "the same seed gives the same text (default 1)")
    parser.add_flag(
        "--no-speculation", "decode token by token, without drafts: the same text, slower"
    )
    add_memory_options(parser)
    parser.add_device()
    parser.add_gpus()


def add_memory_options(parser: Parser) -> None:
    """What takes less memory, and time, for a little precision."""
    parser.add_quantize()
    parser.add_argument(
        "--kv-cache",
        choices=("int8",),
        help="keep what was read and written in 8 bits, for speed and memory of long texts on a "
        "CPU (default: as it is computed)",
    )


def longest_reply(options: argparse.Namespace) -> int:
    """The most tokens of a reply. Raises `UserError` for a number below 1."""
    from nanoeuler.inference.api import MAX_TOKENS
    from nanoeuler.inference.sampling import at_least_one

    return at_least_one(MAX_TOKENS if options.max_tokens is None else options.max_tokens)


def sampling_options(options: argparse.Namespace) -> dict[str, Any]:
    """The sampler's settings that were given."""
    names = ("temperature", "top_k", "top_p", "seed")
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


def loading_options(options: argparse.Namespace) -> dict[str, Any]:
    """How the model is loaded."""
    return {
        "device": options.device,
        "gpus": options.gpus,
        "speculation": not options.no_speculation,
        "quantize": options.quantize,
        "kv_cache": options.kv_cache,
    }


def run_generate(options: argparse.Namespace) -> None:
    from nanoeuler.inference import api
    from nanoeuler.inference.sampling import Sampling

    max_tokens, sampling = longest_reply(options), sampling_options(options)
    Sampling(**sampling)  # refuses bad values before the model is read
    form = form_options(options)
    folder, prompt = folder_and_prompt(options)
    text, further = read_prompt(prompt), as_text(options.input, "--input")
    model = api.load(folder, **loading_options(options))
    reply = model.stream(text, further, options.raw, max_tokens, **sampling, **form)
    last, at_terminal = "", sys.stdout.isatty()
    if at_terminal and (options.raw or model.template is None):  # it goes on with these words
        log.write(log.printable(text))
    for piece in reply:
        log.write(log.printable(piece) if at_terminal else piece)
        last = piece or last
    if not last.endswith("\n"):
        log.write("\n")
    speed = reply.tokens_per_second
    log.line(
        "generate",
        prompt_tokens=reply.prompt_tokens,
        tokens=len(reply.ids),
        end=reply.end,
        first_token_ms=1000 * reply.first_seconds,
        tokens_per_second="n/a" if speed is None else speed,
    )
    if brought := reply.speculation:
        log.line(
            "speculation",
            tokens_per_pass=brought.tokens_per_pass,
            acceptance_by_head="/".join(f"{share:.0%}" for share in brought.acceptance) or "n/a",
            passes_from_text=f"{brought.repeats / max(brought.passes, 1):.0%}",
            right_drafts_per_pass_from_text=brought.right_repeats / max(brought.repeats, 1),
        )
    if reply.dropped:
        log.line(
            "context",
            f"prompt and text outgrew the model's context of {model.config.context} tokens: "
            f"its {log.counted(reply.dropped, 'oldest token')} dropped",
        )


def form_options(options: argparse.Namespace) -> dict[str, Any]:
    """The form that the text is to have, if one was given."""
    given = {}
    if options.regex is not None:
        given["regex"] = as_text(options.regex, "--regex")
    if options.schema is not None:
        from nanoeuler.storage.files import read_bounded

        try:
            content = read_bounded(options.schema, MOST_PROMPT)
        except OSError as error:
            raise UserError(f"--schema {options.schema}: {error.strerror}") from error
        given["schema"] = decoded(content, f"--schema {options.schema}")
    if len(given) > 1:
        raise UserError("a text has one form: give --regex or --schema")
    return given


def folder_and_prompt(options: argparse.Namespace) -> tuple[Path, str]:
    """The model's folder and the prompt, each an option or the next of the words."""
    words = list(options.words)
    options.folder = words.pop(0) if words and options.model is None else None
    folder = model_folder(options)
    prompt = words.pop(0) if words and options.prompt is None else options.prompt
    if prompt is None:
        raise UserError("no prompt was given; put it in quotes behind the model's folder")
    if words:
        raise UserError(f"{words[0]!r} is one word too many; put the prompt in quotes")
    return folder, prompt


def read_prompt(prompt: str) -> str:
    """The prompt, or for "-" the text on standard input, without the line end that echo adds."""
    if prompt != "-":
        return as_text(prompt, "--prompt")
    content = sys.stdin.buffer.read(MOST_PROMPT + 1)
    if len(content) > MOST_PROMPT:
        raise UserError(
            f"the prompt on standard input has more than {MOST_PROMPT / 1e6:.0f} MB; give less"
        )
    return decoded(content, "the prompt on standard input").removesuffix("\n")


def as_text(argument: str, name: str) -> str:
    """An argument as text. Python hides bytes that are not UTF-8 in it as lone surrogates."""
    return decoded(argument.encode("utf-8", "surrogateescape"), name)


def decoded(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{name} is not UTF-8 (byte {error.start}); convert it, for instance with iconv"
        ) from error


def run_chat(options: argparse.Namespace) -> None:
    from nanoeuler.inference import api
    from nanoeuler.inference.chat import Chat
    from nanoeuler.inference.conversation import Conversation
    from nanoeuler.inference.sampling import Sampling
    from nanoeuler.inference.terminal import Terminal

    max_tokens, sampling = longest_reply(options), Sampling(**sampling_options(options))
    folder = model_folder(options)
    model = api.load(folder, **loading_options(options))
    log.lenient(sys.stdin)
    terminal = Terminal()
    template = None if model.template is None else model.prompt
    conversation = Conversation(model.writer, template, options.history)
    chat = Chat(
        *(conversation, sampling, max_tokens, log.write),
        notice_style=terminal.notice,
        fit=terminal.fit,
        shows_speed=terminal.is_one,
    )
    if terminal.is_one:
        chat.notice(f"{folder}: {model.facts}")
    else:
        log.line("chat", f"{model!r} of {folder}")
    terminal.start([*chat.commands, "/quit"])
    chat.pasting = terminal.pasting if terminal.is_one else ""
    chat.run(terminal.read)
    if terminal.prompt:
        log.write("\n")


def register_serve(subparsers: Subparsers) -> None:
    serve = subparsers.add_parser(
        "serve",
        help="models over HTTP: OpenAI's API, and a page",
        description="Serve models over HTTP: OpenAI's API below /v1, and a page at /.",
    )
    meaning = "model folder, or the folder of a stage or a run, such as results/demo"
    serve.add_argument("words", nargs="*", metavar="DIR", help=meaning)
    again = "the same as an option"
    serve.add_argument("--model", nargs="+", metavar="DIR", default=[], help=again)
    serve.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address to listen on (default 127.0.0.1: this machine alone)",
    )
    serve.add_number("--port", "port (default 8000)", 8000)
    serve.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="keys that clients must name, one a line; required for any but a loopback address",
    )
    serve.add_argument(
        "--origin",
        action="append",
        default=[],
        metavar="URL",
        help="address of a page that may use the server, such as https://chat.example.org; "
        "may be given several times",
    )
    serve.add_number(
        "--rows",
        "most replies that a model writes at a time (default 64; on a CPU at most 32; fewer "
        "where memory asks for it)",
    )
    serve.add_number(
        "--context",
        "most tokens of a prompt and its reply together (default: the model's context; fewer "
        "where memory asks for it)",
    )
    serve.add_number(
        "--queue", "most prompts that wait; further ones are answered 429 (default 256)", 256
    )
    serve.add_number(
        "--prefix-cache",
        "megabytes for beginnings of prompts that are kept, so that a model reads what requests "
        "have in common once (default: an eighth of the memory for caches, at most 1000; 0: none)",
        kind=float,
    )
    serve.add_number("--seconds", "longest time for a request (default 600)", 600.0, kind=float)
    serve.add_flag(
        "--give-weights",
        "let those who have a key load models into the page, which then computes them itself; "
        "without keys, this machine alone may, and always does",
    )
    serve.add_flag(
        "--no-speculation",
        "write a reply that is alone token by token, too, without drafts: the same text, slower",
    )
    add_memory_options(serve)
    serve.add_device()
    serve.add_gpus()
    serve.finish(run_serve)


def run_serve(options: argparse.Namespace) -> None:
    folders = [Path(folder) for folder in [*options.words, *options.model]]
    if not folders:
        raise UserError("no model was given; name one or more folders, such as results/demo")
    for name in ("rows", "queue", "seconds"):
        given = getattr(options, name)
        if given is not None and not given > 0:
            raise UserError(f"--{name} {given}: it must be above 0")
    if not 0 <= options.port < 1 << 16:
        raise UserError(f"--port {options.port}: it must be from 0 to 65535")
    from nanoeuler.serving.channel import EngineProcess

    def decode(*arguments: Any) -> None:
        from nanoeuler.serving import engine  # in the child: it starts threads, which a fork loses

        engine.decode(*arguments)

    load = folders, options.rows, options.context, options.prefix_cache, loading_options(options)
    with EngineProcess(decode, options.queue, *load) as process:
        try:
            from nanoeuler.serving import server
        except ModuleNotFoundError as error:
            raise UserError(
                f"the package {error.name} is missing; install the extra `serve`: "
                "make install EXTRAS=serve, or pip install 'nanoeuler[serve]'"
            ) from error
        server.serve(
            process,
            options.host,
            options.port,
            key_file=options.api_key_file,
            origins=options.origin,
            seconds=options.seconds,
            gives_weights=options.give_weights,
        )
