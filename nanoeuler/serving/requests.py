"""Requests of OpenAI's API, checked.

Fields that we do not know are ignored, as clients send many; those that would change the reply and
that we do not have are refused unless they ask for nothing.
"""

import json
import secrets
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from nanoeuler.errors import UserError, brief
from nanoeuler.inference.forms import Form, call_grammar, call_head, schema_grammar
from nanoeuler.inference.sampling import MOST, Sampling
from nanoeuler.model.template import TEMPLATES, split_prompt
from nanoeuler.serving.channel import ServedModel
from nanoeuler.serving.errors import ApiError, wrong

MOST_REPLIES = 128
"""Replies that one request may ask for."""

COMPLETION_TOKENS = 16
"""New tokens of a completion that asks for no number, as in OpenAI's API."""

LEAST_TOP_P = 1e-9
"""For a top-p of 0, which keeps the likeliest token alone."""


def as_whole(value: Any) -> Any:
    """8.0 as 8, as some clients write it."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Kind = TypeVar("Kind", bound=BaseModel)
Item = TypeVar("Item")
Whole = Annotated[int, BeforeValidator(as_whole)]
Several = Annotated[list[Item], Field(fail_fast=True)]
"""A list whose first wrong item ends the reading: a million of them would hold up all clients."""
Stop = Annotated[str, Field(min_length=1, max_length=200)]
Zero = Annotated[float, Field(ge=0, le=0)] | None


class StreamOptions(BaseModel):
    include_usage: bool | None = None


class Asked(BaseModel):
    """The fields that completions and chat completions have in common."""

    model_config = ConfigDict(strict=True, extra="ignore")

    model: str
    max_tokens: Annotated[Whole, Field(ge=0)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    top_k: Annotated[Whole, Field(ge=0, le=MOST)] | None = None
    seed: Annotated[Whole, Field(ge=-(2**63), lt=2**64)] | None = None
    n: Annotated[Whole, Field(ge=1, le=MOST_REPLIES)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: Zero = None
    frequency_penalty: Zero = None
    logit_bias: Annotated[dict[str, Any], Field(max_length=0)] | None = None

    @property
    def replies(self) -> int:
        """Replies to each prompt."""
        return self.n or 1

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def samplings(self) -> list[Sampling]:
        """The settings of each reply; a further reply has the next seed."""
        first = secrets.randbits(63) if self.seed is None else self.seed
        return [
            Sampling(
                temperature=1.0 if self.temperature is None else self.temperature,
                top_k=self.top_k or 0,
                top_p=1.0 if self.top_p is None else max(self.top_p, LEAST_TOP_P),
                seed=(first + reply) % 2**64,
            )
            for reply in range(self.replies)
        ]


class Completion(Asked):
    """A request to /v1/completions."""

    prompt: str | Several[str] | Several[int] | Several[Several[int]]
    echo: bool | None = None
    logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None
    suffix: Annotated[str, Field(max_length=0)] | None = None
    best_of: Whole | None = None

    @property
    def new_tokens(self) -> int:
        return COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def likeliest(self) -> int | None:
        return self.logprobs

    @property
    def score_prompt(self) -> bool:
        return bool(self.echo and self.logprobs is not None)

    @property
    def hidden(self) -> int:
        """Tokens in front of each prompt that its client did not give: `</s>` before a text."""
        first = self.prompt if isinstance(self.prompt, str) else self.prompt[0]
        return int(isinstance(first, str))

    def prompts(self, model: ServedModel) -> list[list[int]]:
        """The token ids of each prompt. A text starts a document, as in training."""
        if self.best_of not in (None, self.replies):
            raise wrong("best_of", "this server does not choose among replies; leave it out")
        given: Any = self.prompt
        if isinstance(given, str) or (given and isinstance(given[0], int)):
            given = [given]
        if not 1 <= len(given) * self.replies <= MOST_REPLIES:
            raise wrong("prompt", f"give from 1 to {MOST_REPLIES} prompts, times n")
        if self.new_tokens == 0 and not self.echo:
            raise wrong("max_tokens", "must be at least 1, unless echo is set")
        return [checked(each, model) for each in given]


class ContentPart(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    type: Literal["text"]
    text: str


FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class Call(BaseModel):
    name: FunctionName
    arguments: str


class ToolCall(BaseModel):
    function: Call


class Message(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Several[ContentPart] | None = None
    tool_calls: Several[ToolCall] | None = None

    @property
    def text(self) -> str:
        """Its content, and calls as a model writes them."""
        parts = self.content or ""
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        calls = [each.function for each in self.tool_calls or []]
        return text + "".join(f"{call_head(call.name)}{call.arguments}}}" for call in calls)

    @model_validator(mode="after")
    def check_content(self) -> "Message":
        """Clients send an assistant's empty message as null."""
        if self.content is None and self.role != "assistant":
            raise ValueError("the content is missing")
        return self


