"""Replies to a request, as they are written, as objects of OpenAI's API, and what they count.

Pieces that arrive while a client is served are taken together, so that a slow client gets few large
parts instead of many small ones. What waits is bounded by the tokens that were asked for.
"""

import asyncio
import json
import random
import re
import time
from abc import abstractmethod
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

from nanoeuler.serving.channel import EngineProcess, Piece, Scored
from nanoeuler.serving.errors import ApiError, failed
from nanoeuler.serving.requests import Asked, ChatCompletion, Completion
from nanoeuler.tokenizer import StreamDecoder, Tokenizer

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the histograms' buckets."""


class Histogram:
    """How often something took how long."""

    def __init__(self, name: str, meaning: str):
        self.name, self.meaning = name, meaning
        self.counts = [0] * (len(SECONDS) + 1)
        self.total = 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        self.counts[bisect_left(SECONDS, seconds)] += times
        self.total += seconds * times

    def lines(self) -> Iterator[str]:
        yield from head(self.name, self.meaning, "histogram")
        below = 0
        for bound, count in zip((*map(str, SECONDS), "+Inf"), self.counts, strict=True):
            below += count
            yield f'{self.name}_bucket{{le="{bound}"}} {below}'
        yield f"{self.name}_sum {self.total:.6f}"
        yield f"{self.name}_count {below}"


class Metrics:
    """Counters of a server since its start, in Prometheus's text format (version 0.0.4)."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()  # by path and status
        self.tokens: Counter[tuple[str, str]] = Counter()  # by model, and prompt or reply
        self.gone = 0
        self.first_token = Histogram(
            "nanoeuler_first_token_seconds", "Time from a request to its first token."
        )
        self.next_token = Histogram(
            "nanoeuler_next_token_seconds", "Time from a token of a reply to the next."
        )

    def text(self, writing: int, waiting: int, connections: int) -> str:
        return "\n".join(self.lines(writing, waiting, connections)) + "\n"

    def lines(self, writing: int, waiting: int, connections: int) -> Iterator[str]:
        yield from head("nanoeuler_requests_total", "Requests answered.", "counter")
        for (path, status), count in sorted(self.requests.items()):
            yield f'nanoeuler_requests_total{{path="{path}",status="{status}"}} {count}'
        yield from head("nanoeuler_tokens_total", "Tokens read and written.", "counter")
        for (model, kind), count in sorted(self.tokens.items()):
            yield f'nanoeuler_tokens_total{{model="{model}",kind="{kind}"}} {count}'
        gone = "Requests whose client went away before the end."
        for name, meaning, kind, value in (
            ("clients_gone_total", gone, "counter", self.gone),
            ("replies_running", "Replies that are being written.", "gauge", writing),
            ("jobs_waiting", "Prompts that wait for a place.", "gauge", waiting),
            ("connections", "Open connections.", "gauge", connections),
        ):
            yield from head(f"nanoeuler_{name}", meaning, kind)
            yield f"nanoeuler_{name} {value}"
        yield from self.first_token.lines()
        yield from self.next_token.lines()


def head(name: str, meaning: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"


@dataclass
class Part:
    """A reply's new text since the last part, or all of it."""

    text: str = ""
    scored: list[Scored] = field(default_factory=list)
    finish: str | None = None


class Replies:
    """All replies to one request, numbered by prompt and choice.

    `jobs` has the fields of each prompt's `Job`. Raises `Busy` when there is no room for them.
    """

    def __init__(
        self, engine: EngineProcess, metrics: Metrics, model: str, jobs: Sequence[dict[str, Any]]
    ):
        self.engine, self.metrics, self.model = engine, metrics, model
        tokenizer, choices = engine.models[model].tokenizer, len(jobs[0]["samplings"])
        self.prompts: list[list[int]] = [job["prompt"] for job in jobs]
        self.texts = [
            StreamDecoder(tokenizer, job["stops"]) for job in jobs for _ in range(choices)
        ]
        self.began = time.monotonic()
        self.last: dict[int, float] = {}
        """When each reply got its last tokens."""
        self.new: dict[int, Part] = {}
        self.unfinished = set(range(len(self.texts)))
        self.tokens = self.cached = 0
        self.failure: str | None = None
        self.arrived, self.ended = asyncio.Event(), asyncio.Event()
        receivers = [partial(self.receive, prompt * choices) for prompt in range(len(jobs))]
        self.numbers = engine.submit(model, list(zip(receivers, jobs, strict=True)))
        metrics.tokens[model, "prompt"] += self.prompt_tokens

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))

    def receive(self, first: int, piece: Piece) -> None:
        """Take a piece of one of the replies from number `first` on."""
        if piece.choice < 0:
            self.fail(piece.finish)
            return
        self.arrived.set()
        now, tokens, index = time.monotonic(), len(piece.ids), first + piece.choice
        if tokens:
            if not self.last:
                self.metrics.first_token.add(now - self.began)
            elif index in self.last:
                self.metrics.next_token.add((now - self.last[index]) / tokens, tokens)
            self.last[index] = now
        self.tokens += tokens
        self.cached += piece.cached
        self.metrics.tokens[self.model, "cached"] += piece.cached
        self.metrics.tokens[self.model, "reply"] += tokens
        part, text = self.new.setdefault(index, Part()), self.texts[index]
        part.text += text.push(*piece.ids)
        part.scored += piece.scored
        if piece.finish:
            part.text += text.flush()
            part.finish = piece.finish
            self.unfinished.remove(index)
        if not self.unfinished:
            self.engine.note_reply(now - self.began)
            self.ended.set()

    def fail(self, kind: str | None) -> None:
        """Give up; see `errors.failed` for the kinds."""
        self.failure = kind
        self.arrived.set()
        self.ended.set()

    async def parts(self) -> AsyncIterator[dict[int, Part]]:
        """Yield the parts of all replies until each has ended. Raises `ApiError`."""
        while self.unfinished or self.new:
            await self.arrived.wait()
            self.arrived.clear()
            if self.failure:
                raise failed(self.failure)
            new, self.new = self.new, {}
            yield new

    async def whole(self) -> Sequence[Part]:
        """Every reply, once all have ended. Raises `ApiError`."""
        await self.ended.wait()
        if self.failure:
            raise failed(self.failure)
        return [part for _, part in sorted(self.new.items())]

    def close(self) -> None:
        """Nobody wants what is missing."""
        self.engine.leave(self.numbers, cancel=bool(self.unfinished))
        self.metrics.gone += bool(self.unfinished and self.failure in (None, "gone"))


