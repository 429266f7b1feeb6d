"""Replies of a given form: of a regular expression, or JSON that is valid by a schema.

The library llguidance knows which tokens may follow those of a reply. The sampler takes no others.
`</s>` may follow where the form is whole, and nothing else where it can be no longer.
"""

import functools
import importlib.util
import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nanoeuler.errors import UserError, brief
from nanoeuler.system.machine import threads_allowed
from nanoeuler.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLTokenizer

MOST_BYTES = 1 << 15
"""Longest regular expression and schema. They compile in up to 0.1 s, in which a server writes
nothing else."""

MOST_FORCED = 1 << 15
"""Longest text that a form may begin with in one way only: a schema may require itself for ever."""

JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""As `json.dumps` writes it. With free white space, a reply may be nothing else up to its limit."""


MOST_THREADS = 8
"""Threads that find the tokens of many replies: more cost more than they bring."""

MOST_SECONDS = 0.5
"""Longest time of a core to compile a form. Some short ones would take years."""

MOST_WAIT = 10.0
"""Seconds in which it gets them, unless the machine is too busy."""

COMPILE = f"""
import signal, sys
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
class Bytes:
    eos_token_id, bos_token_id, special_token_ids = 256, None, [256]
    tokens = [*(bytes([byte]) for byte in range(256)), b"end"]
    def __call__(self, text):
        return list(text)
