"""Errors as clients see them: a status, and a body in OpenAI's form.

4xx is the client's fault, 503 is load or the end of the server, 500 is a bug or a model with wrong numbers.
"""

import logging
import traceback
from collections.abc import Mapping

import msgspec

from karat.errors import (
    BugError,
    CapacityError,
    EngineDiedError,
    KaratError,
    NumericsError,
    OutOfMemoryError,
    OverloadedError,
    RequestError,
    TemplateError,
    UsageError,
    packed,
    unpacked,
)
from karat.outputs import CompletionOutput, StreamChunk

_NAMES: Mapping[str, str] = {"resume": "karat.resume"}  # of fields, where they are not those of arguments
RETRY_AFTER_S = 5
_log = logging.getLogger("karat.server")


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


def of_karat(error: KaratError, names: Mapping[str, str] = {}) -> ApiError:
    """The ApiError for a typed error of Karat. `names` are the fields that were sent, by the param of errors."""
    name = names.get(error.param or "", _NAMES.get(error.param or "", error.param))
    message = str(error)
    if error.param and name and name != error.param and message.startswith((f"{error.param}=", f"{error.param}: ")):
        message = name + message.removeprefix(error.param)
    if isinstance(error, OverloadedError):
        return ApiError(503, message, code="overloaded", retry_after_s=RETRY_AFTER_S)
    if isinstance(error, UsageError):  # of an engine that was closed: what clients send raises none
        return ApiError(
            503, "the server ended before the answer did; send it again", code="aborted", retry_after_s=RETRY_AFTER_S
        )
    if isinstance(error, EngineDiedError):
        return ApiError(503, message, code="engine_died", retry_after_s=RETRY_AFTER_S)
    if isinstance(error, OutOfMemoryError):
        return ApiError(503, message, code="out_of_memory", retry_after_s=RETRY_AFTER_S)
    if isinstance(error, CapacityError):
        return ApiError(400, message, param=name, code="context_length_exceeded")
    if isinstance(error, RequestError | TemplateError):
        return ApiError(400, message, param=name)
    if isinstance(error, NumericsError):
        return ApiError(500, message, code="numerics")
    if isinstance(error, BugError):
        return bug_in(message.partition(":")[0])
    return ApiError(500, message, code=type(error).__name__)


def of_any(error: Exception) -> ApiError:
    """What the client is told of an exception, whichever it is. The log has the place of a bug, never its text."""
    match error:
        case ApiError():
            return error
        case KaratError():
            return of_karat(error)
        case MemoryError():
            return of_karat(unpacked(*packed(error)))
    _log.error("%s\n%s", type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))
    return bug_in(type(error).__name__)


def bug_in(what: str) -> ApiError:
    """500 for an exception that is no error of Karat's: `what` is its class, and no more of it than clients may see."""
    return ApiError(500, f"{what}: this is a bug in Karat; the server's log says where")


def failure_of(choice: CompletionOutput | StreamChunk, structure_field: str = "structured_outputs") -> ApiError:
    """The error of a choice that ended in "error". `structure_field` is the field that the answer's form comes from."""
    text = (choice.error or "the answer ended in an error").removeprefix(f"choice {choice.index}: ")
    if choice.error_param == (form := "structured_outputs"):
        return invalid(structure_field, structure_field + text.removeprefix(form))
    return of_karat(unpacked(choice.error_type or NumericsError.__name__, text, choice.error_param))
