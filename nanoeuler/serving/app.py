"""OpenAI's API over HTTP: models, completions, chat completions, health, metrics, and the page."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from importlib import resources
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from nanoeuler import log
from nanoeuler.browser import packing
from nanoeuler.inference import forms
from nanoeuler.model.spec import parameter_count
from nanoeuler.serving.answers import Answer, ChatAnswer, CompletionAnswer, Metrics, Replies
from nanoeuler.serving.channel import Busy, EngineProcess, ServedModel
from nanoeuler.serving.copies import Copies, part
from nanoeuler.serving.errors import ApiError, wrong
from nanoeuler.serving.requests import ChatCompletion, Completion, read, tokens_left
from nanoeuler.serving.traces import Trace, Traces

ADDRESSES = "/v1/models, /v1/completions, /v1/chat/completions and /trace"

MOST_BODY = 1 << 20
"""Bytes of a request's body."""

PAGE = {
    "": "text/html",
    "page.css": "text/css",
    **dict.fromkeys(("browser.js", "here.js", "page.js"), "text/javascript"),
}
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

IN_PLACE = 1 << 14
"""Bytes of a body whose prompts are read in the event loop: a thread would take longer."""

Found = TypeVar("Found")
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class App:
    """The server's answers. `seconds` is the most that a request may take; `gives_weights`: pages
    may load models."""

    def __init__(self, engine: EngineProcess, seconds: float, gives_weights: bool):
        self.models, self.engine, self.seconds = engine.models, engine, seconds
        self.traces = Traces({name: model.folder for name, model in self.models.items()})
        self.copies = Copies(self.models, gives_weights)
        self.metrics = Metrics()
        self.started = int(time.time())
        self.connections: Callable[[], int] = lambda: 0
        self.end: Callable[[], None] = lambda: None
        self.page = {name: read_page(name) for name in PAGE}

    def starlette(self) -> Starlette:
        routes = {
            "/v1/completions": ("POST", self.complete),
            "/v1/chat/completions": ("POST", self.chat),
            "/v1/models": ("GET", self.list_models),
            "/v1/models/{model}": ("GET", self.show_model),
            "/trace": ("POST", self.trace),
            "/browser/{model}": ("GET", self.show_copy),
            "/browser/{model}/weights": ("GET", self.show_weights),
            "/health": ("GET", self.health),
            "/metrics": ("GET", self.show_metrics),
            **{f"/{name}": ("GET", self.show_page) for name in PAGE},
        }
        return Starlette(
            routes=[
                Route(path, self.counted(path, handler), methods=[method])
                for path, (method, handler) in routes.items()
            ],
            exception_handlers={HTTPException: refuse},
            lifespan=self.lifespan,
        )

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self.engine.start(asyncio.get_running_loop(), self.end)
        yield

    def counted(self, path: str, handler: Handler) -> Handler:
        """`handler`, with its errors as answers, and its answers counted."""

        async def handle(request: Request) -> Response:
            try:
                response = await handler(request)
            except ApiError as error:
                response = answer(error)
            except ClientDisconnect:
                response = Response(status_code=499)  # nobody reads it
            except Exception as error:
                log.line("error", f"{path}: {error!r}")
                response = answer(ApiError(500, "the server failed; its log says why"))
            self.metrics.requests[path, response.status_code] += 1
            return response

        return handle

    # ---- about the server

    async def health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})  # it ends with the process that decodes

    async def show_metrics(self, _: Request) -> Response:
        engine = self.engine
        text = self.metrics.text(engine.writing, engine.waiting, self.connections())
        return Response(text, media_type="text/plain; version=0.0.4")

    async def list_models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self.described(n) for n in self.models]})

    async def show_model(self, request: Request) -> Response:
        return JSONResponse(self.described(request.path_params["model"]))

    def described(self, name: str) -> dict[str, Any]:
        """OpenAI's fields, and in `nanoeuler` what the page asks for."""
        model = self.model(name)
        return {
            "id": name,
            "object": "model",
            "created": self.started,
            "owned_by": "nanoeuler",
            "nanoeuler": {
                "stage": model.stage,
                "chat": model.template is not None,
                "context": model.context,
                "parameters": parameter_count(model.config),
                "engine": model.engine,
                "forms": forms.installed(),
                "traced": name in self.traces.indexed,
                "browser": self.copies.offers[name],
            },
        }

    def model(self, name: str) -> ServedModel:
        if name not in self.models:
            known = ", ".join(self.models)
            raise ApiError(
                404,
                f"there is no model {name[:100]!r}; this server has {known}",
                param="model",
                code="model_not_found",
            )
        return self.models[name]

    async def show_page(self, request: Request) -> Response:
        name = request.url.path[1:]
        return Response(self.page[name], media_type=PAGE[name], headers=PAGE_HEADERS)

    async def show_copy(self, request: Request) -> Response:
        """What the page must know of a model that it computes itself."""
        described, _ = await self.copy(request)
        return JSONResponse(described)

    async def show_weights(self, request: Request) -> Response:
        _, weights = await self.copy(request)
        content, status, headers = part(weights, request.headers.get("range"))
        kind = "application/octet-stream"
        return Response(content, status, headers | {"Cache-Control": "no-store"}, kind)

    async def copy(self, request: Request) -> tuple[dict[str, Any], bytes]:
        name = request.path_params["model"]
        self.model(name)
        return await self.copies.copy(name)

    async def trace(self, request: Request) -> Response:
        asked = read(Trace, await body(request))
        self.model(asked.model)
        try:
            async with asyncio.timeout(self.seconds):
                return JSONResponse(await unless_gone(request, self.traces.trace(asked)))
        except TimeoutError as error:
            message = "the trace took longer than this server allows; give a shorter text"
            raise ApiError(504, message, code="timeout") from error

    # ---- writing

    async def complete(self, request: Request) -> Response:
        content = await body(request)
        asked = read(Completion, content)
        model = self.model(asked.model)
        replies = self.submit(asked, await apart(content, asked.prompts, model))
        return await send(request, CompletionAnswer(asked, replies, model.tokenizer))

    async def chat(self, request: Request) -> Response:
        content = await body(request)
        asked = read(ChatCompletion, content)
        model = self.model(asked.model)
        prompt = await apart(content, asked.prompt, model)
        formed = asked.schema_asked is not None or asked.callable
        grammar = await asyncio.to_thread(asked.grammar, model) if formed else None
        replies = self.submit(asked, [prompt], grammar)
        return await send(request, ChatAnswer(asked, replies, model.tokenizer))

    def submit(
        self,
        asked: Completion | ChatCompletion,
        prompts: list[list[int]],
        grammar: str | None = None,
    ) -> Replies:
        """Let the replies to some prompts be written, of a form with a grammar of
        `inference.forms`. Raises `ApiError`."""
        model = self.models[asked.model]
        most = model.most_rows
        if asked.replies > most:
            raise wrong("n", f"must be at most {most}, the replies that are written at a time")
        if len(prompts) > self.engine.longest_queue:
            longest = self.engine.longest_queue
            raise wrong("prompt", f"give at most {longest} prompts, which may wait here at a time")
        param = "messages" if isinstance(asked, ChatCompletion) else "prompt"
        jobs = [
            {
                "prompt": prompt,
                "samplings": asked.samplings(),
                "max_tokens": tokens_left(asked.new_tokens, prompt, model.context, param),
                "stops": asked.stops,
                "likeliest": asked.likeliest,
                "score_prompt": asked.score_prompt,
                "grammar": grammar,
                "deadline": time.monotonic() + self.seconds,
            }
            for prompt in prompts
        ]
        try:
            return Replies(self.engine, self.metrics, asked.model, jobs)
        except Busy as error:
            headers = {"Retry-After": str(error.seconds)}
            raise ApiError(429, str(error), code="busy", headers=headers) from error


