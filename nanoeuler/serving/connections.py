"""HTTP connections that cannot be held open for nothing.

uvicorn bounds the silence between requests. Here are the other bounds: for a request that does not
arrive, a client that does not read, and the number of connections.
"""

import asyncio
import json
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from nanoeuler.serving.errors import ApiError

ARRIVAL_SECONDS = 20.0
"""Time in which a request must have arrived whole."""

STALL_SECONDS = 20.0
"""Time in which a client must take some of what is sent to it."""

ARRIVED = (h11.DONE, h11.MUST_CLOSE, h11.CLOSED, h11.ERROR)


class GatheringTransport:
    """A transport that sends what is written in one turn of the event loop at once: a call of the
    system for each would cost more than all else."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop):
        self.transport, self.loop = transport, loop
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self.written:
            self.loop.call_soon(self.flush)
        self.written.append(data)

    def flush(self) -> None:
        written, self.written = self.written, []
        if written:
            self.transport.write(b"".join(written))

    def close(self) -> None:
        self.flush()
        self.transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)


class Connection(H11Protocol):
    """A connection with deadlines."""

    most = 1000
    """Most connections at a time."""

    def __init__(self, *arguments: Any, **named: Any):
        super().__init__(*arguments, **named)
        self.arrival: asyncio.TimerHandle | None = None
        self.stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(GatheringTransport(transport, self.loop))  # type: ignore[arg-type]
        if len(self.connections) > self.most:
            self.refuse(ApiError(503, "too many connections; try again", code="busy"))
        else:
            self.arrival = self.loop.call_later(ARRIVAL_SECONDS, transport.abort)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.conn.their_state in ARRIVED:
            self.stop_arrival()
        elif self.arrival is None and not self.transport.is_closing():
            self.arrival = self.loop.call_later(ARRIVAL_SECONDS, self.transport.abort)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE:
            self.stop_arrival()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.stall = self.loop.call_later(STALL_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.stop_stall()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        # a transport that closes waits for its client to read
        self.stall = self.stall or self.loop.call_later(STALL_SECONDS, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop_arrival()
        self.stop_stall()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP."""
        self.refuse(ApiError(400, "this is no HTTP/1.1 request that can be read"))

    def refuse(self, error: ApiError) -> None:
        """Answer without a request, and close."""
        body, status = json.dumps(error.body()).encode(), HTTPStatus(error.status)
        headers = [
            f"HTTP/1.1 {error.status} {status.phrase}",
            *("Content-Type: application/json", f"Content-Length: {len(body)}"),
            *(["Retry-After: 5"] if status is not HTTPStatus.BAD_REQUEST else []),
            *("Connection: close", "", ""),
        ]
        self.transport.write("\r\n".join(headers).encode() + body)
        self.transport.close()
        self.stall = self.stall or self.loop.call_later(STALL_SECONDS, self.transport.abort)

    def stop_arrival(self) -> None:
        if self.arrival is not None:
            self.arrival.cancel()
            self.arrival = None

    def stop_stall(self) -> None:
        if self.stall is not None:
            self.stall.cancel()
            self.stall = None
