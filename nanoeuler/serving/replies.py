"""What clients receive: the objects of OpenAI's API."""

import time
import uuid
from collections.abc import Sequence
from typing import Any

from nanoeuler.serving.jobs import Scored
from nanoeuler.tokenizer import Tokenizer


class Shape:
    """The objects of one request."""

    def __init__(self, kind: str, model: str):
        """`kind` is "completion" or "chat"."""
        self.chat = kind == "chat"
        self.id = f"{'chatcmpl' if self.chat else 'cmpl'}-{uuid.uuid4().hex}"
        self.created, self.model = int(time.time()), model

    def whole(self, choices: list[dict[str, Any]], usage: dict[str, int]) -> dict[str, Any]:
        name = "chat.completion" if self.chat else "text_completion"
        return {**self.head(name), "choices": choices, "usage": usage}

    def chunk(
        self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None
    ) -> dict[str, Any]:
        name = "chat.completion.chunk" if self.chat else "text_completion"
        return {**self.head(name), "choices": choices, "usage": usage}

    def head(self, name: str) -> dict[str, Any]:
        return {"id": self.id, "object": name, "created": self.created, "model": self.model}

    def choice(self, index: int, text: str, logprobs: Any, finish: str | None) -> dict[str, Any]:
        content: dict[str, Any] = {"text": text}
        if self.chat:
            content = {"message": {"role": "assistant", "content": text, "refusal": None}}
        return {"index": index, **content, "logprobs": logprobs, "finish_reason": finish}

    def part(self, index: int, text: str, logprobs: Any, finish: str | None) -> dict[str, Any]:
        """A part of a choice, for a stream."""
        content = {"delta": {"content": text}} if self.chat else {"text": text}
        return {"index": index, **content, "logprobs": logprobs, "finish_reason": finish}

    def role(self, index: int) -> dict[str, Any]:
        """What a chat's stream begins with."""
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


class TokenTexts:
    """Tokens with their log-probabilities, as the two interfaces show them."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer

    def text(self, token: int) -> str:
        """A token as text; one that is not whole UTF-8 as its bytes, like bytes:\\xe2\\x80."""
        content = self.tokenizer.token_bytes(token)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)

    def chat(self, scored: Sequence[Scored]) -> dict[str, Any]:
        return {"content": [self.chat_token(each) for each in scored], "refusal": None}

    def chat_token(self, scored: Scored) -> dict[str, Any]:
        alternatives = [self.entry(*each) for each in scored.likeliest]
        return {**self.entry(scored.token, scored.logprob), "top_logprobs": alternatives}

    def entry(self, token: int, logprob: float | None) -> dict[str, Any]:
        content = list(self.tokenizer.token_bytes(token))
        return {"token": self.text(token), "logprob": logprob, "bytes": content}

    def completion(self, scored: Sequence[Scored], offset: int, likeliest: int) -> dict[str, Any]:
        """`offset` is where in the text the first token begins."""
        offsets = []
        for each in scored:
            offsets.append(offset)
            offset += len(self.text(each.token))
        tops = [
            None if each.logprob is None else {self.text(id): value for id, value in each.likeliest}
            for each in scored
        ]
        return {
            "tokens": [self.text(each.token) for each in scored],
            "token_logprobs": [each.logprob for each in scored],
            "top_logprobs": tops if likeliest else None,
            "text_offset": offsets,
        }