async def apart(content: bytes, work: Callable[[ServedModel], Found], model: ServedModel) -> Found:
    """The result of `work`, in a thread if it may take long: other clients do not wait for it."""
    if len(content) < IN_PLACE:
        return work(model)
    return await asyncio.to_thread(work, model)


async def send(request: Request, answer: Answer) -> Response:
    """The answer whole or as a stream. The replies end when their client goes away."""
    if answer.asked.stream:
        return ReplyStream(answer)
    try:
        return JSONResponse(await unless_gone(request, answer.whole()))
    finally:
        answer.replies.close()


class ReplyStream(Response):
    """A stream of events that ends its replies when its client goes away.

    Starlette's own makes a task group for each stream, which takes longer than a reply's parts.
    """

    def __init__(self, answer: Answer):
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(None, headers=headers, media_type="text/event-stream")
        del self.headers["content-length"]  # not known yet
        self.answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        replies = self.answer.replies

        async def watch() -> None:
            await gone(receive)
            replies.fail("gone")

        watching = asyncio.ensure_future(watch())
        start = {"status": self.status_code, "headers": self.raw_headers}
        try:
            async for part in self.answer.events():
                if start:  # in one packet with the first part
                    await send({"type": "http.response.start", **start})
                    start = {}
                body = part.encode()
                await send({"type": "http.response.body", "body": body, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            watching.cancel()
            replies.close()


async def unless_gone(request: Request, work: Coroutine[Any, Any, Any]) -> Any:
    """The result of `work`. Raises ClientDisconnect when the client goes away before."""

    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(gone(request.receive))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            return tasks[0].result()
        raise ClientDisconnect
    finally:
        for task in tasks:
            task.cancel()


async def gone(receive: Receive) -> None:
    """Wait until the client goes away."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def body(request: Request) -> bytes:
    """The body of a request. Raises `ApiError` for one that is too large."""
    content = bytearray()
    declared = request.headers.get("content-length", "0")
    too_large = declared.isdecimal() and int(declared) > MOST_BODY
    if not too_large:
        async for piece in request.stream():
            content += piece
            if too_large := len(content) > MOST_BODY:
                break
    if too_large:
        raise ApiError(
            413,
            f"the body is larger than {MOST_BODY:,} bytes; shorten it",
            headers={"Connection": "close"},
        )
    return bytes(content)


def answer(error: ApiError) -> Response:
    return JSONResponse(error.body(), error.status, headers=error.headers)


async def refuse(request: Request, error: Exception) -> Response:
    """The answer to a request for what is not there."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        message = f"{request.method[:20]} is not what this address takes"
    else:
        message = f"there is nothing at {request.url.path[:100]}; this server has {ADDRESSES}"
    return answer(ApiError(error.status_code, message, headers=dict(error.headers or {})))


def read_page(name: str) -> bytes:
    if name == "browser.js":
        return "\n".join(map(packing.script, packing.SCRIPTS)).encode()
    return (resources.files("nanoeuler.serving") / "page" / (name or "index.html")).read_bytes()
