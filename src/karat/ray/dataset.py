"""generate: a dataset of Ray Data with columns of answers, by a pool of actors with an engine each.

A row asks for what a line of a batch with its cell would (karat.batch_files.lines), and has the answer of that.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow
import ray

from karat.batch_files.journal import BatchAnswer
from karat.batch_files.lines import BatchRequest, Fault, LineReading
from karat.batch_files.sources import record_of
from karat.errors import UsageError
from karat.ray.memory import memory_there
from karat.ray.placement import places
from karat.ray.pool import Answers, Job, in_pool, with_columns
from karat.request import shown

_COLUMNS = {
    "text": pyarrow.string(),
    "finish_reason": pyarrow.string(),
    "num_tokens": pyarrow.int64(),
    "seed": pyarrow.int64(),
    "error": pyarrow.string(),
}


class Asking(msgspec.Struct, frozen=True, kw_only=True):
    """What rows ask for: see `generate`."""

    column: str
    id_column: str | None
    chat: bool
    params: dict[str, Any]
    seed: int


class RowAnswers(Answers):
    """The class of the actors, made of an encoded Job and an encoded Asking."""

    def __init__(self, job: bytes, asking: bytes) -> None:
        super().__init__(job)
        self._asking = msgspec.msgpack.decode(asking, type=Asking)
        self._reading = LineReading(self._asking.params)

    async def __call__(self, rows: "pyarrow.Table") -> "pyarrow.Table":
        lines = self._lines(rows)
        asked = [line for line in lines if isinstance(line, BatchRequest)]
        _, answers = await self.answer([(line.route, line.content(self._asking.seed)) for line in asked])
        coming = iter(answers)
        cells = [_unanswered(line.message) if isinstance(line, Fault) else _told(next(coming)) for line in lines]
        columns = zip(*cells, strict=True) if cells else [()] * len(_COLUMNS)
        made = {
            name: pyarrow.array(column, kind) for (name, kind), column in zip(_COLUMNS.items(), columns, strict=True)
        }
        return with_columns(rows, made)

    def _lines(self, rows: "pyarrow.Table") -> list[BatchRequest | Fault]:
        names = [name for name in (self._asking.column, self._asking.id_column) if name is not None]
        for name in names:
            if name not in rows.column_names:
                raise UsageError(
                    f"the dataset has no column {name!r}; it has {', '.join(map(repr, rows.column_names))}"
                )
        cells = zip(*(rows.column(name).to_pylist() for name in names), strict=True)
        return [self._reading.line(0, record_of(*cell, chat=self._asking.chat)) for cell in cells]


def generate(
    dataset: "ray.data.Dataset",
    *,
    model: str | None = None,
    column: str = "prompt",
    params: Mapping[str, Any] | None = None,
    chat: bool = False,
    seed: int = 0,
    id_column: str | None = None,
    cores: int | None = None,
    engines: int | None = None,
    **options: Any,
) -> "ray.data.Dataset":
    """`dataset` with columns text, finish_reason, num_tokens and seed: the answers to the prompts in `column`, which
    are texts, or conversations as lists of messages. In the column error is why there is none.

    Actors with `cores` cores each (None: all of a node's but one, with which datasets are read and written) have an
    engine of `model` (None: the embedded one), opened with `options` of AsyncLLM: as many as the cluster has room for,
    `engines` at the most. `params` are fields of a request, and `chat` makes a text the message of a user. A row's seed
    follows from `seed` and its cell in `id_column` (None: what it asks, so equal prompts have equal answers), never
    from its place. So an answer is the same whichever actor gives it, and again after one died.

    Raises UsageError if the cluster has no room, and what loading the model would raise.
    """
    for name in params or {}:
        if name in ("stream", "n"):
            raise UsageError(f"params[{shown(name)}]: a row has one answer, and that whole; leave it out")
    if not ray.is_initialized():
        ray.init()
    job = Job(model=model, options=options)
    asking = Asking(column=column, id_column=id_column, chat=chat, params=dict(params or {}), seed=seed)
    memory = memory_there(model, options)
    room = places(memory, cores=cores, most=engines, spare=1)
    return in_pool(dataset, RowAnswers, job, (msgspec.msgpack.encode(asking),), room, memory)


def _told(answer: BatchAnswer) -> tuple[Any, ...]:
    body = msgspec.json.decode(answer.body)
    if not answer.is_good:
        return _unanswered(body["error"]["message"])
    (choice,) = body["choices"]
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    return text, choice["finish_reason"], body["usage"]["completion_tokens"], body["karat"]["seed"], None


def _unanswered(message: str) -> tuple[Any, ...]:
    return None, None, None, None, message
