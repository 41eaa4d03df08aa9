"""Errors as clients see them: a status, and a body in OpenAI's form.

4xx is the client's fault, 503 is load or the end of the server, 500 is a bug or a model with wrong numbers.
"""

import re

import msgspec

from karat.errors import (
    CapacityError,
    EngineDiedError,
    KaratError,
    OverloadedError,
    RequestError,
    TemplateError,
    UsageError,
)

_PARAM = re.compile(r"([a-z_]+)(?:=|: )")
RETRY_AFTER_S = 5


class ApiError(Exception):
    """An error answer. `param` is the field at fault, `code` a word for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    def body_for(self, request_id: str | None) -> bytes:
        """OpenAI's form: {"error": {"message", "type", "param", "code"}}, and the request's id beside it."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return msgspec.json.encode(
            {"error": error} if request_id is None else {"error": error, "request_id": request_id}
        )

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after_s is None else {"retry-after": str(self.retry_after_s)}


def invalid(param: str | None, message: str, code: str | None = None) -> ApiError:
    """400 for the field `param` of a request."""
    return ApiError(400, message, param=param, code=code)


def of_karat(error: KaratError) -> ApiError:
    """The ApiError for a typed error of Karat."""
    message = str(error)
    if isinstance(error, OverloadedError):
        return ApiError(503, message, code="overloaded", retry_after_s=RETRY_AFTER_S)
    if isinstance(error, UsageError):  # of an engine that was closed: what clients send raises none
        return ApiError(
            503, "the server ended before the answer did; send it again", code="aborted", retry_after_s=RETRY_AFTER_S
        )
    if isinstance(error, EngineDiedError):
        return ApiError(503, message, code="engine_died", retry_after_s=RETRY_AFTER_S)
    if isinstance(error, CapacityError):
        return ApiError(400, message, code="context_length_exceeded")
    if isinstance(error, RequestError | TemplateError):
        found = _PARAM.match(message)
        name = found[1] if found else None
        return ApiError(400, message, param="karat.resume" if name == "resume" else name)
    return ApiError(500, message, code=type(error).__name__)
