"""The stages of `karat check`: each looks at one thing and ends in a verdict."""

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from karat import LLM, SamplingParams
from karat.check import agreement
from karat.check.compare import Comparison, compare
from karat.check.diagnose import Diagnoser, Diagnosis
from karat.check.health import signs
from karat.check.invariance import invariance_of
from karat.check.model import CheckedModel
from karat.check.record import Steps, record
from karat.check.replay import PRECISION
from karat.check.trace import Trace, read_trace
from karat.check.wording import diagnosis_lines, times
from karat.checkpoint import open_model
from karat.config import embedded_model_path
from karat.ops.registry import create

Verdict = Literal["exact", "numerics", "quantisation", "bug", "skipped"]

WORDS = (
    "lantern fox river kite button bridge whistle acorn ladder turtle drum candle pebble wagon feather mirror".split()
)
SHAPES = {
    "plain": "Once upon a time, there was a small house.",
    "long": "The cat sat on the mat and looked at the moon. " * 12,
    "non-Latin": "你好，世界。Привет, мир! שלום عالم",
    "emoji": "I like 🍎🍐 and 👩‍🚀, a lot!",
    "white space": "a  b\n\n\tc   d\n",
}


@dataclass(frozen=True, slots=True)
class Stage:
    """What one stage found; lines are for people, facts for programs."""

    name: str
    verdict: Verdict
    lines: Sequence[str]
    facts: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


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
    other: Path | None = None  # a trace of another engine, judged too
    hybrid: tuple[str, ...] = ()  # parts that Karat computes in a transformers model, one at a time
    stories: int = 8
    seed: int = 0


