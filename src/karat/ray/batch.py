"""A batch (karat.batch_files) whose requests a pool answers. Its journal is here, and gets each answer once.

Ray Data runs in an actor, so whoever has the batch need not be on a node of the cluster: it may be a client (ray://).
What goes to actors and comes back are messages: bytes, and columns of them in datasets.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import msgspec
import pyarrow
import ray

from karat.batch_files.journal import BatchAnswer
from karat.batch_files.lines import BatchRequest
from karat.batch_files.running import Batch, BatchMeter, facts_of
from karat.errors import ClientError, KaratError, Packed, packed, unpacked
from karat.ray.placement import Room
from karat.ray.pool import ROWS, Answers, Job, in_pool

ROUND_ROWS, ROUND_BYTES = 100_000, 256 << 20  # of requests that Ray has at a time, so that memory does not grow
_ASKED, _SAID = "asked", "said"
_encode, _decode = msgspec.msgpack.encode, msgspec.msgpack.decode


class Post(msgspec.Struct, frozen=True, array_like=True):
    """A request, and what the journal knows it by."""

    key: str
    digest: bytes
    route: str
    body: bytes


class Posted(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Its answer, by a model of this fingerprint."""

    key: str
    digest: bytes
    fingerprint: str
    answer: BatchAnswer


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """No answer: an error of the engine's, or of its loading."""

    error: Packed


class BatchAnswers(Answers):
    """The class of the actors."""

    async def __call__(self, rows: "pyarrow.Table") -> "pyarrow.Table":
        """Posted, or Failed, for each Post."""
        posts = [_decode(message, type=Post) for message in rows.column(_ASKED).to_pylist()]
        said: list[Posted | Failed]
        try:
            fingerprint, answers = await self.answer([(post.route, post.body) for post in posts])
        except KaratError as error:
            said = [Failed(packed(error))] * len(posts)
        else:
            said = [
                Posted(post.key, post.digest, fingerprint, answer) for post, answer in zip(posts, answers, strict=True)
            ]
        return _table(_SAID, map(_encode, said))


class Round:
    """An actor in which Ray Data has requests answered: encoded Posts, in lists of ROWS, in a pool in this room.

    `job` and `room` are encoded, too.
    """

    def __init__(self, job: bytes, room: bytes, memory: int, asked: Sequence[Sequence[bytes]]) -> None:
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = context.print_on_execution_start = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        given = ray.data.from_blocks([_table(_ASKED, some) for some in asked])
        said = in_pool(given, BatchAnswers, _decode(job, type=Job), (), _decode(room, type=list[Room]), memory)
        self._tables = iter(said.iter_batches(batch_size=None, batch_format="pyarrow"))

    def come(self) -> list[bytes] | None:
        """The answers that came next, encoded Posted or Failed; None when all have come."""
        table = next(self._tables, None)
        return None if table is None else table.column(_SAID).to_pylist()


def answer_on_cluster(
    batch: Batch,
    job: Job,
    room: Sequence[Room],
    memory: int,
    meter: BatchMeter,
    tell: Callable[[str], None],
) -> None:
    """Ask a pool in this room for all that is pending; what comes is in the journal at once.

    UsageError for an engine with another model than the answers in the journal. Errors of the engines end it, and so
    does ClientError where the cluster is lost; what came until then is kept.
    """
    pending = batch.pending()
    here = ray.get_runtime_context().get_node_id()  # of a client: the node that it is connected to
    near = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(here, soft=True)
    while asked := list(_asked(pending, batch.seed)):
        made = ray.remote(num_cpus=0, scheduling_strategy=near)(Round)
        answering = made.remote(job.encoded(), _encode(room[: len(asked)]), memory, asked)
        while (said := _said(answering)) is not None:
            _keep(batch, job, said, meter)
            tell(meter.told())


def _said(answering: "ray.actor.ActorHandle") -> list[Posted | Failed] | None:
    try:
        messages = ray.get(answering.come.remote())
    except (ray.exceptions.RayActorError, ConnectionError) as error:
        first = str(error).partition("\n")[0]
        raise ClientError(f"the cluster of Ray was lost: {first}; what was answered is kept, run it again") from error
    return None if messages is None else [_decode(message, type=Posted | Failed) for message in messages]


def _keep(batch: Batch, job: Job, said: Sequence[Posted | Failed], meter: BatchMeter) -> None:
    answered = [each for each in said if isinstance(each, Posted)]
    for fingerprint in {each.fingerprint for each in answered}:
        batch.journal.settle(facts_of(batch, receipts=job.receipts, fingerprint=fingerprint))
    batch.journal.add((each.key, each.digest, each.answer) for each in answered)
    for each in said:
        if isinstance(each, Failed):
            raise unpacked(*each.error)
        meter.count(each.answer)


def _asked(pending: Iterator[BatchRequest], seed: int) -> Iterator[list[bytes]]:
    """The requests of a round, in lists of ROWS."""
    num_rows = num_bytes = 0
    while num_rows < ROUND_ROWS and num_bytes < ROUND_BYTES and (some := list(islice(pending, ROWS))):
        messages = [_encode(Post(each.key, each.digest, each.route, each.content(seed))) for each in some]
        num_rows, num_bytes = num_rows + len(some), num_bytes + sum(map(len, messages))
        yield messages


def _table(name: str, messages: "Iterator[bytes] | Sequence[bytes]") -> "pyarrow.Table":
    return pyarrow.table({name: pyarrow.array(list(messages), pyarrow.binary())})
