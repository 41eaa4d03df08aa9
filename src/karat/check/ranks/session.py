"""What the stages of `karat check --tensor-parallel-size` share: the plan, one process, the ranks and a text."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from karat.check.model.checked import CheckedModel
from karat.check.ranks.parallel import Blame
from karat.check.ranks.rank import HeldPart
from karat.config import FloatName
from karat.engine.engine_config import EngineConfig
from karat.engine.ranks.rank_model import ParallelModel
from karat.kv.blocks import BLOCK_SIZE
from karat.kv.groups import bytes_of_state, windows_of
from karat.models.decoder import outline
from karat.models.registry import Model


@dataclass(frozen=True, slots=True)
class ParallelStage:
    """The result of one stage: verdict "exact", "numerics", "bug" or "skipped", and what was compared, in lines."""

    name: str
    verdict: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelPlan:
    """`model` on `size` ranks, over a text of `num_tokens` random tokens.

    trace: the file for the traces of all ranks, if any. module: the Python module that the ranks' processes run.
    """

    model: CheckedModel
    size: int
    num_tokens: int
    executor: str = "auto"
    dtype: FloatName = "float32"
    kv_dtype: FloatName | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # of the executor
    trace: Path | None = None
    seed: int = 0
    module: str = "karat.check.ranks.rank"

    def sizes(self, chunk: int) -> EngineConfig:
        """Sizes of an engine that computes the text in chunks of so many tokens."""
        keeps = outline(self.model.config).keeps
        return EngineConfig(
            vocab_size=self.model.config.vocab_size,
            max_model_len=self.num_tokens,
            num_blocks=-(-self.num_tokens // BLOCK_SIZE),
            block_size=BLOCK_SIZE,
            max_num_seqs=1,
            max_num_batched_tokens=chunk,
            windows=windows_of(keeps),
            state_bytes=bytes_of_state(keeps, "float32"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSession:
    """`control` is the model on one process, `ranks` the same on several; `tokens` are the text.

    held: what each rank holds. faults: where that differs from the checkpoint.
    """

    plan: ParallelPlan
    control: Model
    ranks: ParallelModel
    tokens: Sequence[int]
    kv_dtype: FloatName
    held: Sequence[Sequence[HeldPart]]
    faults: Sequence[Blame]


def overall(verdicts: Collection[str]) -> str:
    """The worst of several verdicts; "skipped" only if all are."""
    return next(verdict for verdict in ("bug", "numerics", "exact", "skipped") if verdict in verdicts)
