"""The answers of the server as structs, from which the OpenAPI document is made too.

Fields that OpenAI requires are always present, null if they have no value. Fields of other servers (timings,
prompt_token_ids, …) are present if they were asked for.
"""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from karat.explanation import Explanation
from karat.receipts.comparison import Parting
from karat.receipts.receipt import Receipt
from karat.receipts.verdict import Difference

FinishReason = Literal["stop", "length", "tool_calls"]


class PromptDetails(Struct):
    """`cached_tokens`: tokens of the prompt that were in the cache and not computed."""

    cached_tokens: int
    audio_tokens: int = 0


class CompletionDetails(Struct):
    reasoning_tokens: int = 0
    audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class Usage(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class Timings(Struct):
    """llama.cpp's: `prompt_n` tokens were computed in prompt_ms, `cache_n` cached, `predicted_n` generated."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float | None
    prompt_per_second: float | None
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float | None
    predicted_per_second: float | None


class PrefillProgress(Struct):
    """llama.cpp's, of a prompt of `total` tokens: `cache` were cached at first, `processed` are in the cache now."""

    total: int
    cache: int
    processed: int
    time_ms: float


class Karat(Struct):
    """Karat's own field: the seed that tokens were drawn with. `explain`: of an answer that has no choices.

    system_fingerprint: what of the model decides answers (docs/receipts.md), null until the weights are hashed.
    `receipt`: if it was asked for; a list where there are several choices.
    """

    seed: int
    explain: tuple[Explanation, ...] | UnsetType = UNSET
    system_fingerprint: str | None = None
    receipt: Receipt | list[Receipt] | UnsetType = UNSET


class Explained(Struct):
    """Karat's own field beside a text: how each of its tokens was drawn. In an event: those since the last one."""

    explain: tuple[Explanation, ...]


PromptLogprobs = list[dict[str, Any] | None]  # vLLM's: token id -> {"logprob", "rank", "decoded_token"}


class TopLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct):
    content: list[TokenLogprob]
    refusal: None = None


class CalledFunction(Struct):
    """`arguments` is JSON text."""

    name: str
    arguments: str


class FunctionToolCall(Struct, tag_field="type", tag="function"):
    id: str
    function: CalledFunction


class CalledCustom(Struct):
    """`input` is bare text."""

    name: str
    input: str


class CustomCall(Struct, tag_field="type", tag="custom"):
    """A call of a custom tool."""

    id: str
    custom: CalledCustom


class Message(Struct):
    """`content` is null if there are calls alone. `reasoning` is vLLM's name of reasoning_content."""

    role: Literal["assistant"]
    content: str | None
    refusal: None = None
    annotations: list[dict[str, Any]] = []
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[FunctionToolCall | CustomCall] | UnsetType = UNSET


class BesideChat(Struct):
    """Karat's own field beside a message. `explain`: as in Explained. `resumed`: of an answer that is resumed, what its
    first tokens say, in the first event of a stream. What goes on from there comes in the answer.
    """

    explain: tuple[Explanation, ...] | UnsetType = UNSET
    resumed: Message | UnsetType = UNSET


class ChatChoice(Struct):
    index: int
    message: Message
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET
    karat: BesideChat | UnsetType = UNSET


class ChatCompletion(Struct):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    timings: Timings
    karat: Karat
    system_fingerprint: str | None
    service_tier: Literal["default"] = "default"
    object: Literal["chat.completion"] = "chat.completion"
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class FunctionDelta(Struct):
    """The name, or more of the arguments."""

    name: str | UnsetType = UNSET
    arguments: str = ""


class CustomDelta(Struct):
    """The name, or the input."""

    name: str | UnsetType = UNSET
    input: str = ""


class ToolCallDelta(Struct):
    """The first of a call has id, type and the tool's name, the others more of its arguments, or its whole input."""

    index: int
    function: FunctionDelta | UnsetType = UNSET
    custom: CustomDelta | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: Literal["function", "custom"] | UnsetType = UNSET


class Delta(Struct):
    """New content, reasoning or calls. The first delta of a choice has the role, the last is empty."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    refusal: UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(Struct):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    karat: BesideChat | UnsetType = UNSET


class ChatChunk(Struct):
    """An event. `usage` is present if stream_options.include_usage asks for it, null in all but the last event."""

    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    system_fingerprint: str | None
    service_tier: Literal["default"] = "default"
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    usage: Usage | UnsetType | None = UNSET
    timings: Timings | UnsetType = UNSET
    karat: Karat | UnsetType = UNSET
    prompt_progress: PrefillProgress | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class TextLogprobs(Struct):
    """For each token: its text, its place in the text, its log-probability and those of the alternatives.

    The first token of an echoed prompt has null, as no token precedes it.
    """

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class TextChoice(Struct):
    """In an event, `finish_reason` is null until the choice has ended."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    karat: Explained | UnsetType = UNSET


class TextCompletion(Struct):
    """An answer of /v1/completions, whole or an event. An event has usage and timings as in a chat."""

    id: str
    created: int
    model: str
    choices: list[TextChoice]
    system_fingerprint: str | None
    object: Literal["text_completion"] = "text_completion"
    usage: Usage | UnsetType | None = UNSET
    timings: Timings | UnsetType = UNSET
    karat: Karat | UnsetType = UNSET
    prompt_progress: PrefillProgress | UnsetType = UNSET


class Verified(Struct):
    """What verifying a receipt found. other contract: no verdict, of another model or other rules, which `text` names.

    `text` is what `karat verify` says; `signer` the public key of a signature that is right.
    """

    verdict: Literal["identical", "different", "other contract", "agrees", "undecided", "differs"]
    tokens: int
    seconds: float
    text: str
    first_difference: Difference | None
    signer: str | None


class Compared(Struct):
    """A receipt's answer under other activations: its first token that they choose otherwise, null if there is none.

    `text` says it in words; `activations` are the receipt's, `other` those that it was compared with.
    """

    activations: str
    other: str
    tokens: int
    seconds: float
    text: str
    parting: Parting | None


class SamplingDefaults(Struct):
    """The model's own sampling (generation_config.json): what a request gets that does not say otherwise.

    `max_tokens`: of an answer; null is as many as the context has room for, up to --default-max-tokens.
    """

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    max_tokens: int | None


class ModelFacts(Struct):
    """Karat's own field of a model. `activations` are those that its weights in blocks read, `comparable` all that
    /v1/receipts/compare takes; none where there is no choice.
    """

    sampling_defaults: SamplingDefaults
    activations: str
    comparable: tuple[str, ...]


class ModelCard(Struct):
    id: str
    created: int
    max_model_len: int
    karat: ModelFacts
    object: Literal["model"] = "model"
    owned_by: str = "karat"


class Models(Struct):
    data: list[ModelCard]
    object: Literal["list"] = "list"


class Tokenized(Struct):
    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: list[str] | None = None


class Detokenized(Struct):
    """A text under both names: vLLM's, and llama.cpp's."""

    prompt: str
    content: str


class Rendered(Struct):
    """A conversation as the model receives it."""

    prompt: str
    tokens: list[int]
    count: int
    max_model_len: int


class Health(Struct):
    status: str


class Version(Struct):
    version: str


class ErrorDetail(Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Struct):
    error: ErrorDetail
    request_id: str | None = None
