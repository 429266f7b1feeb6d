"""The subcommand `serve`."""

import argparse
from pathlib import Path
from typing import Any

from nanoeuler.cli.options import add_device, add_gpus, finish
from nanoeuler.errors import UserError


def register(subparsers: argparse._SubParsersAction) -> None:
    """Add this subcommand."""
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
    serve.add_argument("--port", type=int, default=8000, metavar="N", help="port (default 8000)")
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
    serve.add_argument(
        "--rows",
        type=int,
        metavar="N",
        help="most replies that a model writes at a time (default 64; on a CPU at most 32; fewer "
        "where memory asks for it)",
    )
    serve.add_argument(
        "--context",
        type=int,
        metavar="N",
        help="most tokens of a prompt and its reply together (default: the model's context; fewer "
        "where memory asks for it)",
    )
    serve.add_argument(
        "--queue",
        type=int,
        default=256,
        metavar="N",
        help="most prompts that wait; further ones are answered 429 (default 256)",
    )
    serve.add_argument(
        "--seconds",
        type=float,
        default=600.0,
        metavar="N",
        help="longest time for a request (default 600)",
    )
    serve.add_argument(
        "--no-speculation",
        action="store_true",
        help="write a reply that is alone token by token, too, without drafts: the same text, "
        "slower",
    )
    add_device(serve)
    add_gpus(serve)
    finish(serve, run_serve)


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

    load = (
        *(folders, options.rows, options.context),
        *(options.device, options.gpus, not options.no_speculation),
    )
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
        )
