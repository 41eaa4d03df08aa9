"""A batch (karat.batch_files) whose requests a pool answers. Its journal is here, and gets each answer once.

What goes to the actors and comes back are messages: columns of bytes in datasets of Ray Data.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import msgspec
import pyarrow
import ray

from karat.batch_files.journal import BatchAnswer
from karat.batch_files.lines import BatchRequest
from karat.batch_files.running import Batch, BatchMeter, facts_of
from karat.errors import KaratError, Packed, packed, unpacked
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


def answer_on_cluster(
    batch: Batch,
    job: Job,
    room: Sequence[Room],
    memory: int,
    meter: BatchMeter,
    tell: Callable[[str], None],
) -> None:
    """Ask a pool in this room for all that is pending; what comes is in the journal at once.

    UsageError for an engine with another model than the answers in the journal. Errors of the engines end it, and what
    came until then is kept.
    """
    pending = batch.pending()
    while blocks := list(_blocks(pending, batch.seed)):
        asked = ray.data.from_blocks(blocks)
        said = in_pool(asked, BatchAnswers, job, (), room[: len(blocks)], memory)
        for table in said.iter_batches(batch_size=None, batch_format="pyarrow"):
            _keep(batch, job, table, meter)
            tell(meter.told())


def _keep(batch: Batch, job: Job, table: "pyarrow.Table", meter: BatchMeter) -> None:
    said: list[Posted | Failed] = [_decode(each, type=Posted | Failed) for each in table.column(_SAID).to_pylist()]
    answered = [each for each in said if isinstance(each, Posted)]
    for fingerprint in {each.fingerprint for each in answered}:
        batch.journal.settle(facts_of(batch, receipts=job.receipts, fingerprint=fingerprint))
    batch.journal.add((each.key, each.digest, each.answer) for each in answered)
    for each in said:
        if isinstance(each, Failed):
            raise unpacked(*each.error)
        meter.count(each.answer)


def _blocks(pending: Iterator[BatchRequest], seed: int) -> "Iterator[pyarrow.Table]":
    """The requests of a round, in tables of ROWS."""
    num_rows = num_bytes = 0
    while num_rows < ROUND_ROWS and num_bytes < ROUND_BYTES and (some := list(islice(pending, ROWS))):
        messages = [_encode(Post(each.key, each.digest, each.route, each.content(seed))) for each in some]
        num_rows, num_bytes = num_rows + len(some), num_bytes + sum(map(len, messages))
        yield _table(_ASKED, messages)


def _table(name: str, messages: "Iterator[bytes] | Sequence[bytes]") -> "pyarrow.Table":
    return pyarrow.table({name: pyarrow.array(list(messages), pyarrow.binary())})