Kind = TypeVar("Kind", bound=Asked)


class Answer(Generic[Kind]):
    """The replies to a request, as one object or as a stream of events."""

    prefix: str
    """Start of the answer's id."""
    whole_name: str
    part_name: str

    def __init__(self, asked: Kind, replies: Replies, tokenizer: Tokenizer):
        self.asked, self.replies, self.tokenizer = asked, replies, tokenizer
        self.id = f"{self.prefix}-{random.getrandbits(128):032x}"
        self.created = int(time.time())

    async def whole(self) -> dict[str, Any]:
        parts = await self.replies.whole()
        choices = [self.choice(*each, streamed=False) for each in enumerate(parts)]
        return self.object(self.whole_name, choices, self.usage())

    async def events(self) -> AsyncIterator[str]:
        """Server-sent events, up to [DONE]."""
        try:
            async for parts in self.replies.parts():
                events = [
                    event(self.object(self.part_name, [self.choice(*part, streamed=True)], None))
                    for part in parts.items()
                    if part[1].text or part[1].scored or part[1].finish
                ]
                if not self.replies.unfinished:  # the rest goes out with the last part
                    if self.asked.wants_usage:
                        events.append(event(self.object(self.part_name, [], self.usage())))
                    events.append("data: [DONE]\n\n")
                if events:
                    yield "".join(events)
        except ApiError as error:
            yield event(error.body())

    def object(
        self, name: str, choices: list[dict[str, Any]], usage: dict[str, Any] | None
    ) -> dict[str, Any]:
        head = {"id": self.id, "object": name, "created": self.created, "model": self.asked.model}
        return {**head, "choices": choices, "usage": usage}

    def choice(self, index: int, part: Part, *, streamed: bool) -> dict[str, Any]:
        content = self.content(index, part, streamed=streamed)
        return {"index": index, **content, "finish_reason": part.finish}

    @abstractmethod
    def content(self, index: int, part: Part, *, streamed: bool) -> dict[str, Any]:
        """Text and log-probabilities of a reply, or of a part of it where they are streamed."""

    def usage(self) -> dict[str, Any]:
        prompt, reply = self.replies.prompt_tokens, self.replies.tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": reply,
            "total_tokens": prompt + reply,
            "prompt_tokens_details": {"cached_tokens": self.replies.cached},
        }

    def text(self, token: int) -> str:
        """A token as text; one that is not whole UTF-8 as its bytes, like bytes:\\xe2\\x80."""
        content = self.tokenizer.token_bytes(token)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)


CALL = re.compile(r'\{"name": "([^"]*)", "arguments": ')
"""See `forms.call_head`."""


class CallReader:
    """Finds the call of a function in a reply that comes in parts."""

    def __init__(self) -> None:
        self.held = ""
        """Text that is not read yet: of the head of a call, or what may be its last brace."""
        self.is_text = self.is_call = False

    def push(self, part: Part) -> tuple[str, dict[str, Any]]:
        """New text that is no call, and what is new of one."""
        self.held += part.text
        self.is_text |= not self.is_call and self.held[:1] not in ("", "{")
        call: dict[str, Any] = {}
        if not self.is_text and not self.is_call and (head := CALL.match(self.held)):
            self.is_call, self.held = True, self.held[head.end() :]
            call = {"id": f"call_{random.getrandbits(96):024x}", "type": "function"}
            call["function"] = {"name": head[1], "arguments": ""}
        if self.is_call:
            end = len(self.held) - (part.finish != "length")
            new, self.held = self.held[:end], self.held[end:]
            if new:
                function = call.setdefault("function", {})
                function["arguments"] = new
            return "", call
        if self.is_text or part.finish:
            text, self.held = self.held, ""
            return text, call
        return "", call


