"""The answers of /v1/responses as structs. Fields that the protocol requires are always present."""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from karat.server.schema import Explained, Karat, Timings

Status = Literal["in_progress", "completed", "incomplete"]


class OutputText(Struct):
    text: str
    type: Literal["output_text"] = "output_text"
    annotations: list[dict[str, Any]] = []
    logprobs: list[dict[str, Any]] = []


class OutputMessage(Struct):
    id: str
    content: list[OutputText]
    status: Status
    role: Literal["assistant"] = "assistant"
    type: Literal["message"] = "message"


class InputTokensDetails(Struct):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(Struct):
    reasoning_tokens: int = 0


class ResponseUsage(Struct):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens_details: OutputTokensDetails


class IncompleteDetails(Struct):
    reason: Literal["max_output_tokens"] = "max_output_tokens"


class TextFormat(Struct, tag_field="type", tag="text"):
    pass


class JsonObjectFormat(Struct, tag_field="type", tag="json_object"):
    pass


class JsonSchemaFormat(Struct, tag_field="type", tag="json_schema"):
    name: str
    schema: dict[str, Any]
    strict: bool | None = None
    description: str | None = None


class TextConfig(Struct):
    format: TextFormat | JsonObjectFormat | JsonSchemaFormat


class Response(Struct, kw_only=True):
    """An answer of /v1/responses. While it is in_progress it has no output, no usage and no timings."""

    id: str
    created_at: int
    model: str
    status: Status
    output: list[OutputMessage]
    usage: ResponseUsage | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    metadata: dict[str, str]
    temperature: float
    top_p: float
    max_output_tokens: int | None
    text: TextConfig
    karat: Karat
    timings: Timings | None = None
    object: Literal["response"] = "response"
    error: None = None
    previous_response_id: None = None
    parallel_tool_calls: bool = True
    tool_choice: Literal["auto"] = "auto"
    tools: list[dict[str, Any]] = []
    background: Literal[False] = False
    store: Literal[False] = False
    truncation: Literal["disabled"] = "disabled"
    service_tier: Literal["default"] = "default"


class InputTokens(Struct):
    """An answer of /v1/responses/input_tokens."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


class ResponseEvent(Struct, kw_only=True):
    """response.created and in_progress at the beginning, completed or incomplete at the end."""

    type: Literal["response.created", "response.in_progress", "response.completed", "response.incomplete"]
    sequence_number: int
    response: Response


class ItemEvent(Struct, kw_only=True):
    type: Literal["response.output_item.added", "response.output_item.done"]
    sequence_number: int
    item: OutputMessage
    output_index: int = 0


class PartEvent(Struct, kw_only=True):
    type: Literal["response.content_part.added", "response.content_part.done"]
    sequence_number: int
    item_id: str
    part: OutputText
    output_index: int = 0
    content_index: int = 0


class TextDeltaEvent(Struct, kw_only=True):
    sequence_number: int
    item_id: str
    delta: str
    type: Literal["response.output_text.delta"] = "response.output_text.delta"
    output_index: int = 0
    content_index: int = 0
    logprobs: list[dict[str, Any]] = []
    karat: Explained | UnsetType = UNSET


class TextDoneEvent(Struct, kw_only=True):
    sequence_number: int
    item_id: str
    text: str
    type: Literal["response.output_text.done"] = "response.output_text.done"
    output_index: int = 0
    content_index: int = 0
    logprobs: list[dict[str, Any]] = []


class ErrorEvent(Struct, kw_only=True):
    sequence_number: int
    message: str
    code: str | None
    param: str | None
    type: Literal["error"] = "error"


Event = ResponseEvent | ItemEvent | PartEvent | TextDeltaEvent | TextDoneEvent | ErrorEvent
EVENTS: tuple[type, ...] = (ResponseEvent, ItemEvent, PartEvent, TextDeltaEvent, TextDoneEvent, ErrorEvent)
