"""Errors as OpenAI's clients expect them: a status, and an object that says what was wrong."""

from typing import Any


class ApiError(Exception):
    """A request that is answered with an error. The text says what is wrong and what to do."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ):
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        kind = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
        usual = "server_error" if self.status >= 500 else "invalid_request_error"
        return {
            "error": {
                "message": self.message,
                "type": kind.get(self.status, usual),
                "param": self.param,
                "code": self.code,
            }
        }


def wrong(param: str, message: str) -> ApiError:
    """A request whose field `param` is refused."""
    return ApiError(400, f"{param}: {message}", param=param)


def failed(kind: str) -> ApiError:
    """A reply that broke off, by the `finish` of its last piece."""
    if kind == "timeout":
        return ApiError(
            504,
            "the reply took longer than this server allows; ask for fewer tokens",
            code="timeout",
        )
    if kind == "form":
        return ApiError(
            400,
            "the reply cannot be given its form any more: the schema is too complex; simplify it",
            param="response_format",
            code="form",
        )
    return ApiError(500, "the model could not reply; the server's log says why", code=kind)