class ChatAnswer(Answer[ChatCompletion]):
    prefix = "chatcmpl"
    whole_name = "chat.completion"
    part_name = "chat.completion.chunk"

    def __init__(self, asked: ChatCompletion, replies: Replies, tokenizer: Tokenizer):
        super().__init__(asked, replies, tokenizer)
        self.begun: set[int] = set()
        """Replies of which a part was streamed."""
        self.calls: defaultdict[int, CallReader] = defaultdict(CallReader)

    def choice(self, index: int, part: Part, *, streamed: bool) -> dict[str, Any]:
        if not self.asked.callable:
            return super().choice(index, part, streamed=streamed)
        text, call = self.calls[index].push(part)
        ends = self.calls[index].is_call and part.finish == "stop"
        rest = replace(part, text=text, finish="tool_calls" if ends else part.finish)
        choice = super().choice(index, rest, streamed=streamed)
        if call:
            numbered = {"index": 0, **call} if streamed else call
            choice["delta" if streamed else "message"] |= {
                "content": None,
                "tool_calls": [numbered],
            }
        return choice

    def content(self, index: int, part: Part, *, streamed: bool) -> dict[str, Any]:
        tokens = [self.token(each) for each in part.scored if each.logprob is not None]
        logprobs = None if self.asked.likeliest is None else {"content": tokens, "refusal": None}
        results = [  # of the calculator: OpenAI's entries have a log-probability each
            {"index": at, **self.entry(each.token, None)}
            for at, each in enumerate(part.scored)
            if each.logprob is None
        ]
        added = {"nanoeuler": {"results": results}} if results else {}
        message = {"role": "assistant", "content": part.text, "refusal": None}
        if not streamed:
            return {"message": message, "logprobs": logprobs, **added}
        delta = {"content": part.text} if index in self.begun else message
        self.begun.add(index)
        return {"delta": delta, "logprobs": logprobs, **added}

    def token(self, scored: Scored) -> dict[str, Any]:
        alternatives = [self.entry(*each) for each in scored.likeliest]
        return {**self.entry(scored.token, scored.logprob), "top_logprobs": alternatives}

    def entry(self, token: int, logprob: float | None) -> dict[str, Any]:
        content = list(self.tokenizer.token_bytes(token))
        return {"token": self.text(token), "logprob": logprob, "bytes": content}


class CompletionAnswer(Answer[Completion]):
    prefix = "cmpl"
    whole_name = part_name = "text_completion"

    def __init__(self, asked: Completion, replies: Replies, tokenizer: Tokenizer):
        super().__init__(asked, replies, tokenizer)
        self.offsets: dict[int, int] = {}
        """Where in the text of a reply its next token begins, by reply."""
        self.decoders: dict[int, StreamDecoder] = {}
        """They tell how many characters each token adds."""

    def content(self, index: int, part: Part, *, streamed: bool) -> dict[str, Any]:
        text, scored = part.text, part.scored
        prompt: list[int] = []
        if self.asked.echo and index not in self.offsets:
            hidden = self.asked.hidden
            prompt = self.replies.prompts[index // self.asked.replies][hidden:]
            text = self.tokenizer.decode(prompt) + text
            scored = scored[hidden:]
        if self.asked.likeliest is None:
            self.offsets[index] = 0
            return {"text": text, "logprobs": None}
        return {"text": text, "logprobs": self.logprobs(index, scored, len(prompt))}

    def logprobs(self, index: int, scored: list[Scored], echoed: int) -> dict[str, Any]:
        """The scores of a reply's new tokens, the first `echoed` of which are the prompt's."""
        decoder = self.decoders.setdefault(index, StreamDecoder(self.tokenizer))
        at, offsets = self.offsets.get(index, 0), []
        if echoed and self.tokenizer.adds_space:  # it may have put one in front, which is no text
            first = [scored[0].token]
            at = len(self.tokenizer.decode(first)) - len(decoder.push(*first) + decoder.flush())
        for number, each in enumerate(scored, 1):
            if not b"\x80" <= self.tokenizer.token_bytes(each.token)[:1] <= b"\xbf":
                at += len(decoder.flush())  # bytes of a character that it does not go on with
            offsets.append(max(at, 0))
            at += len(decoder.push(each.token))
            if number == echoed:
                at += len(decoder.flush())  # the reply is a text of its own
        self.offsets[index] = at
        tops = [
            None if each.logprob is None else {self.text(id): value for id, value in each.likeliest}
            for each in scored
        ]
        return {
            "tokens": [self.text(each.token) for each in scored],
            "token_logprobs": [each.logprob for each in scored],
            "top_logprobs": tops if self.asked.likeliest else None,
            "text_offset": offsets,
        }


def event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False, separators=(',', ':'))}\n\n"