bytewise = LLTokenizer(TokenizerWrapper(Bytes()), n_vocab=257)
signal.setitimer(signal.ITIMER_PROF, {MOST_SECONDS})  # of this process, which then ends
LLMatcher(bytewise, sys.stdin.read(), log_level=0).compute_bitmask()
"""


class Form:
    """The form of one reply, and how far the reply has come."""

    def __init__(self, tokenizer: Tokenizer, grammar: str):
        """`grammar` is of `regex_grammar` or `schema_grammar`. See `failure` for what is wrong."""
        from llguidance import LLMatcher

        self.end_id = tokenizer.end_id
        self.matcher = LLMatcher(library_tokenizer(tokenizer), grammar, log_level=0)
        self.taken = 0
        """Tokens of the reply that the matcher has."""
        self.failure = self.error()
        """Why the reply cannot be given its form, in a few words; empty while it can."""

    @staticmethod
    @functools.lru_cache(maxsize=32)
    def of(tokenizer: Tokenizer, grammar: str) -> "Form":
        """The form, kept: what the library learns about it in one reply helps in the next."""
        return Form(tokenizer, grammar)

    @classmethod
    def checked(cls, tokenizer: Tokenizer, grammar: str, name: str) -> "Form":
        """The form. Raises `UserError` about `name` where it is none, or no text has it."""
        if reason := refusal(grammar):
            raise UserError(f"{name} cannot be kept to: {reason}")
        form = cls.of(tokenizer, grammar).begin()
        token_masks([form], [[]], np.ones(tokenizer.vocab_size, np.bool_))
        if len(form.matcher.compute_ff_bytes()) > MOST_FORCED:
            form.failure = "its texts have no end"
        if form.failure:
            raise UserError(f"{name} cannot be kept to: {form.failure}")
        return form

    def begin(self) -> "Form":
        """The same form for another reply, from its beginning."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, matcher=self.matcher.deep_copy())
        return other

    def is_whole(self, reply: Sequence[int], allowed_V: np.ndarray) -> bool:
        """May nothing but `</s>` follow these tokens?"""
        (mask_W,) = token_masks([self], [reply], allowed_V)
        return not self.failure and np.array_equal(mask_W, self.end_alone(len(mask_W)))

    def end_alone(self, words: int) -> np.ndarray:
        """The mask of `</s>`, (W,)."""
        mask_W = np.zeros(words, np.uint32)
        mask_W[self.end_id // 32] = 1 << self.end_id % 32
        return mask_W

    def error(self) -> str:
        """The library's error in one line."""
        if not self.matcher.is_error():
            return ""
        lines = self.matcher.get_error().splitlines()
        if lines[0].startswith("NoExtension"):
            return "no text has this form"
        if lines[0].startswith("panic") or "Too many items" in lines[0]:
            return "it is too complex"
        said = [line for line in lines if line.startswith("error: ")]
        return (said or lines)[0].removeprefix("error: ")[:200]


def token_masks(
    forms: Sequence[Form | None], replies: Sequence[Sequence[int]], allowed_V: np.ndarray
) -> np.ndarray:
    """Which tokens of `allowed_V` may follow those of each reply, as bits, the lowest first.

    Returns (B, ⌈V / 32⌉) uint32. Where none may, or the library gives up: `</s>`, and the form's
    `failure` says why.
    """
    from llguidance.numpy import consume_token_par, fill_next_token_bitmask_par

    bits = np.packbits(allowed_V, bitorder="little")
    allowed_W = np.pad(bits, (0, -len(bits) % 4)).view(np.int32)
    masks_BW = np.full((len(forms), len(allowed_W)), -1, np.int32)
    formed = [(number, form) for number, form in enumerate(forms) if form]
    new = [(form, replies[number][form.taken :]) for number, form in formed]
    for place in range(max((len(ids) for _, ids in new), default=0)):
        tokens = [(form.matcher, ids[place]) for form, ids in new if place < len(ids)]
        consume_token_par(threads(), tokens)
    for form, ids in new:
        form.taken += len(ids)
    if formed:
        matchers = [(form.matcher, number) for number, form in formed]
        fill_next_token_bitmask_par(threads(), matchers, masks_BW)
    masks_BW &= allowed_W
    found_B = np.count_nonzero(masks_BW, axis=1)
    for number, form in formed:
        form.failure = form.error() or ("" if found_B[number] else "no token may follow")
        if form.failure:
            masks_BW[number] = form.end_alone(len(allowed_W)).view(np.int32)
    return masks_BW.view(np.uint32)


@functools.cache
def threads() -> "LLExecutor":
    """Threads that find the tokens of many replies at once."""
    from llguidance import LLExecutor

    return LLExecutor(num_threads=min(MOST_THREADS, threads_allowed()))


@functools.lru_cache(maxsize=32)
def refusal(grammar: str) -> str:
    """Why a grammar is too much to compile, or nothing: a process of its own, which can be ended,
    tries it first."""
    command = [sys.executable, "-I", "-c", COMPILE]
    try:
        tried = subprocess.run(
            command, input=grammar, capture_output=True, text=True, timeout=MOST_WAIT
        )
    except subprocess.TimeoutExpired as error:  # which tells nothing of the form, so is not kept
        raise UserError("this machine was too busy to compile the form; try again") from error
    if tried.returncode == -signal.SIGPROF:
        return "it takes too long to compile"
    return "it is too complex" if tried.returncode else ""


def regex_grammar(regex: str) -> str:
    """The grammar of replies that a regular expression matches as a whole."""
    return library().LLMatcher.grammar_from_regex(short(regex, "the regular expression"))


def schema_grammar(schema: str | dict[str, Any]) -> str:
    """The grammar of JSON that is valid by a schema, or by the JSON text of one.

    Raises `UserError` for what is no JSON object, and for a schema that is too long.
    """
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        return library().LLMatcher.grammar_from_json_schema(
            short(text, "the schema"), overrides=JSON_STYLE
        )
    except (TypeError, ValueError, RecursionError) as error:
        reason = str(error).replace("Expecting object schema to apply options", "it is no object")
        reason = "it is nested too deeply" if "recursion" in reason else reason
        raise UserError(f"the schema cannot be read: {reason}") from error


def call_grammar(arguments: Mapping[str, dict[str, Any]], *, or_text: bool) -> str:
    """The grammar of a call of a function: `call_head`, arguments by its JSON schema, and a brace.

    `or_text`: or of any text that does not begin with a brace.
    """
    rules = [f"start: {' | '.join(f'call{n}' for n in range(len(arguments)))}"]
    if or_text:
        rules = [f"{rules[0]} | TEXT", "TEXT: /([^{](.|\\n)*)?/"]
    try:
        for number, (name, schema) in enumerate(arguments.items()):
            styled = json.dumps({"type": "object", **schema, "x-guidance": JSON_STYLE})
            rules.append(f'call{number}: {json.dumps(call_head(name))} arguments{number} "}}"')
            rules.append(f"arguments{number}: %json {styled}")
    except RecursionError as error:
        raise UserError("the functions' arguments are nested too deeply") from error
    return library().LLMatcher.grammar_from_lark(short("\n".join(rules), "the functions"))


def call_head(name: str) -> str:
    return f'{{"name": "{name}", "arguments": '


def short(text: str, name: str) -> str:
    """`text`. Raises `UserError` for what is no text, or too long."""
    try:
        size = len(text.encode())
    except (AttributeError, UnicodeEncodeError):
        raise UserError(f"{name} is {brief(text)}: it must be text that UTF-8 can carry") from None
    if size > MOST_BYTES:
        raise UserError(f"{name} has {size:,} bytes; give at most {MOST_BYTES:,}")
    return text


def installed() -> bool:
    return importlib.util.find_spec("llguidance") is not None


def library() -> Any:
    """llguidance. Raises `UserError` without it."""
    if not installed():
        raise UserError(
            "the package llguidance, which gives replies their form, is missing; install the "
            "extra `forms`: make install EXTRAS=forms, or pip install 'nanoeuler[forms]'"
        )
    import llguidance

    return llguidance


@functools.lru_cache(maxsize=16)
def library_tokenizer(tokenizer: Tokenizer) -> "LLTokenizer":
    """The bytes of each token, as the library takes them."""
    from llguidance import LLTokenizer, TokenizerWrapper

    return LLTokenizer(TokenizerWrapper(Tokens(tokenizer)), n_vocab=tokenizer.vocab_size)


class Tokens:
    """A tokenizer with the names that the library looks for."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer, self.eos_token_id = tokenizer, tokenizer.end_id
        self.tokens = list(map(tokenizer.token_bytes, range(tokenizer.vocab_size)))
        self.special_token_ids = sorted(tokenizer.special_ids.values())

    def __call__(self, text: bytes) -> list[int]:
        return self.tokenizer.encode(text, continues=True).tolist()
