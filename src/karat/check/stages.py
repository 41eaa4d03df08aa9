"""The stages of `karat check`: each looks at one thing and ends in a verdict."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from karat import LLM, SamplingParams
from karat.check import agreement
from karat.check.diagnose import Diagnoser
from karat.check.distances import distance
from karat.check.inputs import tokens_stage, weights_stage
from karat.check.invariance import invariance_of
from karat.check.layerwise import LayerwiseRun
from karat.check.llamacpp import record_llamacpp
from karat.check.model import CheckedModel
from karat.check.record import Steps
from karat.check.stage import Stage, Verdict
from karat.check.streamed import Results, Streamed
from karat.check.trace import Array, Trace, make_info, read_trace, rows_of
from karat.check.wording import diagnosis_lines, times
from karat.checkpoint import open_model
from karat.config import FloatName, embedded_model_path
from karat.errors import NumericsError
from karat.ops.registry import create
from karat.text import Tokenizer

STAGES = ("tokens", "weights", "layers", "logits", "generation", "story", "health", "invariance")
WORDS = (
    "lantern fox river kite button bridge whistle acorn ladder turtle drum candle pebble wagon feather mirror".split()
)
_STORY_TOKENS = 512  # of context, for prompt and answer of a story


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is checked: a model already opened, how Karat computes it, and with whom it is compared ("hf" or not)."""

    model: CheckedModel
    prompt: str
    num_tokens: int
    executor: str = "auto"
    dtype: Any = "float32"
    kv_dtype: Any = None
    threads: int | None = None
    with_hf: bool = False
    with_llamacpp: bool = False
    other: Path | None = None  # a trace of another engine, judged too
    hybrid: tuple[str, ...] = ()  # parts that Karat computes in a transformers model, one at a time
    layers: frozenset[int] | None = None  # judge only these; what is outside the layers always is
    original: CheckedModel | None = None  # what a quantised model was made of
    stages: tuple[str, ...] = STAGES
    stories: int = 8
    seed: int = 0


