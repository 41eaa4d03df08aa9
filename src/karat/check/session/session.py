"""A check under way: its plan, and what its stages share (ids, engine, the run through the layers, other runs)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from karat import LLM
from karat.check.model.checked import CheckedModel
from karat.check.record.executors import Steps
from karat.check.record.layerwise import LayerwiseRun
from karat.check.record.llamacpp import record_llamacpp
from karat.check.replay.gathering import gathered
from karat.check.replay.replay import Replay
from karat.check.session import agreement
from karat.check.session.stage import Verdict
from karat.check.session.streamed import Results, Streamed
from karat.check.trace.format import Array, Trace, make_info
from karat.check.trace.reading import read_trace
from karat.check.trace.selection import EVERYTHING
from karat.checkpoint import ModelCheckpoint
from karat.config import FLOAT_BYTES, FloatName
from karat.engine.model_loading.llm_options import GenerationSource
from karat.errors import NoTokenizerError, UsageError
from karat.models.decoder import default_kv_dtype
from karat.ops.contract import activations_read
from karat.ops.registry import create
from karat.text import Tokenizer
from karat.text.placeholder import placeholder_tokenizer

STAGES = ("tokens", "weights", "layers", "logits", "generation", "story", "health", "invariance")
PROMPT = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw a "
    "big, red ball. It was very high in a tree, and nobody knew how it had come there."
)
_STORY_TOKENS = 512  # of context, for prompt and answer of a story


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckPlan:
    """What is checked: an opened model, how Karat computes it, and what it is compared with.

    prompt: None stands for PROMPT, or for ids drawn by `seed` if the model has no tokenizer. With `other`, a trace of
    one sequence, the trace's ids are computed instead.
    """

    model: CheckedModel
    num_tokens: int
    prompt: str | None = None
    executor: str = "auto"
    dtype: Any = "float32"
    kv_dtype: Any = None
    options: Mapping[str, Any] = field(default_factory=dict)  # of the executor
    generation_config: GenerationSource = "auto"  # whose sampling draws the stories
    with_hf: bool = False
    with_llamacpp: bool = False
    other: Path | None = None  # a trace of another engine, which is judged too
    hybrid: tuple[str, ...] = ()  # parts that Karat computes in a transformers model, one at a time
    layers: frozenset[int] | None = None  # the layers to judge (None: all); results outside of layers are always judged
    original: CheckedModel | None = None  # the model that a quantised one was made of
    stages: tuple[str, ...] = STAGES
    stories: int = 8
    seed: int = 0


class CheckSession:
    """A plan being carried out. Results of one stage are kept for the next.

    no_tokenizer  why `tokenizer` is a placeholder; None: it is the model's own
    drawn         whether `ids` are random
    aside         why the trace is not compared with a run of Karat's; None: it is compared

    Raises NoTokenizerError for a prompt that needs a tokenizer, TraceError for a trace that does not fit the model.
    """

    def __init__(self, plan: CheckPlan, progress: Callable[[str], None] = lambda _: None) -> None:
        self.plan = plan
        self.progress = progress  # told in a few words what is being done
        self.tokenizer, self.no_tokenizer = tokenizer_of(plan.model.checkpoint, plan.model.config.vocab_size)
        self.is_quantised = any(weight.is_quantised for weight in plan.model.stored.values())
        self.ops = create(plan.executor, plan.dtype, plan.options)
        self.executor, self.dtype = self.ops.executor, self.ops.dtype
        self.activations = activations_read(plan.model.types, self.ops.activations)
        if plan.kv_dtype is not None and plan.kv_dtype not in FLOAT_BYTES:
            raise UsageError(f"--kv-dtype {plan.kv_dtype}: expected one of {', '.join(FLOAT_BYTES)}")
        self.kv_dtype = plan.kv_dtype or default_kv_dtype(plan.model.config, self.ops)
        self.other = None if plan.other is None else self._read(plan.other)
        self.aside = None if self.other is None else _why_not_ours(self.other, plan.model)
        self.has_trace = self.other is not None and self.aside is None
        self.drawn = self.no_tokenizer is not None and not self.has_trace
        self.ids = self._ids()
        self.results: Results | None = None

    @property
    def prompt(self) -> str:
        return PROMPT if self.plan.prompt is None else self.plan.prompt

    def shown(self, token_id: int) -> str:
        """A token id with its text, where there is a tokenizer that knows it."""
        if self.no_tokenizer is not None:
            return str(token_id)
        return f"{token_id} {self.tokenizer.decode([token_id], skip_special_tokens=False)!r}"

    @cached_property
    def llm(self) -> LLM:
        """The engine, with a context that the stages need."""
        longest = self.plan.model.config.max_position_embeddings
        return self.engine(max_num_seqs=8, max_model_len=min(longest, len(self.ids) + _STORY_TOKENS))

    def engine(self, **sizes: Any) -> LLM:
        """An engine of this plan; `sizes` are options of LLM and override those of the plan."""
        plan = self.plan
        options = {"kv_dtype": plan.kv_dtype, **plan.options, **sizes}
        return LLM(
            plan.model.checkpoint,
            tokenizer=self.tokenizer,
            executor=plan.executor,
            dtype=plan.dtype,
            generation_config="none",
            **options,
        )

    def versions(self) -> dict[str, str]:
        """The versions of the engines that are compared with."""
        names = [
            *(["torch", "transformers"] if self.plan.with_hf else []),
            *(["llama_cpp_python"] if self.plan.with_llamacpp else []),
        ]
        other = (
            {} if self.other is None else {"trace": str(self.plan.other), "trace_executor": self.other.info.executor}
        )
        return {name: version(name) for name in names} | other

    @cached_property
    def beside(self) -> Mapping[str, Trace]:
        """Whole runs of the same ids by other engines: "llama.cpp", "trace"."""
        plan, found = self.plan, {}
        if plan.with_llamacpp:
            self.progress("llama.cpp")
            found["llama.cpp"] = record_llamacpp(plan.model.path, plan.model.stored, self.steps)
        if self.has_trace:
            assert self.other is not None
            found["trace"] = self.other
        return found

    @property
    def steps(self) -> Steps:
        """How the ids are computed: in the steps of the trace, or in two steps."""
        if self.has_trace:
            assert self.other is not None
            return Steps(self.ids, self.other.info.steps)
        return Steps.chunked(self.ids, max(1, len(self.ids) * 2 // 3))

    @property
    def rounding(self) -> Verdict:
        """The verdict if all differences are rounding."""
        return "quantisation" if self.is_quantised else "numerics"

    def run(self) -> Results:
        """The run through the layers, each judged as it is computed; made once for all stages."""
        if self.results is None:
            self.results = self._run_on(self.kv_dtype)
        return self.results

    @cached_property
    def run_unrounded(self) -> Results:
        """The same run on a cache that rounds nothing, like the caches of transformers and of a traced llama.cpp."""
        return self.run() if self.kv_dtype == self.dtype else self._run_on(self.dtype)

    def rounds_nothing(self, other: str) -> bool:
        """Whether the cache of the other side rounds nothing."""
        info = self.beside[other].info if other in self.beside else None
        return info is None or info.kv_dtype in (None, info.dtype)

    def _run_on(self, kv_dtype: FloatName) -> Results:
        plan, model = self.plan, self.plan.model
        run = LayerwiseRun(model.config, model.stored, self.ops, self.steps, kv_dtype, logit_rows=self._logit_rows())
        streamed = Streamed(model, run, layers=plan.layers, progress=self.progress, seed=plan.seed)
        info, name = run.info, "lm_head"
        if plan.with_hf:
            theirs = replace(make_info(self.ids, executor="transformers"), rows=info.rows)
            rows = info.rows.get(name, range(len(self.ids)))

            def judge(arrays: dict[str, Array]) -> None:
                streamed.advance({"transformers": (theirs, arrays)}, forced="transformers")

            agreement.hf_layerwise(model.path, self.ids, rows, judge)
        others = {other: (trace.info, trace.arrays) for other, trace in self.beside.items()}
        while streamed.advance(others):
            pass
        return streamed.results

    def _logit_rows(self) -> tuple[int, ...]:
        """The rows of logits that the trace has, or as many of the last as fit."""
        fitting = EVERYTHING.rows_for(len(self.ids), self.plan.model.config.vocab_size)
        if self.has_trace and self.other is not None and "lm_head" in self.other.arrays:
            chosen = tuple(int(row) for row in self.other.rows_of("lm_head") if row in fitting)
            return chosen or tuple(fitting)
        return tuple(fitting)

    def _ids(self) -> tuple[int, ...]:
        plan = self.plan
        if self.has_trace:
            assert self.other is not None
            return self.other.info.token_ids
        if self.no_tokenizer is None:
            return tuple(self.tokenizer.encode(self.prompt))[: plan.num_tokens]
        if plan.prompt is not None:
            raise NoTokenizerError(
                f"the prompt needs a tokenizer: {self.no_tokenizer}; leave it out, and ids are drawn"
            )
        config = plan.model.config
        count = min(plan.num_tokens, config.max_position_embeddings)
        return tuple(np.random.default_rng(plan.seed).integers(0, config.vocab_size, count).tolist())

    def _read(self, path: Path) -> Trace:
        """The trace, ranks joined. Raises TraceError if it does not fit the model."""
        graph = self.plan.model.graph
        trace, _ = gathered(graph, read_trace(path))
        Replay(graph, self.plan.model.weights(trace.info.dtype), trace)
        return trace


def tokenizer_of(checkpoint: ModelCheckpoint, vocab_size: int) -> tuple[Tokenizer, str | None]:
    """The model's tokenizer; of a model without one that Karat reads, one of made-up words, and why.

    Raises TokenizerError for one that is there and broken.
    """
    try:
        return Tokenizer.of(checkpoint), None
    except NoTokenizerError as fault:
        return placeholder_tokenizer(vocab_size), str(fault)


def _why_not_ours(trace: Trace, model: CheckedModel) -> str | None:
    """What keeps a run of ours from being laid beside the trace; None: nothing."""
    info, longest = trace.info, model.config.max_position_embeddings
    if len(set(info.sequences)) > 1:
        return f"the trace has {len(set(info.sequences))} sequences"
    if info.positions != tuple(range(info.num_tokens)):
        return "the positions of the trace are not 0, 1, 2 …"
    return (
        f"the trace has {info.num_tokens} tokens, the model room for {longest}" if info.num_tokens > longest else None
    )
