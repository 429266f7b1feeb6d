"""OpenAI's API over HTTP: models, completions, chat completions, health, metrics, and the page."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from nanoeuler import log
from nanoeuler.api import LanguageModel
from nanoeuler.model.spec import parameter_count
from nanoeuler.serving.collecting import Part, Replies
from nanoeuler.serving.engine import Busy, Engine
from nanoeuler.serving.errors import ApiError, wrong
from nanoeuler.serving.metrics import Metrics
from nanoeuler.serving.replies import Shape, TokenTexts, usage
from nanoeuler.serving.requests import ChatCompletion, Completion, new_tokens, read

MOST_BODY = 1 << 20
"""Bytes of a request's body."""

COMPLETION_TOKENS = 16
"""New tokens of a completion that asks for no number, as in OpenAI's API."""

PAGE = {"": "text/html", "page.css": "text/css", "page.js": "text/javascript"}
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class App:
    """The server's answers. `seconds` is the most that a request may take."""

    def __init__(self, models: dict[str, LanguageModel], engine: Engine, seconds: float):
        self.models, self.engine, self.seconds = models, engine, seconds
        self.metrics = Metrics()
        self.started = int(time.time())
        self.connections: Callable[[], int] = lambda: 0
        self.page = {name: read_page(name) for name in PAGE}

    def starlette(self) -> Starlette:
        routes = {
            "/health": ("GET", self.health),
            "/metrics": ("GET", self.show_metrics),
            "/v1/models": ("GET", self.list_models),
            "/v1/models/{model}": ("GET", self.show_model),
            "/v1/completions": ("POST", self.complete),
            "/v1/chat/completions": ("POST", self.chat),
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
        self.engine.start(asyncio.get_running_loop())
        yield
        self.engine.stop()

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
        alive = self.engine.thread.is_alive()
        status = {"status": "ok" if alive else "the decoding thread has ended"}
        return JSONResponse(status, 200 if alive else 503)

    async def show_metrics(self, _: Request) -> Response:
        engine = self.engine
        text = self.metrics.text(engine.writing, engine.waiting, self.connections())
        return Response(text, media_type="text/plain; version=0.0.4")

    async def list_models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self.described(n) for n in self.models]})

    async def show_model(self, request: Request) -> Response:
        name = request.path_params["model"]
        self.model(name)
        return JSONResponse(self.described(name))

    def described(self, name: str) -> dict[str, Any]:
        """OpenAI's fields, and in `nanoeuler` what the page asks for."""
        model = self.models[name]
        return {
            "id": name,
            "object": "model",
            "created": self.started,
            "owned_by": "nanoeuler",
            "nanoeuler": {
                "stage": model.stage,
                "chat": model.template is not None,
                "context": model.config.context,
                "parameters": parameter_count(model.config),
                "engine": model.transformer.backend.name,
            },
        }

    def model(self, name: str) -> LanguageModel:
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

    # ---- writing

    async def complete(self, request: Request) -> Response:
        asked = read(Completion, await body(request))
        model = self.model(asked.model)
        prompts = asked.prompts(model)
        replies = Replies(self.engine, self.metrics, model, asked.model)
        fields = {"stops": asked.stops, "likeliest": asked.likeliest}
        for prompt in prompts:
            usual = COMPLETION_TOKENS if asked.max_tokens is None else asked.max_tokens
            tokens = new_tokens(usual, None, prompt, model.config.context)
            if tokens == 0 and not asked.echo:
                raise wrong("max_tokens", "must be at least 1, but with echo")
            scored = bool(asked.echo and asked.likeliest is not None)
            replies.add(
                prompt=prompt,
                samplings=asked.samplings(),
                max_tokens=tokens,
                score_prompt=scored,
                deadline=time.monotonic() + self.seconds,
                **fields,
            )
        echoes = [self.echo(asked, model, prompt) for prompt in prompts]
        return await self.answer(request, asked, replies, Shape("completion", asked.model), echoes)

    def echo(self, asked: Completion, model: LanguageModel, prompt: list[int]) -> str:
        """What a reply's text begins with."""
        return model.tokenizer.decode(shown(asked, prompt)) if asked.echo else ""

    async def chat(self, request: Request) -> Response:
        asked = read(ChatCompletion, await body(request))
        model = self.model(asked.model)
        prompt = asked.prompt(model)
        replies = Replies(self.engine, self.metrics, model, asked.model)
        wanted = asked.max_completion_tokens or asked.max_tokens
        replies.add(
            prompt=prompt,
            samplings=asked.samplings(),
            max_tokens=new_tokens(wanted or None, None, prompt, model.config.context),
            stops=asked.stops,
            likeliest=asked.likeliest,
            deadline=time.monotonic() + self.seconds,
        )
        return await self.answer(request, asked, replies, Shape("chat", asked.model), [""])

    async def answer(
        self,
        request: Request,
        asked: Completion | ChatCompletion,
        replies: Replies,
        shape: Shape,
        echoes: list[str],
    ) -> Response:
        """The replies as one object or as a stream. `echoes` begins those to each prompt."""
        most = self.engine.batches[asked.model].most_rows
        if asked.replies > most:
            raise wrong("n", f"must be at most {most}, the replies that are written at a time")
        try:
            replies.submit()
        except Busy as error:
            headers = {"Retry-After": str(error.seconds)}
            raise ApiError(429, str(error), code="busy", headers=headers) from error
        writer = ChoiceWriter(asked, replies, shape, echoes)
        if asked.stream:
            return ReplyStream(writer.events(), replies)
        try:
            return JSONResponse(await unless_gone(request, writer.whole()))
        finally:
            replies.close()


