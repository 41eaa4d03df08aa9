"""Messages between AsyncLLM and the process of its engine: typed (msgspec), never pickle."""

from collections.abc import Mapping

import msgspec

from karat.checkpoint.overrides import Overrides
from karat.config import Activations, FloatName
from karat.engine.engine_config import EngineConfig
from karat.engine.model_loading.llm_options import Options
from karat.engine.receipts.comparing import Compare
from karat.engine.receipts.verifying import ReplayCommand
from karat.engine.requests.request_updates import RequestUpdate
from karat.engine.stats import EngineStats
from karat.errors import Packed
from karat.outputs import CompletionOutput
from karat.receipts.comparison import Parting
from karat.receipts.verdict import Difference
from karat.request_record import Request


class Open(msgspec.Struct, frozen=True, tag=True):
    """Load the model at `path`, with the tokenizer at `tokenizer` (None: its own); the first message to the engine.

    Loading messages come back, then Ready or Failed.
    """

    path: str
    tokenizer: str | None
    options: Options
    overrides: Overrides


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Free what a request, a replay or a comparison holds. No effect if it has ended or is unknown."""

    request_id: str


# A Request is computed; its id was never used before. Replayed comes back for a ReplayCommand, which has token ids, and
# ComparisonEnded for a Compare, with the id of its request.
ToEngine = Open | Request | Abort | ReplayCommand | Compare
Asked = Request | ReplayCommand | Compare


def request_of(asked: Asked) -> Request:
    """The request that is computed, replayed or compared."""
    return asked if isinstance(asked, Request) else asked.request


class Loading(msgspec.Struct, frozen=True, tag=True):
    """Bytes of the weights loaded so far, and of all weights."""

    done: int
    total: int


class Log(msgspec.Struct, frozen=True, array_like=True):
    """A log record of the engine's process, for the logger of this name in the parent."""

    level: int
    logger: str
    text: str


class Ready(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The model is loaded; these are its properties."""

    sizes: EngineConfig
    executor: str
    dtype: FloatName
    kv_dtype: FloatName
    activations: Activations
    contracts: Mapping[Activations, int]  # of karat.engine.model_loading.load_plan.LoadPlan
    packed: str | None  # the path of the packed file that holds the matrices
    logs: list[Log]


class EngineFailed(msgspec.Struct, frozen=True, tag=True):
    """The engine ends with an error. The text of a bug is its traceback."""

    error: Packed
    logs: list[Log]


class Replayed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The end of a replay: the first different token, or the answer; or why it could not be computed."""

    request_id: str
    difference: Difference | None
    output: CompletionOutput | None
    refused: Packed | None = None


class ComparisonEnded(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The end of a comparison: where the answer goes on otherwise, if it does; or why it could not be computed."""

    request_id: str
    parting: Parting | None
    refused: Packed | None = None


class Stepped(msgspec.Struct, frozen=True, tag=True):
    """One step in one message: the update of every request that has one, and the engine's counters.

    An update has progress when the request begins and, if asked for, in each step of the prompt. It has no output.
    """

    updates: list[RequestUpdate]
    stats: EngineStats
    logs: list[Log]
    replayed: list[Replayed | ComparisonEnded] = []


FromEngine = Loading | Ready | EngineFailed | Stepped
