"""What the width of activations costs: logits of one text by several arithmetics, against float64."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from karat.check.model.checked import CheckedModel
from karat.check.record.executors import Steps, caches_of_one, one_sequence
from karat.check.record.llamacpp import is_installed, reads, record_llamacpp
from karat.check.session.agreement import logit_facts, text_perplexity
from karat.check.trace.selection import Selection
from karat.config import Activations, FloatName
from karat.engine.model_running import Preparation
from karat.models.decoder import default_kv_dtype
from karat.models.registry import Model, build
from karat.ops.executor import Executor
from karat.ops.reference import ReferenceOps
from karat.ops.registry import create
from karat.quant import CODINGS

Array = NDArray[np.floating]

CHOICES: tuple[Activations, ...] = ("int24", "int16", "int8")


@dataclass(frozen=True, slots=True)
class WidthRow:
    """One arithmetic, `activations` with a cache of `kv_dtype`, and its logits compared with float64's.

    rms, deviation  root mean square of the differences; standard deviation of float64's logits
    kl              mean over tokens, in nats, of the divergence of its probabilities from float64's
    agree, tokens   tokens after which the likeliest next one is float64's, of all
    """

    activations: str
    kv_dtype: str
    by: str
    rms: float
    deviation: float
    kl: float
    agree: int
    tokens: int
    perplexity: float


def coded_matrices(model: CheckedModel, quantize: str | None = None) -> tuple[int, int]:
    """How many matrices are in formats that integers are for (karat.quant.CODINGS), and how many there are."""
    prepare = Preparation(quantize)
    matrices = {weight.name: weight for weight in model.stored.values() if len(weight.shape) == 2}
    return sum(prepare.stored_type(weight) in CODINGS for weight in matrices.values()), len(matrices)


def measure(
    model: CheckedModel,
    ids: Sequence[int],
    activations: Sequence[Activations] = CHOICES,
    *,
    kv_dtype: FloatName | None = None,
    quantize: str | None = None,
    threads: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[WidthRow]:
    """float64's own row, then one for each of `activations` (of CHOICES), then llama.cpp's where it is installed.

    Karat's rows are those of the executor that "auto" takes, with its default cache and with one that rounds nothing;
    with `kv_dtype` all have that. llama.cpp has a float32 cache, and reads GGUF files as they are.
    """
    prepare = Preparation(quantize)
    steps = len(activations) + 2

    def built(ops: Executor, number: int, name: str) -> Model:
        def loading(done: int, total: int) -> None:
            progress(f"{number} of {steps}: {name}, loading {100 * done // max(1, total)} %")

        return build(model.config, ops, model.checkpoint, num_positions=len(ids), prepare=prepare, progress=loading)

    def row(name: str, cache: str, by: str, logits: Array) -> WidthRow:
        facts = logit_facts(logits, right)
        after = np.arange(len(ids))
        return WidthRow(
            name,
            cache,
            by,
            facts["rms"],
            facts["deviation"],
            facts["mean_kl"],
            facts["top1"],
            len(ids),
            text_perplexity(logits, after, ids),
        )

    progress(f"1 of {steps}: float64")
    right = _logits(built(ReferenceOps("float64"), 1, "float64"), ids, "float64")
    yield row("float64", "float64", "reference", right)
    loaded: dict[type, Model] = {}  # weights do not depend on the width
    for number, name in enumerate(activations, 2):
        progress(f"{number} of {steps}: {name}")
        ops = create("auto", "float32", {"threads": threads, "activations": name})
        if type(ops) not in loaded:
            loaded[type(ops)] = built(ops, number, name)
        for cache in dict.fromkeys((kv_dtype,) if kv_dtype else (default_kv_dtype(model.config, ops), "float32")):
            yield row(name, cache, ops.executor, _logits(loaded[type(ops)].on(ops), ids, cache))
    if quantize is None and reads(model) and is_installed():
        progress(f"{steps} of {steps}: llama.cpp")
        only_logits = Selection(layers=frozenset(), logit_rows=len(ids), attention=False)
        trace = record_llamacpp(model.path, model.stored, Steps(tuple(ids)), selection=only_logits)
        yield row("llama.cpp", "float32", "llama.cpp", trace.arrays["lm_head"])


def _logits(model: Model, ids: Sequence[int], kv_dtype: FloatName) -> Array:
    """Logits [tokens, vocab] of one text, computed in one step."""
    ops, total = model.ops, len(ids)
    caches = caches_of_one(ops, model.keeps, kv_dtype, total)
    batch = one_sequence(ids, 0, total, set(range(total)), model.keeps)
    return np.array(ops.read(model.forward(ops.begin(batch), caches)))