class Checker:
    """Runs the stages one by one; what one stage computes, the next may use."""

    def __init__(self, plan: Plan, progress: Callable[[str], None] = lambda _: None) -> None:
        self.plan = plan
        self._progress = progress  # told in a few words what is being done
        self.tokenizer = Tokenizer.of(plan.model.checkpoint)
        self.ids = tuple(self.tokenizer.encode(plan.prompt))[: plan.num_tokens]
        self.is_quantised = any(weight.is_quantised for weight in plan.model.stored.values())
        self.ops = create(plan.executor, plan.dtype, plan.threads)
        self.executor, self.dtype = self.ops.executor, self.ops.dtype
        self.kv_dtype = plan.kv_dtype or self.ops.default_kv_dtype
        self.results: Results | None = None

    @cached_property
    def llm(self) -> LLM:
        """The engine, with a context that the stages need."""
        plan = self.plan
        longest = plan.model.config.max_position_embeddings
        return LLM(
            plan.model.checkpoint, executor=plan.executor, dtype=plan.dtype, kv_dtype=plan.kv_dtype,
            threads=plan.threads, max_num_seqs=8, max_model_len=min(longest, len(self.ids) + _STORY_TOKENS),
        )  # fmt: skip

    def versions(self) -> dict[str, str]:
        """Of what was compared with."""
        names = [*(["torch", "transformers"] if self.plan.with_hf else []),
                 *(["llama_cpp_python"] if self.plan.with_llamacpp else [])]  # fmt: skip
        return {name: version(name) for name in names}

    @cached_property
    def llama_trace(self) -> Trace:
        """llama.cpp's run of the same text in the same steps."""
        return record_llamacpp(self.plan.model.path, self.plan.model.stored, self._steps)

    @property
    def _steps(self) -> Steps:
        return Steps.chunked(self.ids, max(1, len(self.ids) * 2 // 3))

    def stages(self) -> Iterator[Stage]:
        """Each stage as it finishes."""
        plan = self.plan
        work: dict[str, Callable[[], Stage]] = {
            "tokens": lambda: tokens_stage(plan.model, self.tokenizer, plan.prompt, with_hf=plan.with_hf,
                                             with_llamacpp=plan.with_llamacpp),
            "weights": lambda: weights_stage(plan.model, with_hf=plan.with_hf, original=plan.original),
            "layers": self._layers, "logits": self._logits, "generation": self._generation, "story": self._story,
            "health": self._health, "invariance": self._invariance,
        }  # fmt: skip
        chosen = [(name, work[name]) for name in STAGES if name in plan.stages]
        chosen += [("llama.cpp", self._llamacpp)] if plan.with_llamacpp else []
        chosen += [("trace", self._other)] if plan.other is not None else []
        chosen += [("hybrid", self._hybrid)] if plan.hybrid else []
        for name, run in chosen:
            self._progress(name)
            start = time.monotonic()
            try:
                stage = run()
            except NumericsError as fault:
                stage = Stage(name, "bug", [str(fault)])
            yield replace(stage, seconds=time.monotonic() - start)

    @property
    def rounding(self) -> Verdict:
        """The verdict where nothing but rounding differs."""
        return "quantisation" if self.is_quantised else "numerics"

    def _run(self) -> Results:
        """The text through the model, layer by layer, each judged as it is made; once for all stages."""
        if self.results is None:
            self.results = self._run_on(self.kv_dtype)
        return self.results

    @cached_property
    def _run_as_others(self) -> Results:
        """The same run on a cache that rounds nothing, as that of transformers and of a traced llama.cpp."""
        return self._run() if self.kv_dtype == self.dtype else self._run_on(self.dtype)

    def _run_on(self, kv_dtype: FloatName) -> Results:
        plan, model = self.plan, self.plan.model
        run = LayerwiseRun(model.config, model.stored, self.ops, self._steps, kv_dtype)
        streamed = Streamed(model, run, layers=plan.layers, progress=self._progress, seed=plan.seed)
        info, name = run.info, "lm_head"
        if plan.with_hf:
            theirs = replace(make_info(self.ids, executor="transformers"), rows=info.rows)
            rows = info.rows.get(name, range(len(self.ids)))

            def judge(arrays: dict[str, Array]) -> None:
                streamed.advance({"transformers": (theirs, arrays)})

            agreement.hf_layerwise(model.path, self.ids, rows, judge)
        others = {}
        if plan.with_llamacpp and self.llama_trace.info.activations is None:
            others["llama.cpp"] = (self.llama_trace.info, self.llama_trace.arrays)
        while streamed.advance(others):
            pass
        return streamed.results

    def _layers(self) -> Stage:
        results, graph = self._run(), self.plan.model.graph
        diagnosis = results.diagnosis
        worst = max(results.findings, key=lambda f: f.ratio)
        drift = max(results.drift["float64"], key=lambda d: d.ratio)
        lines = diagnosis_lines(diagnosis, graph, results.info)[2:] if not diagnosis.is_healthy else [
            f"{len(results.findings)} results, each re-run in float64 from its recorded inputs: at most "
            f"{times(worst.ratio)} the noise floor ({worst.name})",
            f"accumulated from the token ids on: at most {times(drift.ratio)} ({drift.name})",
        ]  # fmt: skip
        exact = all(finding.exact for finding in results.findings)
        right = diagnosis.is_healthy and np.isfinite(drift.ratio)
        verdict: Verdict = "bug" if not right else "exact" if exact else self.rounding
        facts: dict[str, Any] = {"worst": worst.name, "ratio": worst.ratio, "drift": drift.ratio}
        for other, drifts in results.drift.items():
            if other == "float64":
                continue
            far = max(drifts, key=lambda d: d.ratio)
            facts[f"against_{other}"] = far.ratio
            lines.append(f"against {other}: at most {times(far.ratio)} ({far.name})")
            if far.ratio > agreement.DRIFT_LIMIT and self.kv_dtype != self.dtype:
                # Their cache rounds nothing, and ours does: compared on a cache that does not.
                far = max(self._run_as_others.drift[other], key=lambda d: d.ratio)
                lines[-1] += f"; on a {self.dtype} cache, as {other} has it, {times(far.ratio)} ({far.name})"
            if far.ratio > agreement.DRIFT_LIMIT:
                verdict = "bug"
        return Stage("layers", verdict, lines, facts)

    def _logits(self) -> Stage:
        results = self._run()
        ours = results.logits["ours"]
        facts = agreement.logit_facts(ours, results.logits["float64"])
        lines = agreement.logit_lines("float64", facts)
        comparable = np.isfinite(facts["largest"])
        for other in results.logits.keys() - {"ours", "float64"}:
            against = agreement.logit_facts(ours, results.logits[other])
            lines += agreement.logit_lines(other, against)
            facts[f"against_{other}"] = against
            comparable &= np.isfinite(against["largest"])
        rows = rows_of(results.info, "lm_head")
        if bad := agreement.not_finite(ours, rows):
            lines.insert(0, bad)
        if len(ours) > 1:
            shown = {side: agreement.text_perplexity(logits, rows, self.ids) for side, logits in results.logits.items()}
            facts["perplexity"] = shown
            lines.append("perplexity of the text: " + ", ".join(f"{side} {value:.6g}" for side, value in shown.items()))
        explained = all(flip.startswith("flip") for flip in facts["flips"])
        head = next((drift.ratio for drift in results.drift["float64"] if drift.name == "lm_head"), 0.0)
        ok = comparable and explained and head <= agreement.DRIFT_LIMIT
        verdict: Verdict = "exact" if facts["largest"] == 0 else self.rounding
        if self.plan.original is not None:
            far = agreement.logit_facts(ours, agreement.reference_logits(self.plan.original, results.info))
            facts["against_original"] = far
            lines.append(
                f"against the original weights in float64: KL {far['mean_kl']:.2g} nats a token, at most "
                f"{far['kl']:.2g}; likeliest token equal in {far['top1']} of {far['rows']} rows"
            )
        return Stage("logits", verdict if ok else "bug", lines, facts)

    def _generation(self) -> Stage:
        count = min(24, self.llm.max_model_len - len(self.ids))
        if count < 1:
            return Stage("generation", "skipped", ["the prompt fills the context"])
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, logprobs=2)
        (output,) = self.llm.generate([list(self.ids)], params)
        answer = output.outputs[0]
        chosen = list(answer.token_ids)
        whole = self.llm.logits([*self.ids, *chosen])
        bad = agreement.not_finite(whole, range(len(whole)))
        if bad or answer.error or len(chosen) != count:
            how = f"with an error after {len(chosen)} of {count} tokens: {answer.error}" if answer.error else (
                f"after {len(chosen)} of {count} tokens ({answer.finish_reason})")  # fmt: skip
            lines = [f"the answer ended {how}", *([f"one pass over all: {bad}"] if bad else [])]
            return Stage("generation", "bug", lines, {"token_ids": chosen})
        again = whole[len(self.ids) - 1 : -1].argmax(axis=1).tolist()
        same = chosen == again
        lines = [f"{len(chosen)} tokens, decoded one by one, are those of one pass over all: {'yes' if same else 'no'}"]
        verdict: Verdict = "exact" if same else "bug"
        if self.plan.with_hf:
            lines.append(self._against_transformers(chosen, whole))
            if lines[-1].startswith("bug"):
                verdict = "bug"
        return Stage("generation", verdict, lines, {"token_ids": chosen})

    def _against_transformers(self, chosen: Sequence[int], whole: Array) -> str:
        """Whether transformers would have chosen our tokens; whole: our logits [tokens, vocab] of prompt and tokens.

        Its cache rounds nothing: where the two differ and ours does, both are compared on a cache that does not.
        """
        rows: list[Array] = []
        every = [*self.ids, *chosen]
        agreement.hf_layerwise(
            self.plan.model.path, every, range(len(self.ids) - 1, len(every) - 1),
            lambda arrays: rows.extend([arrays["lm_head"]] if "lm_head" in arrays else []),
        )  # fmt: skip
        theirs = rows[0].astype(np.float64)
        same = f"transformers takes the same {len(chosen)} tokens"
        difference = agreement.greedy_difference(theirs, whole[len(self.ids) - 1 : -1])
        if difference is None:
            return same
        if self.kv_dtype == self.dtype:
            return difference
        llm = LLM(
            self.plan.model.checkpoint, executor=self.plan.executor, dtype=self.plan.dtype, kv_dtype=self.dtype,
            threads=self.plan.threads, max_num_seqs=1, max_model_len=len(every),
        )  # fmt: skip
        remaining = agreement.greedy_difference(theirs, llm.logits(every)[len(self.ids) - 1 : -1])
        if remaining is None:
            return f"{same} on a {self.dtype} cache; on the {self.kv_dtype} one {difference.partition(': ')[2]}"
        return f"{remaining} (both on a {self.dtype} cache)"

    def _story(self) -> Stage:
        if not self.tokenizer.chat_template:
            return Stage("story", "skipped", ["the model has no chat template"])
        rng = np.random.default_rng(self.plan.seed)
        words = [WORDS[i] for i in rng.permutation(len(WORDS))[: self.plan.stories]]
        kind = "story" if self.plan.model.config.num_layers < 12 else "haiku"
        chats = [[{"role": "user", "content": f"Tell me a {kind} about a {word}."}] for word in words]
        outputs = self.llm.chat(chats)
        if fault := next((answer.error for output in outputs if (answer := output.outputs[0]).error), None):
            return Stage("story", "bug", [f"an answer ended with an error: {fault}"], {"asked": words})
        hits = [word in output.outputs[0].text.lower() for word, output in zip(words, outputs, strict=True)]
        lines = [
            f"{sum(hits)} of {len(hits)} draws of a {kind} have the word that was drawn for them ({', '.join(words)})"
        ]
        facts = {"asked": words, "hits": hits}
        if any(hits):
            return Stage("story", "exact", lines, facts)
        # The embedded model uses the word in eight of ten; of another model nobody knows what it was trained for.
        if self.plan.model.path == embedded_model_path() and len(hits) >= 6:
            return Stage("story", "bug", lines, facts)
        return Stage("story", "skipped", [*lines, "which says nothing of a model that was not trained for it"], facts)

    def _health(self) -> Stage:
        found = self._run().health.signs()
        bad = [sign for sign in found if sign.good is False and sign.is_decisive]
        lines = [f"{sign.name}: {'NO' if sign.good is False else 'yes'}{f' ({sign.detail})' if sign.detail else ''}"
                 for sign in found]  # fmt: skip
        return Stage("health", "bug" if bad else "exact", lines, {sign.name: sign.good for sign in found})

    def _invariance(self) -> Stage:
        """Native promises the same bits under every setting; the reference, that chunks change roundings at most."""
        if self.executor == "native":
            checkpoint = open_model(self.plan.model.path)
            rows = list(
                invariance_of(
                    checkpoint, num_tokens=len(self.ids), threads=self.plan.threads, kv_dtype=self.plan.kv_dtype,
                    seed=self.plan.seed,
                )
            )  # fmt: skip
            lines = [f"{row.setting.name}: {row.digest[:16]}{'' if row.is_right else f', {row.word}'}" for row in rows]
            facts = {row.setting.name: row.digest for row in rows}
            return Stage("invariance", "exact" if all(row.is_right for row in rows) else "bug", lines, facts)
        # On a cache that rounds nothing: a narrow one turns the last bit of a chunk into much more.
        results = self._run_as_others
        kept = rows_of(results.info, "lm_head")
        options = {"executor": self.plan.executor, "dtype": self.plan.dtype, "kv_dtype": self.dtype}

        def logits(chunk: int) -> Array:
            llm = LLM(self.plan.model.checkpoint, max_num_seqs=1, max_num_batched_tokens=chunk, **options)
            return llm.logits(list(self.ids))[kept]

        whole = logits(len(self.ids))
        if bad := agreement.not_finite(whole, kept):
            return Stage("invariance", "bug", [bad])
        apart = {chunk: distance(logits(chunk), whole) for chunk in (1, 7)}
        room = np.maximum(results.spread, np.finfo(np.float64).tiny)  # nothing moves zeros
        ratios = {chunk: float((error / room).max()) for chunk, error in apart.items()}
        lines = [
            f"chunks of {chunk}: largest difference {error.max():.3g}, {times(ratios[chunk])} what rounding does"
            for chunk, error in apart.items()
        ]
        small = max(ratios.values()) <= agreement.DRIFT_LIMIT
        verdict: Verdict = "exact" if max(ratios.values()) == 0 else self.rounding if small else "bug"
        return Stage("invariance", verdict, lines, {f"chunks of {chunk}": ratio for chunk, ratio in ratios.items()})

    def _llamacpp(self) -> Stage:
        """llama.cpp's run, judged by itself as any engine's, and its logits beside ours."""
        stage = self._judged("llama.cpp", self.llama_trace)
        rows, theirs = self.llama_trace.rows_of("lm_head"), self.llama_trace.arrays["lm_head"]
        ours = self._run().logits["ours"]
        if len(ours) != len(rows):
            return stage
        facts = agreement.logit_facts(ours, theirs)
        lines = [*stage.lines[1:], *agreement.logit_lines("llama.cpp", facts)]
        if self.llama_trace.info.activations:
            lines.append("llama.cpp rounds activations to fit the weights' type, Karat does not: hence the distance")
        return replace(stage, lines=lines, facts={**stage.facts, "logits": facts})

    def _other(self) -> Stage:
        assert self.plan.other is not None
        return self._judged("trace", read_trace(self.plan.other))

    def _judged(self, name: str, trace: Trace) -> Stage:
        """What a diagnosis says of another engine's run."""
        model = self.plan.model
        diagnosis = Diagnoser(model.graph, model.weights(trace.info.dtype), trace).run()
        exact = all(finding.exact for finding in diagnosis.findings)
        verdict: Verdict = "bug" if not diagnosis.is_healthy else "exact" if exact else self.rounding
        named = [sorted(named.bugs) for named in diagnosis.named]
        return Stage(name, verdict, diagnosis_lines(diagnosis, model.graph, trace.info), {"named": named})

    def _hybrid(self) -> Stage:
        from karat.check.hybrid import Hybrid, suspect

        model, plan = self.plan.model, self.plan
        theirs = agreement.load_transformers(model.path)
        runs = Hybrid(theirs, model.config, model.checkpoint, self.ops, self.ids).run(plan.hybrid)
        lines = [
            f"{_mixed(run.part)}: {run.from_theirs:.2g} of a deviation from theirs alone, "
            f"{run.from_ours:.2g} from ours alone"
            for run in runs
        ]
        part = suspect(runs)
        lines += [f"with {part} ours the divergence goes: it arises there"] if part else []
        facts: dict[str, Any] = {run.part: [run.from_theirs, run.from_ours] for run in runs}
        largest = max(max(run.from_theirs, run.from_ours) for run in runs)
        small = largest <= agreement.HYBRID_LIMIT
        if not small:  # unless rounding alone moves the logits of this model so far
            results = self._run_as_others
            room = agreement.DRIFT_LIMIT * float(results.spread.max() / results.logits["float64"].std())
            lines.append(f"rounding alone, from the token ids on, moves logits by {room / agreement.DRIFT_LIMIT:.2g}")
            small = largest <= min(room, 1.0)
        return Stage("hybrid", self.rounding if small else "bug", lines, facts)


def _mixed(part: str) -> str:
    """What a hybrid run is made of."""
    if part == "none":
        return "transformers alone"
    whose, _, theirs = part.partition(":")
    return f"{theirs} transformers', the rest ours" if whose == "theirs" else f"{part} ours, the rest transformers"
