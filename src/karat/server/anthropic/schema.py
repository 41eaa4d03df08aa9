"""The answers of Anthropic's routes as structs.

Fields that the protocol requires are always present: null where there is nothing, and where all clients take null.
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from karat.server.schema import Explained, Karat, Timings

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
ErrorKind = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "overloaded_error",
    "api_error",
]


class TextBlock(Struct, tag_field="type", tag="text"):
    """A text. It has no citations; clients that require the key and those that take no null both take the list."""

    text: str
    citations: tuple[()] = ()


class ThinkingBlock(Struct, tag_field="type", tag="thinking"):
    """Reasoning. It is not signed."""

    thinking: str
    signature: str = ""


class Caller(Struct, frozen=True):
    """Who calls a tool: the model itself."""

    type: Literal["direct"] = "direct"


class ToolUseBlock(Struct, tag_field="type", tag="tool_use"):
    """`input` is the JSON object that the model wrote, the same text as the deltas of a stream.

    Of a use that was cut it is an object of what came: `read_arguments` of the deltas.
    """

    id: str
    name: str
    input: Annotated[Raw, Meta(extra_json_schema={"type": "object"})]
    caller: Caller = Caller()


Block = TextBlock | ThinkingBlock | ToolUseBlock


class OutputDetails(Struct):
    thinking_tokens: int


class DeltaUsage(Struct, kw_only=True):
    """The prompt has input_tokens, which were computed, and cache_read_input_tokens, which were in the cache."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    output_tokens_details: OutputDetails
    cache_creation_input_tokens: int = 0
    server_tool_use: None = None


class MessageUsage(DeltaUsage):
    cache_creation: None = None
    inference_geo: None = None
    service_tier: None = None
    speed: None = None


class AnthropicMessage(Struct):
    """An answer of /v1/messages. In a stream's first event it has no content and no reason yet, and no timings."""

    id: str
    model: str
    content: list[Block]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage
    karat: Karat
    timings: Timings | None = None
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    container: None = None
    diagnostics: None = None
    stop_details: None = None


class MessageTokens(Struct):
    """An answer of /v1/messages/count_tokens: all tokens of the prompt, cached or not."""

    input_tokens: int


class MessageStart(Struct):
    message: AnthropicMessage
    type: Literal["message_start"] = "message_start"


class ContentBlockStart(Struct):
    content_block: Block
    index: int
    type: Literal["content_block_start"] = "content_block_start"


class Ping(Struct):
    type: Literal["ping"] = "ping"


class TextDelta(Struct, tag_field="type", tag="text_delta"):
    text: str


class ThinkingDelta(Struct, tag_field="type", tag="thinking_delta"):
    thinking: str


class SignatureDelta(Struct, tag_field="type", tag="signature_delta"):
    signature: str = ""


class InputJsonDelta(Struct, tag_field="type", tag="input_json_delta"):
    partial_json: str


class ContentBlockDelta(Struct):
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta
    index: int
    type: Literal["content_block_delta"] = "content_block_delta"
    karat: Explained | UnsetType = UNSET


class ContentBlockStop(Struct):
    index: int
    type: Literal["content_block_stop"] = "content_block_stop"


class Ending(Struct):
    stop_reason: StopReason
    stop_sequence: str | None
    container: None = None
    stop_details: None = None


class MessageDelta(Struct):
    delta: Ending
    usage: DeltaUsage
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
    request_id: str | None = None
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
