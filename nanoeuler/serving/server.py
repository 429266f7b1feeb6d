"""The process that speaks HTTP: bind the address, serve until SIGTERM, drain."""

import asyncio
import contextlib
import resource
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from nanoeuler import log
from nanoeuler.errors import UserError
from nanoeuler.serving.app import App
from nanoeuler.serving.channel import EngineProcess
from nanoeuler.serving.guard import Connection, check_origins, guarded, is_loopback, read_keys

DRAIN_SECONDS = 30
"""Time that replies have to end after SIGTERM."""

END_SECONDS = 2
"""Time that clients have to read an error when the process that decodes has ended."""

ACCEPT_SECONDS = 0.1
"""Time to read the requests of clients that connected before a signal that came at the start."""

KEEP_ALIVE_SECONDS = 20
"""Silence between two requests of a connection."""

BACKLOG = 1024
"""Connections that may wait to be accepted."""

SPARE_FILES = 64
"""Files that are not connections."""


def serve(
    engine: EngineProcess,
    host: str,
    port: int,
    *,
    key_file: Path | None,
    origins: Sequence[str],
    seconds: float,
    gives_weights: bool,
) -> None:
    """Serve until SIGTERM or SIGINT; replies that are being written are finished.

    Raises `UserError` where the address cannot be used, models cannot be loaded, or the process
    that decodes ends.
    """
    if key_file is None and not is_loopback(host):
        raise UserError(
            f"--host {host}: other machines could use this server; "
            "give --api-key-file, a file with one key a line"
        )
    keys = [] if key_file is None else read_keys(key_file)
    origins = check_origins(origins, keys)
    listening = bind(host, port)
    with listening:
        engine.wait()
        for model in engine.models.values():
            model.tokenizer.encode("a")  # loads its machine code, for which the first one waits
        app = App(engine, seconds, gives_weights or not keys)
        Connection.most = connections_allowed()
        config = uvicorn.Config(
            guarded(app.starlette(), keys, origins),
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
        server = Server(config)
        app.connections = lambda: len(server.server_state.connections)
        app.end = lambda: end(server)
        address = f"[{host}]" if ":" in host else host
        url = f"http://{address}:{listening.getsockname()[1]}"
        run(server, listening, f"{url}/ has the page, {url}/v1 the API; Ctrl-C or SIGTERM drains")
        if engine.ended:
            raise engine.failure()
        log.line("serve", "stopped")


class Server(uvicorn.Server):
    """It also serves the clients that connected before it was told to stop and began."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.should_exit:
            await asyncio.sleep(ACCEPT_SECONDS)


def run(server: uvicorn.Server, listening: socket.socket, greeting: str) -> None:
    """Serve until a signal. uvicorn raises the signal again that it stopped by; its replies are
    whole, so it is no failure. A signal that comes before uvicorn listens to them stops it, too.

    Raises `UserError` where another server, started at the same time, has the address by now."""

    def stop(number: int, frame: object) -> None:
        server.should_exit = True

    kept = {each: signal.signal(each, stop) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        try:
            listening.listen(BACKLOG)  # from here on a client that connects is served
        except OSError as error:
            host, port, *_ = listening.getsockname()
            raise taken(host, port, error) from error
        log.line("serve", greeting)
        server.run(sockets=[listening])
    finally:
        for each, handler in kept.items():
            signal.signal(each, handler)


def end(server: uvicorn.Server) -> None:
    """Stop soon: no reply can be finished."""
    server.config.timeout_graceful_shutdown = END_SECONDS
    server.should_exit = True


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to the address. Raises `UserError` when it cannot be."""
    try:
        kind = socket.SOCK_STREAM
        family, _, protocol, _, address = socket.getaddrinfo(host, port, type=kind)[0]
        # asyncio sends at once (TCP_NODELAY) only where the protocol is named
        listening = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:  # the name is unknown, or can be none
        raise UserError(f"--host {host}: is no address of this machine ({error})") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        listening.close()
        raise taken(host, port, error) from error
    return listening


def taken(host: str, port: int, error: OSError) -> UserError:
    return UserError(
        f"--port {port}: {host} cannot be bound there ({error}); stop what uses the port, "
        "or give another one"
    )


def connections_allowed() -> int:
    """Most connections: a thousand, or fewer where the limit of open files, which this raises as
    far as it may, is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = Connection.most + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            more = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return max(1, min(Connection.most, soft - SPARE_FILES))
    return Connection.most
