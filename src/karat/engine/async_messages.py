"""What passes between AsyncLLM and the process of its engine: typed messages (msgspec), never pickle."""

from collections.abc import Mapping
from typing import Self

import msgspec

from karat.config import FloatName
from karat.engine.options import Options
from karat.engine.sizes import EngineConfig
from karat.engine.stats import EngineStats
from karat.request import FinishReason, Logprob, Request, StreamChunk


class Open(msgspec.Struct, frozen=True, tag=True):
    """Load the model at `path`, with the tokenizer at `tokenizer` (None: its own); the first message to the engine.

    Loading messages come back, then Ready or Failed.
    """

    path: str
    tokenizer: str | None
    options: Options


class Add(msgspec.Struct, frozen=True, tag=True):
    """Compute a request, whose id no other ever had; with `tells_progress`, say in each step how far the prompt is."""

    request: Request
    tells_progress: bool


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Free the blocks of a request. One that has ended, or is unknown, is passed over."""

    request_id: str


ToEngine = Open | Add | Abort


class Loading(msgspec.Struct, frozen=True, tag=True):
    """Bytes of weights that are loaded, and of all of them."""

    done: int
    total: int


class Log(msgspec.Struct, frozen=True, array_like=True):
    """A record of the engine's process for the logger of this name here."""

    level: int
    logger: str
    text: str


class Ready(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The model is loaded, and this is what it turned out to be."""

    sizes: EngineConfig
    executor: str
    dtype: FloatName
    kv_dtype: FloatName
    logs: list[Log]


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The engine ends, for an error: the name of its class, of karat.errors or any other, and what it says."""

    kind: str
    message: str
    logs: list[Log]


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """A StreamChunk in few bytes: what most pieces do not have comes last and is left out."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    logprobs: tuple[Mapping[int, Logprob], ...] | None = None
    error: str | None = None
    prompt_logprobs: tuple[Mapping[int, Logprob] | None, ...] | None = None

    @classmethod
    def of(cls, chunk: StreamChunk) -> Self:
        return cls(
            chunk.index,
            chunk.text,
            chunk.token_ids,
            chunk.finish_reason,
            chunk.stop_reason,
            chunk.logprobs,
            chunk.error,
            chunk.prompt_logprobs,
        )

    def chunk(self) -> StreamChunk:
        return StreamChunk(
            self.index,
            self.text,
            self.token_ids,
            self.finish_reason,
            self.stop_reason,
            self.logprobs,
            self.error,
            self.prompt_logprobs,
        )


class News(msgspec.Struct, frozen=True, array_like=True):
    """What a step brought for one request.

    `progress` is (tokens of the prompt that were cached, that are computed): when the request begins, and in each step
    where that was asked for. `refused` is the class and text of the error for which the engine did not take it.
    """

    request_id: str
    pieces: list[Piece]
    ended: bool
    progress: tuple[int, int] | None = None
    refused: tuple[str, str] | None = None


class Stepped(msgspec.Struct, frozen=True, tag=True):
    """A step, all of it in one message: of every request that has news, and what the engine counts then."""

    news: list[News]
    stats: EngineStats
    logs: list[Log]


FromEngine = Loading | Ready | Failed | Stepped
