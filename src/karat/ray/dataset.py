"""generate: a dataset of Ray Data with a column of answers, by a pool of actors with an engine each."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from karat.batch_files.lines import seed_of
from karat.engine.llm import LLM
from karat.errors import UsageError
from karat.ray.placement import memory_of_engine
from karat.request import SamplingParams

Columns = dict[str, NDArray[Any]]


class Generator:
    """What an actor of the pool does with a batch of rows. The options are those of `generate`."""

    def __init__(
        self,
        model: str | None,
        column: str,
        params: Mapping[str, Any],
        seed: int,
        id_column: str | None,
        options: Mapping[str, Any],
    ) -> None:
        self._llm = LLM(model, **options)
        self._column, self._id_column = column, id_column
        self._params, self._seed = params, seed

    def __call__(self, rows: Columns) -> Columns:
        for name in filter(None, (self._column, self._id_column)):
            if name not in rows:
                raise UsageError(f"the dataset has no column {name!r}; it has {', '.join(map(repr, rows))}")
        prompts = [str(prompt) for prompt in rows[self._column]]
        names = prompts if self._id_column is None else [str(name) for name in rows[self._id_column]]
        seeds = [self._params.get("seed", seed_of(self._seed, name)) for name in names]
        each = [SamplingParams(**{**self._params, "seed": seed}) for seed in seeds]
        choices = [output.outputs[0] for output in self._llm.generate(prompts, each, use_tqdm=False)]
        return {
            **rows,
            "text": np.array([choice.text for choice in choices], dtype=object),
            "finish_reason": np.array([choice.finish_reason for choice in choices], dtype=object),
            "num_tokens": np.array([len(choice.token_ids) for choice in choices], dtype=np.int64),
            "seed": np.array(seeds, dtype=np.int64),
        }


def generate(
    dataset: "ray.data.Dataset",
    *,
    model: str | None = None,
    column: str = "prompt",
    params: Mapping[str, Any] | None = None,
    seed: int = 0,
    id_column: str | None = None,
    cores: int | None = None,
    engines: int = 1,
    rows_at_a_time: int = 64,
    **options: Any,
) -> "ray.data.Dataset":
    """`dataset` with the columns text, finish_reason, num_tokens and seed: the answers to the prompts in `column`.

    `engines` actors with `cores` cores each (None: those of this machine) have an engine of `model` (None: the
    embedded one), opened with `options` of LLM. `params` are those of SamplingParams. A row's seed follows from `seed`
    and its cell in `id_column` (None: its prompt, so equal prompts have equal answers), never from its place. So an
    answer is the same whichever actor gives it, and again after one died.
    """
    from karat.machine.cores import num_physical_cores

    each = cores or num_physical_cores()
    given = {"threads": each, **options}
    return dataset.map_batches(
        Generator,
        fn_constructor_args=(model, column, dict(params or {}), seed, id_column, given),
        batch_size=rows_at_a_time,
        num_cpus=each,
        memory=memory_of_engine(model, options),
        concurrency=engines,
        batch_format="numpy",
    )
