"""Run the server: load models, bind the address, serve until SIGTERM, drain."""

import contextlib
import resource
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from nanoeuler import api, log
from nanoeuler.api import LanguageModel
from nanoeuler.errors import UserError
from nanoeuler.model.files import find_model
from nanoeuler.serving.app import App
from nanoeuler.serving.batch import Batch
from nanoeuler.serving.connections import Connection
from nanoeuler.serving.engine import Engine
from nanoeuler.serving.guard import Guard, is_loopback, read_keys

DRAIN_SECONDS = 30
"""Time that replies have to end after SIGTERM."""

KEEP_ALIVE_SECONDS = 20
"""Silence between two requests of a connection."""

BACKLOG = 1024
"""Connections that may wait to be accepted."""

SPARE_FILES = 64
"""Files that are not connections."""

SWITCH_SECONDS = 0.0001
"""How long a thread may compute in Python while the other waits. The default of 50 times as much
would hold up every token while the event loop is busy."""


def serve(
    models: dict[str, LanguageModel],
    host: str,
    port: int,
    *,
    key_file: Path | None,
    rows: int,
    queue: int,
    seconds: float,
) -> None:
    """Serve until SIGTERM or SIGINT; replies that are being written are finished."""
    if key_file is None and not is_loopback(host):
        raise UserError(
            f"--host {host}: other machines could use this server; "
            "give --api-key-file, a file with one key a line"
        )
    keys = [] if key_file is None else read_keys(key_file)
    listening = bind(host, port)
    with listening:
        batches = {name: Batch(model, rows) for name, model in models.items()}
        for batch in batches.values():
            batch.warm()
        app = App(models, Engine(batches, queue), seconds)
        Connection.most = connections_allowed()
        config = uvicorn.Config(
            Guard(app.starlette(), keys),
            http=Connection,
            ws="none",
            lifespan="on",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=DRAIN_SECONDS,
            backlog=BACKLOG,
        )
        server = uvicorn.Server(config)
        app.connections = lambda: len(server.server_state.connections)
        address = f"[{host}]" if ":" in host else host
        url = f"http://{address}:{listening.getsockname()[1]}"
        listening.listen(BACKLOG)  # from here on a client that connects is served
        for name, model in models.items():
            log.line("model", f"{name}: {model!r}")
        log.line("serve", f"{url}/ has the page, {url}/v1 the API; Ctrl-C or SIGTERM drains")
        run(server, listening)
        log.line("serve", "stopped")


def run(server: uvicorn.Server, listening: socket.socket) -> None:
    """uvicorn raises the signal again that it stopped by; its replies are whole, so it is no
    failure."""
    sys.setswitchinterval(SWITCH_SECONDS)
    kept = {each: signal.signal(each, ignore) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.run(sockets=[listening])
    finally:
        for each, handler in kept.items():
            signal.signal(each, handler)


def ignore(number: int, frame: object) -> None:
    pass


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to the address. Raises `UserError` when it cannot be."""
    try:
        kind = socket.SOCK_STREAM
        family, _, protocol, _, address = socket.getaddrinfo(host, port, type=kind)[0]
        # asyncio sends at once (TCP_NODELAY) only where the protocol is named
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UserError(f"--host {host}: is no address of this machine ({error})") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        listening.close()
        raise UserError(
            f"--port {port}: {host} cannot be bound there ({error}); stop what uses the port, "
            "or give another one"
        ) from error
    return listening


def connections_allowed() -> int:
    """As many as files may be open, and no more than a thousand."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = Connection.most + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            more = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return max(1, min(Connection.most, soft - SPARE_FILES))
    return Connection.most


def load_models(
    folders: Sequence[Path],
    device: str = "auto",
    gpus: int | None = None,
    *,
    speculation: bool = True,
) -> dict[str, LanguageModel]:
    """The models of some folders by the names that clients give: run-stage."""
    models: dict[str, LanguageModel] = {}
    for folder in folders:
        found = find_model(folder)
        name = free_name(model_name(found), models)
        models[name] = api.load(found, device, gpus, speculation=speculation)
    return models


def model_name(folder: Path) -> str:
    """demo-sft for results/demo/sft/model; the folder's own name where it lies otherwise."""
    parts = [part for part in folder.absolute().parts if part != "model"]
    name = "-".join(parts[-2:] if folder.name == "model" else parts[-1:])
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in name)


def free_name(name: str, taken: dict[str, LanguageModel]) -> str:
    """`name`, or name-2, name-3, … where others have it."""
    number = 2
    free = name
    while free in taken:
        free = f"{name}-{number}"
        number += 1
    return free