class ChoiceWriter:
    """The replies to one request in the shape that was asked for."""

    def __init__(
        self,
        asked: Completion | ChatCompletion,
        replies: Replies,
        shape: Shape,
        echoes: list[str],
    ):
        self.asked, self.replies, self.shape, self.echoes = asked, replies, shape, echoes
        self.texts = TokenTexts(replies.model.tokenizer)
        self.offsets: dict[int, int] = {}
        """Where in the text of a reply its next token begins, by reply."""

    async def whole(self) -> dict[str, Any]:
        replies = await self.replies.whole()
        choices = [
            self.shape.choice(
                index, self.text(index, part), self.logprobs(index, part), part.finish
            )
            for index, part in enumerate(replies)
        ]
        return self.shape.whole(choices, self.usage())

    async def events(self) -> AsyncIterator[str]:
        """Server-sent events, up to [DONE]."""
        replies, shape = self.replies, self.shape
        try:
            if shape.chat:
                indices = range(len(replies.jobs) * self.asked.replies)
                yield "".join(event(shape.chunk([shape.role(index)])) for index in indices)
            async for parts in replies.parts():
                chunks = [
                    shape.chunk([shape.part(i, self.text(i, p), self.logprobs(i, p), p.finish)])
                    for i, p in parts.items()
                    if p.text or p.scored or p.finish
                ]
                if chunks:
                    yield "".join(map(event, chunks))
            if self.asked.wants_usage:
                yield event(shape.chunk([], self.usage()))
            yield "data: [DONE]\n\n"
        except ApiError as error:
            yield event(error.body())

    def text(self, index: int, part: Part) -> str:
        """The text of a part, behind the echo of the prompt when it is the first one."""
        return part.text if index in self.offsets else self.echo(index) + part.text

    def echo(self, index: int) -> str:
        return self.echoes[index // self.asked.replies]

    def logprobs(self, index: int, part: Part) -> dict[str, Any] | None:
        first = index not in self.offsets
        offset = self.offsets.setdefault(index, 0)
        if self.asked.likeliest is None:
            return None
        if isinstance(self.asked, ChatCompletion):
            return self.texts.chat(part.scored)
        scored = part.scored
        prompt = index // self.asked.replies
        if first and self.asked.echo:
            given = self.replies.jobs[prompt].prompt
            hidden = len(given) - len(shown(self.asked, given))
            scored = self.replies.scores[prompt][hidden:] + scored
        logprobs = self.texts.completion(scored, offset, self.asked.likeliest)
        self.offsets[index] = offset + sum(len(self.texts.text(each.token)) for each in scored)
        return logprobs

    def usage(self) -> dict[str, int]:
        return usage(self.replies.prompt_tokens, self.replies.tokens)


def shown(asked: Completion, prompt: list[int]) -> list[int]:
    """The tokens of a prompt that its client gave: `</s>` in front of a text is ours."""
    given = asked.prompt if isinstance(asked.prompt, list) and asked.prompt else [asked.prompt]
    return prompt[1:] if isinstance(given[0], str) else prompt


class ReplyStream(StreamingResponse):
    """A stream of events that ends its replies when its client goes away."""

    def __init__(self, events: AsyncIterator[str], replies: Replies):
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(events, headers=headers, media_type="text/event-stream")
        self.replies = replies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.replies.close()


async def unless_gone(request: Request, work: Coroutine[Any, Any, Any]) -> Any:
    """The result of `work`. Raises ClientDisconnect when the client goes away before."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(gone())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            return tasks[0].result()
        raise ClientDisconnect
    finally:
        for task in tasks:
            task.cancel()


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


def event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False, separators=(',', ':'))}\n\n"


def answer(error: ApiError) -> Response:
    return JSONResponse(error.body(), error.status, headers=error.headers)


async def refuse(request: Request, error: Exception) -> Response:
    """The answer to a request for what is not there."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        message = f"{request.method[:20]} is not what this address takes"
    else:
        message = "there is nothing at this address; the API is below /v1"
    return answer(ApiError(error.status_code, message, headers=dict(error.headers or {})))


def read_page(name: str) -> bytes:
    return (resources.files("nanoeuler.serving") / "page" / (name or "index.html")).read_bytes()
