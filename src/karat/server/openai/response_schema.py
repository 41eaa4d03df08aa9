"""The answers of /v1/responses as structs. Fields that the protocol requires are always present."""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from karat.server.schema import Explained, Karat, Timings

Status = Literal["in_progress", "completed", "incomplete"]


class OutputText(Struct, tag_field="type", tag="output_text"):
    text: str
    annotations: list[dict[str, Any]] = []
    logprobs: list[dict[str, Any]] = []


class OutputMessage(Struct, tag_field="type", tag="message"):
    id: str
    content: list[OutputText]
    status: Status
    role: Literal["assistant"] = "assistant"


class ReasoningText(Struct, tag_field="type", tag="reasoning_text"):
    text: str


class ReasoningItem(Struct, tag_field="type", tag="reasoning"):
    id: str
    content: list[ReasoningText]
    status: Status
    summary: list[dict[str, Any]] = []
    encrypted_content: None = None


class FunctionCall(Struct, tag_field="type", tag="function_call"):
    """A call of a tool. `arguments` is JSON text."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: Status
    namespace: str | UnsetType = UNSET


class CustomToolCall(Struct, tag_field="type", tag="custom_tool_call"):
    """A call of a custom tool. `input` is bare text."""

    id: str
    call_id: str
    name: str
    input: str
    status: Status
    namespace: str | UnsetType = UNSET


class ToolSearchCall(Struct, tag_field="type", tag="tool_search_call"):
    """A search that the client makes."""

    id: str
    call_id: str
    arguments: dict[str, Any]
    status: Status
    execution: Literal["client"] = "client"


Call = FunctionCall | CustomToolCall | ToolSearchCall
Item = OutputMessage | ReasoningItem | FunctionCall | CustomToolCall | ToolSearchCall


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


class FunctionTool(Struct, tag_field="type", tag="function"):
    """A tool that could be called, as the request gave it."""

    name: str
    parameters: dict[str, Any] | None
    strict: bool
    description: str | None = None


class CustomTool(Struct, tag_field="type", tag="custom"):
    name: str
    description: str | None = None
    format: dict[str, Any] | None = None


class NamespaceTool(Struct, tag_field="type", tag="namespace"):
    name: str
    description: str | None
    tools: list[dict[str, Any]]


class ToolSearchTool(Struct, tag_field="type", tag="tool_search"):
    execution: Literal["client"]
    description: str | None = None
    parameters: dict[str, Any] | None = None


EchoedTool = FunctionTool | CustomTool | NamespaceTool | ToolSearchTool


class FunctionChoice(Struct, tag_field="type", tag="function"):
    name: str


class CustomChoice(Struct, tag_field="type", tag="custom"):
    name: str


class AllowedTools(Struct, tag_field="type", tag="allowed_tools"):
    mode: Literal["auto", "required"]
    tools: list[dict[str, Any]]


class TextFormat(Struct, tag_field="type", tag="text"):
    pass


class JsonObjectFormat(Struct, tag_field="type", tag="json_object"):
    pass


class JsonSchemaFormat(Struct, tag_field="type", tag="json_schema"):
    name: str
    schema: dict[str, Any]
    strict: bool
    description: str | None = None


class TextConfig(Struct):
    format: TextFormat | JsonObjectFormat | JsonSchemaFormat


class Response(Struct, kw_only=True):
    """An answer of /v1/responses. While it is in_progress it has no output, no usage and no timings."""

    id: str
    created_at: int
    model: str
    status: Status
    output: list[Item]
    usage: ResponseUsage | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    metadata: dict[str, str]
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    max_output_tokens: int | None
    text: TextConfig
    karat: Karat
    timings: Timings | None = None
    completed_at: int | None = None
    object: Literal["response"] = "response"
    error: None = None
    previous_response_id: None = None
    parallel_tool_calls: bool = True
    tool_choice: Literal["auto", "none", "required"] | FunctionChoice | CustomChoice | AllowedTools = "auto"
    tools: list[EchoedTool] = []
    background: Literal[False] = False
    store: Literal[False] = False
    truncation: Literal["disabled"] = "disabled"
    service_tier: Literal["default"] = "default"
    top_logprobs: Literal[0] = 0
    reasoning: None = None
    max_tool_calls: None = None
    safety_identifier: None = None
    prompt_cache_key: None = None


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
    item: Item
    output_index: int


class PartEvent(Struct, kw_only=True):
    type: Literal["response.content_part.added", "response.content_part.done"]
    sequence_number: int
    item_id: str
    part: OutputText | ReasoningText
    output_index: int
    content_index: int = 0


class TextDeltaEvent(Struct, kw_only=True):
    sequence_number: int
    item_id: str
    delta: str
    type: Literal["response.output_text.delta"] = "response.output_text.delta"
    output_index: int
    content_index: int = 0
    logprobs: list[dict[str, Any]] = []
    karat: Explained | UnsetType = UNSET


class TextDoneEvent(Struct, kw_only=True):
    sequence_number: int
    item_id: str
    text: str
    type: Literal["response.output_text.done"] = "response.output_text.done"
    output_index: int
    content_index: int = 0
    logprobs: list[dict[str, Any]] = []


class ReasoningDeltaEvent(Struct, kw_only=True):
    sequence_number: int
    item_id: str
    delta: str
    type: Literal["response.reasoning_text.delta"] = "response.reasoning_text.delta"
    output_index: int
    content_index: int = 0
    karat: Explained | UnsetType = UNSET


class ReasoningDoneEvent(Struct, kw_only=True):
    sequence_number: int
    item_id: str
    text: str
    type: Literal["response.reasoning_text.done"] = "response.reasoning_text.done"
    output_index: int
    content_index: int = 0


class ArgumentsDeltaEvent(Struct, kw_only=True):
    sequence_number: int
    item_id: str
    delta: str
    type: Literal["response.function_call_arguments.delta"] = "response.function_call_arguments.delta"
    output_index: int
    karat: Explained | UnsetType = UNSET


class ArgumentsDoneEvent(Struct, kw_only=True):
    sequence_number: int
    item_id: str
    name: str
    arguments: str
    type: Literal["response.function_call_arguments.done"] = "response.function_call_arguments.done"
    output_index: int


class InputDeltaEvent(Struct, kw_only=True):
    sequence_number: int
    item_id: str
    delta: str
    type: Literal["response.custom_tool_call_input.delta"] = "response.custom_tool_call_input.delta"
    output_index: int
    karat: Explained | UnsetType = UNSET


class InputDoneEvent(Struct, kw_only=True):
    sequence_number: int
    item_id: str
    input: str
    type: Literal["response.custom_tool_call_input.done"] = "response.custom_tool_call_input.done"
    output_index: int


class ErrorEvent(Struct, kw_only=True):
    sequence_number: int
    message: str
    code: str | None
    param: str | None
    type: Literal["error"] = "error"


DeltaEvent = TextDeltaEvent | ReasoningDeltaEvent | ArgumentsDeltaEvent | InputDeltaEvent
DoneEvent = TextDoneEvent | ReasoningDoneEvent | ArgumentsDoneEvent | InputDoneEvent
Event = ResponseEvent | ItemEvent | PartEvent | DeltaEvent | DoneEvent | ErrorEvent
EVENTS: tuple[type, ...] = (
    ResponseEvent,
    ItemEvent,
    PartEvent,
    TextDeltaEvent,
    TextDoneEvent,
    ReasoningDeltaEvent,
    ReasoningDoneEvent,
    ArgumentsDeltaEvent,
    ArgumentsDoneEvent,
    InputDeltaEvent,
    InputDoneEvent,
    ErrorEvent,
)
