"""The answers of the server, as structs: what is sent is what the OpenAPI document describes.

Fields that OpenAI requires are always there, null where they have no value. Fields that another server brought up
(timings, prompt_token_ids, …) are there when they were asked for.
"""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

FinishReason = Literal["stop", "length"]


class PromptDetails(Struct):
    """`cached_tokens` of the prompt were in the cache and not computed again."""

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
    """llama.cpp's: `prompt_n` tokens were computed in prompt_ms, `cache_n` found; `predicted_n` came after that."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float | None
    prompt_per_second: float | None
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float | None
    predicted_per_second: float | None


class PromptProgress(Struct):
    """llama.cpp's: of `total` tokens, `cache` were found and `processed` are in the cache by now."""

    total: int
    cache: int
    processed: int
    time_ms: float


class Karat(Struct):
    """What only Karat says: the seed by which tokens were drawn."""

    seed: int


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


class Message(Struct):
    role: Literal["assistant"]
    content: str
    refusal: None = None
    annotations: list[dict[str, Any]] = []


class ChatChoice(Struct):
    index: int
    message: Message
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(Struct):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    timings: Timings
    karat: Karat
    system_fingerprint: str
    service_tier: Literal["default"] = "default"
    object: Literal["chat.completion"] = "chat.completion"
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Delta(Struct):
    """The first of a choice has the role, the last nothing."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    refusal: UnsetType | None = UNSET


class ChatChunkChoice(Struct):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(Struct):
    """An event. `usage` is there if stream_options.include_usage asks for it: null in all but the last event."""

    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    system_fingerprint: str
    service_tier: Literal["default"] = "default"
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    usage: Usage | UnsetType | None = UNSET
    timings: Timings | UnsetType = UNSET
    karat: Karat | UnsetType = UNSET
    prompt_progress: PromptProgress | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class TextLogprobs(Struct):
    """Of each token its text, its place in the text, its log-probability and those of the alternatives.

    Nothing precedes the first token of an echoed prompt: it has null.
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


class TextCompletion(Struct):
    """An answer of /v1/completions, whole or an event: an event has usage and timings as those of a chat have them."""

    id: str
    created: int
    model: str
    choices: list[TextChoice]
    system_fingerprint: str
    object: Literal["text_completion"] = "text_completion"
    usage: Usage | UnsetType | None = UNSET
    timings: Timings | UnsetType = UNSET
    karat: Karat | UnsetType = UNSET
    prompt_progress: PromptProgress | UnsetType = UNSET


class Model(Struct):
    id: str
    created: int
    max_model_len: int
    object: Literal["model"] = "model"
    owned_by: str = "karat"


class Models(Struct):
    data: list[Model]
    object: Literal["list"] = "list"


class Tokenized(Struct):
    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: list[str] | None = None


class Detokenized(Struct):
    prompt: str


class Rendered(Struct):
    """A conversation as the model gets it."""

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
