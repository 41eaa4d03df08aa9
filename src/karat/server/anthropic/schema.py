"""The answers of Anthropic's routes as structs. Fields that the protocol requires are always present."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from karat.server.schema import Explained, Karat, Timings

StopReason = Literal["end_turn", "max_tokens", "stop_sequence"]
ErrorKind = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "overloaded_error",
    "api_error",
]


class TextBlock(Struct):
    text: str
    type: Literal["text"] = "text"
    citations: None = None


class MessageUsage(Struct):
    """The prompt has input_tokens, which were computed, and cache_read_input_tokens, which were in the cache."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0


class AnthropicMessage(Struct):
    """An answer of /v1/messages. In a stream's first event it has no content and no reason yet, and no timings."""

    id: str
    model: str
    content: list[TextBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage
    karat: Karat
    timings: Timings | None = None
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"


class MessageTokens(Struct):
    """An answer of /v1/messages/count_tokens: all tokens of the prompt, cached or not."""

    input_tokens: int


class MessageStart(Struct):
    message: AnthropicMessage
    type: Literal["message_start"] = "message_start"


class ContentBlockStart(Struct):
    content_block: TextBlock
    index: int = 0
    type: Literal["content_block_start"] = "content_block_start"


class Ping(Struct):
    type: Literal["ping"] = "ping"


class TextDelta(Struct):
    text: str
    type: Literal["text_delta"] = "text_delta"


class ContentBlockDelta(Struct):
    delta: TextDelta
    index: int = 0
    type: Literal["content_block_delta"] = "content_block_delta"
    karat: Explained | UnsetType = UNSET


class ContentBlockStop(Struct):
    index: int = 0
    type: Literal["content_block_stop"] = "content_block_stop"


class Ending(Struct):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(Struct):
    delta: Ending
    usage: MessageUsage
    karat: Karat
    timings: Timings
    type: Literal["message_delta"] = "message_delta"


class MessageStop(Struct):
    type: Literal["message_stop"] = "message_stop"


class AnthropicErrorDetail(Struct):
    type: ErrorKind
    message: str


class AnthropicError(Struct):
    """An error, as a body and as an event."""

    error: AnthropicErrorDetail
    type: Literal["error"] = "error"


Event = (
    MessageStart
    | ContentBlockStart
    | Ping
    | ContentBlockDelta
    | ContentBlockStop
    | MessageDelta
    | MessageStop
    | AnthropicError
)
EVENTS: tuple[type, ...] = (
    MessageStart,
    ContentBlockStart,
    Ping,
    ContentBlockDelta,
    ContentBlockStop,
    MessageDelta,
    MessageStop,
    AnthropicError,
)
