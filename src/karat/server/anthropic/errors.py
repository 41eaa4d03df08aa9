"""Errors in Anthropic's form."""

from collections.abc import Mapping

from karat.server.anthropic.schema import AnthropicError, AnthropicErrorDetail, ErrorKind
from karat.server.errors import ApiError

_KINDS: Mapping[int, ErrorKind] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    503: "overloaded_error",
}


def error_of(error: ApiError, request_id: str | None) -> AnthropicError:
    """The form of Anthropic's protocol, which has no field for the parameter: the message names it."""
    usual: ErrorKind = "api_error" if error.status >= 500 else "invalid_request_error"
    return AnthropicError(AnthropicErrorDetail(_KINDS.get(error.status, usual), error.message), request_id)