class JsonSchema(BaseModel):
    schema_: Annotated[dict[str, Any], Field(alias="schema")] = {}


class ResponseFormat(BaseModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def check_schema(self) -> "ResponseFormat":
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("the schema is missing")
        return self


class Function(BaseModel):
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(BaseModel):
    type: Literal["function"]
    function: Function


class ChatCompletion(Asked):
    """A request to /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=10_000, fail_fast=True)]
    max_tokens: Annotated[Whole, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[Whole, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None
    tools: Annotated[list[Tool], Field(max_length=128, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | Tool | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    response_format: ResponseFormat | None = None

    @property
    def new_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def likeliest(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def score_prompt(self) -> bool:
        return False

    @property
    def callable(self) -> list[Function]:
        """The functions that the model may call."""
        return [each.function for each in self.tools or [] if self.tool_choice != "none"]

    @property
    def schema_asked(self) -> dict[str, Any] | None:
        """The JSON schema by which the reply is to be valid."""
        form = self.response_format
        if form is None or form.type == "text":
            return None
        return form.json_schema.schema_ if form.json_schema else {"type": "object"}

    def grammar(self, model: ServedModel) -> str:
        """The grammar of the form that is asked for, which some text has. Raises `ApiError`."""
        schema, functions, choice = self.schema_asked, self.callable, self.tool_choice
        if self.stops:
            raise wrong("stop", "a reply of a given form ends by itself; leave stop out")
        if schema is not None and functions:
            raise wrong("response_format", "a reply has one form; give this or tools")
        if isinstance(choice, Tool):
            functions = [each for each in functions if each.name == choice.function.name]
            if not functions:
                raise wrong("tool_choice", "names no function of tools")
        try:
            if schema is not None:
                grammar = schema_grammar(schema)
            else:
                arguments = {each.name: each.parameters or {} for each in functions}
                grammar = call_grammar(arguments, or_text=choice in (None, "auto"))
            Form.checked(model.tokenizer, grammar, "the schema")
        except UserError as error:
            raise wrong("tools" if functions else "response_format", str(error)) from error
        return grammar

    def prompt(self, model: ServedModel) -> list[int]:
        """The conversation as `chat_template` renders it for other programs.

        One that ends with an assistant's message is continued there.
        """
        if self.functions and self.function_call != "none":
            raise wrong("functions", "use tools, which took their place")
        if self.top_logprobs and not self.logprobs:
            raise wrong("top_logprobs", "are given with logprobs alone; set that to true")
        if self.tool_choice not in (None, "none", "auto") and not self.callable:
            raise wrong("tool_choice", "asks for a call of a function; give tools")
        if model.template is None:
            raise wrong(
                "model",
                "this is a base model, which continues text and does not chat; use /v1/completions",
            )
        template, heading = TEMPLATES[model.template], split_prompt(model.template, "")[1]
        end = model.tokenizer.end_id

        def tokens(text: str, *, continues: bool = False) -> list[int]:
            return tokens_of(text, model, "messages", continues=continues)

        def prompt(said: list[str]) -> list[int]:
            return tokens(template("\n\n".join(said)) if said else heading)

        ids, said = [end], [described(self.callable)] if self.callable else []
        for message in self.messages:
            if message.role == "assistant":
                ids += [*prompt(said), *tokens(message.text, continues=True), end]
                said = []
            else:
                said.append(message.text)
        return ids + prompt(said) if said else ids[:-1]


def described(functions: Sequence[Function]) -> str:
    """What a model is told of functions that it may call, as a message before the others."""
    listed = [json.dumps(each.model_dump(exclude_none=True)) for each in functions]
    return "\n".join(["You may call a function by its name and arguments in JSON:", *listed])


def read(kind: type[Kind], body: bytes) -> Kind:
    """A request from its JSON. Raises `ApiError` with the first field that is wrong."""
    try:
        content = json.loads(body, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, json.JSONDecodeError) else "it is not valid JSON"
        raise ApiError(400, f"the body cannot be read: {reason}; send one JSON object") from error
    if not isinstance(content, dict):
        raise ApiError(400, "the body must be one JSON object")
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise refusal(error) from error


def refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


FIELDS = {
    "prompt": "must be a text, a list of texts, a list of token ids, or a list of such lists",
    "stop": "must be a text of 1 to 200 characters, or at most 16 of them",
    "messages": "must be a list of 1 to 10,000 objects with a role (system, developer, user, "
    "assistant or tool) and a content that is text; tool_calls are of functions",
    "tools": "must be functions: a list of objects with a type, function, and a function with a "
    "name and parameters, a JSON schema",
    "tool_choice": "must be none, auto, required, or a function of tools",
    "suffix": "this server only continues text; leave suffix out",
    "logit_bias": "this server does not change logits; leave logit_bias out",
    "presence_penalty": "this server has no penalties; it must be 0",
    "frequency_penalty": "this server has no penalties; it must be 0",
    "response_format": "its type must be text, json_object, or json_schema with a json_schema "
    "whose schema is an object",
}


def refusal(error: ValidationError) -> ApiError:
    """The field that is wrong, what is wrong with it, and what was given."""
    problem = error.errors(include_url=False)[0]
    place = [str(part) for part in problem["loc"]]
    field = place[0]
    if field in FIELDS and (problem["type"] != "missing" or len(place) > 1):
        return wrong(field, FIELDS[field])
    if problem["type"] == "missing":
        where = "; /v1/models lists those of this server" if place == ["model"] else ""
        return wrong(".".join(place), f"is missing{where}")
    said = problem["msg"][:1].lower() + problem["msg"][1:]
    return wrong(field, f"{said}, not {brief(problem['input'])}")


def checked(prompt: str | list[int], model: ServedModel) -> list[int]:
    """The token ids of a prompt that is a text or token ids already."""
    if isinstance(prompt, str):
        return [model.tokenizer.end_id, *tokens_of(prompt, model, "prompt")]
    most = model.tokenizer.vocab_size - 1
    if not prompt or not 0 <= min(prompt) <= max(prompt) <= most:
        raise wrong("prompt", f"tokens must be ids from 0 to {most}, at least one")
    return prompt


def tokens_of(text: str, model: ServedModel, param: str, *, continues: bool = False) -> list[int]:
    """The ids of a text. Raises `ApiError` for one that is longer than the context."""
    if len(text) > model.tokenizer.longest_token * model.context:
        least = len(text) // model.tokenizer.longest_token
        raise too_long(param, f"at least {least:,}", model.context)
    try:
        return model.tokenizer.encode(text, continues=continues).tolist()
    except UserError as error:  # half of a surrogate pair
        raise wrong(param, str(error)) from error


def tokens_left(wanted: int | None, prompt: Sequence[int], context: int, param: str) -> int:
    """The most tokens of a reply: those wanted (None: all), up to the end of the context.

    The last token is written, not read, so it needs no place of its own. Raises `ApiError` for a
    prompt, the request's field `param`, that is longer than the context.
    """
    room = context - len(prompt) + 1
    if room < 1:
        raise too_long(param, f"{len(prompt):,}", context)
    return room if wanted is None else min(wanted, room)


def too_long(param: str, tokens: str, context: int) -> ApiError:
    return ApiError(
        400,
        f"the prompt has {tokens} tokens and the model's context is {context:,}; shorten it",
        param=param,
        code="context_length_exceeded",
    )