class Checker:
    """Runs the stages one by one; what one stage computes, the next may use."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        model = plan.model
        self.llm = LLM(
            model.path, executor=plan.executor, dtype=plan.dtype, kv_dtype=plan.kv_dtype, threads=plan.threads,
            max_num_seqs=8,
        )  # fmt: skip
        self.ids = tuple(self.llm.tokenizer.encode(plan.prompt))[: plan.num_tokens]
        self.is_quantised = any(weight.is_quantised for weight in model.stored.values())
        self.trace: Trace | None = None
        self.diagnosis: Diagnosis | None = None
        self.comparison: Comparison | None = None
        self._hf: Any = None

    def stages(self) -> Iterator[Stage]:
        """Each stage as it finishes."""
        work: list[tuple[str, Callable[[], Stage]]] = [
            ("tokens", self._tokens), ("weights", self._weights), ("layers", self._layers), ("logits", self._logits),
            ("generation", self._generation), ("story", self._story), ("health", self._health),
            ("invariance", self._invariance),
            *([("trace", self._other)] if self.plan.other is not None else []),
            *([("hybrid", self._hybrid)] if self.plan.hybrid else []),
        ]  # fmt: skip
        for _, run in work:
            start = time.monotonic()
            stage = run()
            yield Stage(stage.name, stage.verdict, stage.lines, stage.facts, time.monotonic() - start)

    @property
    def rounding(self) -> Verdict:
        """The verdict where nothing but rounding differs."""
        return "quantisation" if self.is_quantised else "numerics"

    def _tokens(self) -> Stage:
        tokenizer, lines, faults = self.llm.tokenizer, [], []
        audit = [i for i in tokenizer.special_ids if tokenizer.decode([i], skip_special_tokens=False)]
        for token_id in audit:
            text = tokenizer.decode([token_id], skip_special_tokens=False)
            if (got := tokenizer.encode(text, add_special_tokens=False)) != [token_id]:
                faults.append(f"special token {text!r} becomes {got}, not [{token_id}]")
        lines.append(f"{len(audit)} special tokens, each found whole in a text")
        largest = self.llm.config.vocab_size
        for name, text in SHAPES.items():
            ids = tokenizer.encode(text)
            if any(i >= largest for i in ids):
                faults.append(f"{name}: id {max(ids)} is outside the embedding of {largest} rows")
        others = agreement.hf_tokenizer(self.plan.model.path) if self.plan.with_hf else None
        if others is not None:
            texts = dict(SHAPES) | {"prompt": self.plan.prompt, "bare": ""}
            if tokenizer.chat_template:
                chat = [{"role": "user", "content": "Hello"}]
                texts["chat"] = tokenizer.render_chat(chat)
                if (theirs := agreement.hf_chat(others, chat)) is not None and theirs != texts["chat"]:
                    faults.append(f"the chat template renders {texts['chat']!r}, transformers {theirs!r}")
            for name, text in texts.items():
                ours, wanted = tokenizer.encode(text), list(others(text)["input_ids"])
                if ours != wanted:
                    faults.append(f"{name}: {ours[:12]} here, {wanted[:12]} in transformers")
            lines.append(f"{len(texts)} texts give the ids of transformers' tokenizer")
        return Stage("tokens", "bug" if faults else "exact", faults or lines, {"faults": faults})

    def _weights(self) -> Stage:
        faults: list[str] = []
        remarks: list[str] = []  # odd, but a model may be made so
        num_parameters = 0
        seen: dict[str, str] = {}
        for name, weight in self.plan.model.stored.items():
            values = weight.to_array(np.dtype(np.float32))
            num_parameters += values.size
            if not np.isfinite(values).all():
                faults.append(f"{name}: {np.count_nonzero(~np.isfinite(values))} values are NaN or infinite")
            elif not values.any() and not name.endswith("bias"):
                remarks.append(f"note: {name} is all zero")
            key = hashlib.sha256(weight.data.data).hexdigest()
            if name.endswith("_proj.weight") and seen.setdefault(key, name) != name:
                remarks.append(f"note: {name} has the same bytes as {seen[key]}")
            weight.release()
        count = len(self.plan.model.stored)
        lines = [f"{count} tensors, each used once, shapes as config.json says; {num_parameters:,} finite parameters"]
        shown = [*(faults or lines), *remarks[:8]]
        facts = {"faults": faults, "remarks": remarks, "tensors": count}
        return Stage("weights", "bug" if faults else "exact", shown, facts)

    def _layers(self) -> Stage:
        plan, model = self.plan, self.plan.model
        ops = create(plan.executor, plan.dtype, plan.threads)
        self.trace = record(
            model.config, model.checkpoint, ops, Steps.chunked(self.ids, max(1, len(self.ids) * 2 // 3)),
            kv_dtype=plan.kv_dtype, with_digest=False,
        )  # fmt: skip
        diagnoser = Diagnoser(model.graph, model.weights(self.trace.info.dtype), self.trace)
        self.diagnosis = diagnoser.run()
        self.comparison = compare(diagnoser.replay)
        worst = max(self.diagnosis.findings, key=lambda f: f.ratio)
        drift = max(self.comparison.drift, key=lambda d: d.ratio)
        lines = diagnosis_lines(self.diagnosis, model.graph, self.trace)[2:] if not self.diagnosis.is_healthy else [
            f"{len(self.diagnosis.findings)} results, each re-run in float64 from its recorded inputs: at most "
            f"{times(worst.ratio)} the noise floor ({worst.name})",
            f"accumulated from the token ids on: at most {times(drift.ratio)} ({drift.name})",
        ]  # fmt: skip
        exact = all(finding.exact for finding in self.diagnosis.findings)
        verdict: Verdict = "bug" if not self.diagnosis.is_healthy else "exact" if exact else self.rounding
        facts: dict[str, Any] = {"worst": worst.name, "ratio": worst.ratio, "drift": drift.ratio}
        if plan.with_hf and verdict != "bug":
            theirs = agreement.record_theirs(self._transformers(), self.ids)
            against = compare(diagnoser.replay, theirs).drift
            far = max(against, key=lambda d: d.ratio)
            facts["against_transformers"] = far.ratio
            lines.append(f"against transformers' float32 run: at most {times(far.ratio)} ({far.name})")
            if far.ratio > agreement.DRIFT_LIMIT:
                verdict = "bug"
        return Stage("layers", verdict, lines, facts)

    def _logits(self) -> Stage:
        assert self.trace is not None
        ours = np.asarray(self.trace.arrays["lm_head"], np.float64)
        empty = Trace(self.trace.info, {})
        right = agreement.reference_logits(self.plan.model, empty)[-len(ours) :]
        facts = agreement.logit_facts(ours, right)
        lines = [
            f"against float64: largest difference {facts['largest']:.3g}, root mean square {facts['rms']:.3g} of a "
            f"deviation of {facts['deviation']:.3g}; KL {facts['kl']:.2g}",
            f"likeliest token equal in {facts['top1']} of {facts['rows']} rows, first 5 in {facts['top5']}",
            *facts["flips"],
        ]
        explained = all(flip.startswith("flip") for flip in facts["flips"])
        ok = explained and (self.comparison is None or self._logit_drift() <= agreement.DRIFT_LIMIT)
        verdict: Verdict = "exact" if facts["largest"] == 0 else self.rounding
        return Stage("logits", verdict if ok else "bug", lines, facts)

    def _logit_drift(self) -> float:
        assert self.comparison is not None
        return next((drift.ratio for drift in self.comparison.drift if drift.name == "lm_head"), 0.0)

    def _generation(self) -> Stage:
        count = min(24, self.llm.max_model_len - len(self.ids))
        if count < 1:
            return Stage("generation", "skipped", ["the prompt fills the context"])
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, logprobs=2)
        (output,) = self.llm.generate([list(self.ids)], params)
        chosen = list(output.outputs[0].token_ids)
        whole = self.llm.logits([*self.ids, *chosen])
        again = whole[len(self.ids) - 1 : -1].argmax(axis=1).tolist()
        same = chosen == again
        lines = [f"{len(chosen)} tokens, decoded one by one, are those of one pass over all: {'yes' if same else 'no'}"]
        verdict: Verdict = "exact" if same else "bug"
        if self.plan.with_hf:
            lines.append(agreement.greedy_difference(self._transformers(), list(self.ids), chosen, whole))
            if lines[-1].startswith("bug"):
                verdict = "bug"
        return Stage("generation", verdict, lines, {"token_ids": chosen})

    def _story(self) -> Stage:
        if not self.llm.tokenizer.chat_template:
            return Stage("story", "skipped", ["the model has no chat template"])
        rng = np.random.default_rng(self.plan.seed)
        words = [WORDS[i] for i in rng.permutation(len(WORDS))[: self.plan.stories]]
        kind = "story" if self.plan.model.config.num_layers < 12 else "haiku"
        chats = [[{"role": "user", "content": f"Tell me a {kind} about a {word}."}] for word in words]
        outputs = self.llm.chat(chats)
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
        assert self.trace is not None
        found = signs(self.plan.model.graph, self.trace, PRECISION[self.trace.info.dtype])
        bad = [sign for sign in found if sign.good is False and sign.is_decisive]
        lines = [f"{sign.name}: {'NO' if sign.good is False else 'yes'}{f' ({sign.detail})' if sign.detail else ''}"
                 for sign in found]  # fmt: skip
        return Stage("health", "bug" if bad else "exact", lines, {sign.name: sign.good for sign in found})

    def _invariance(self) -> Stage:
        """Native promises the same bits under every setting; the reference, that chunks change roundings at most."""
        if self.llm.executor == "native":
            checkpoint = open_model(self.plan.model.path)
            rows = list(
                invariance_of(
                    checkpoint, num_tokens=len(self.ids), threads=self.plan.threads, kv_dtype=self.plan.kv_dtype,
                    seed=self.plan.seed,
                )
            )  # fmt: skip
            lines = [f"{row.setting.name}: {row.digest[:16]}{'' if row.same else ', ANOTHER'}" for row in rows]
            facts = {row.setting.name: row.digest for row in rows}
            return Stage("invariance", "exact" if all(row.same for row in rows) else "bug", lines, facts)
        ids = list(self.ids)
        first = self.llm.logits(ids)
        options = {"executor": self.plan.executor, "dtype": self.plan.dtype, "kv_dtype": self.plan.kv_dtype}
        largest = {}
        for chunk in (1, 7):
            other = LLM(self.plan.model.path, max_num_seqs=1, max_num_batched_tokens=chunk, **options)
            largest[f"chunks of {chunk}"] = float(np.abs(other.logits(ids) - first).max())
        lines = [f"{name}: largest difference {value:.3g}" for name, value in largest.items()]
        small = max(largest.values()) <= 1e-3 * float(first.std())
        verdict = "exact" if max(largest.values()) == 0 else self.rounding if small else "bug"
        return Stage("invariance", verdict, lines, largest)

    def _other(self) -> Stage:
        assert self.plan.other is not None
        model, trace = self.plan.model, read_trace(self.plan.other)
        diagnosis = Diagnoser(model.graph, model.weights(trace.info.dtype), trace).run()
        exact = all(finding.exact for finding in diagnosis.findings)
        verdict: Verdict = "bug" if not diagnosis.is_healthy else "exact" if exact else self.rounding
        named = [sorted(named.bugs) for named in diagnosis.named]
        return Stage("trace", verdict, diagnosis_lines(diagnosis, model.graph, trace), {"named": named})

    def _hybrid(self) -> Stage:
        from karat.check.hybrid import Hybrid, suspect

        model, plan = self.plan.model, self.plan
        ops = create(plan.executor, plan.dtype, plan.threads)
        runs = Hybrid(self._transformers(), model.config, model.checkpoint, ops, self.ids).run(plan.hybrid)
        lines = [
            f"{run.part} ours, the rest transformers: {run.from_theirs:.2g} of a deviation from theirs alone, "
            f"{run.from_ours:.2g} from ours alone"
            for run in runs
        ]
        part = suspect(runs)
        lines += [f"with {part} ours the divergence goes: it arises there"] if part else []
        facts: dict[str, Any] = {run.part: [run.from_theirs, run.from_ours] for run in runs}
        small = max(max(run.from_theirs, run.from_ours) for run in runs) <= agreement.HYBRID_LIMIT
        return Stage("hybrid", self.rounding if small else "bug", lines, facts)

    def _transformers(self) -> Any:
        if self._hf is None:
            self._hf = agreement.load_transformers(self.plan.model.path)
        return self._hf


def overall(stages: Sequence[Stage]) -> Verdict:
    """The worst verdict of all stages."""
    order: tuple[Verdict, ...] = ("exact", "numerics", "quantisation", "bug")
    found = [stage.verdict for stage in stages if stage.verdict != "skipped"]
    return max(found, key=order.index, default="skipped")
