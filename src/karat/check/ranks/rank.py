"""A rank with two more commands: it reports the weights that it holds, and records its results."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from karat.check.record.executors import Steps, record_model
from karat.check.trace.selection import Selection
from karat.check.trace.writing import write_trace
from karat.config import FloatName
from karat.engine.ranks.messages import LoadRank, RankDone, Step
from karat.engine.ranks.rank import Rank, serve


class Hold(msgspec.Struct, frozen=True, tag=True):
    """Report the parts of tensors that the rank holds; answered by Holds."""


class HeldPart(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's part of a tensor, read back from the executor: pieces [start, stop) of an axis (axis None: all of it).

    digest: SHA-256 of the part's bytes in the stored type `dtype`.
    """

    source: str
    axis: int | None
    pieces: tuple[tuple[int, int], ...]
    dtype: str
    digest: str


class Holds(msgspec.Struct, frozen=True, tag=True):
    parts: tuple[HeldPart, ...]


class RankRecord(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Compute a text op by op and write each rank's trace into the file of that rank; answered by Done."""

    number: int
    token_ids: tuple[int, ...]
    cuts: tuple[int, ...]
    decode: int
    kv_dtype: FloatName
    files: tuple[str, ...]


def main(arguments: Sequence[str]) -> None:
    """The entry point of the process, with the arguments of karat.engine.ranks.rank's."""
    serve(arguments, CheckedRank)


class CheckedRank(Rank):
    COMMANDS = LoadRank | Step | Hold | RankRecord

    def do(self, command: msgspec.Struct) -> msgspec.Struct:
        match command:
            case Hold():
                return self._hold()
            case RankRecord():
                return self._record(command)
        return super().do(command)

    def _hold(self) -> Holds:
        model, group = self._model, self._group
        assert model is not None and group is not None, "nothing is loaded"
        parts = []
        for spec, loaded in model.parts.items():
            held = model.ops.held(loaded)
            group.stir()
            parts.append(
                HeldPart(
                    source=spec.source,
                    axis=spec.shard_axis if spec.pieces else None,
                    pieces=spec.pieces or (),
                    dtype=held.dtype,
                    digest=hashlib.sha256(held.data.data).hexdigest(),
                )
            )
        return Holds(tuple(parts))

    def _record(self, record: RankRecord) -> RankDone:
        model, group = self._model, self._group
        assert model is not None and group is not None, "nothing is loaded"
        group.begin(record.number)
        steps = Steps(record.token_ids, record.cuts, record.decode)
        selection = Selection(attention=False)
        trace = record_model(model, steps, selection=selection, kv_dtype=record.kv_dtype)
        write_trace(Path(record.files[self.rank]), trace)
        return RankDone()
