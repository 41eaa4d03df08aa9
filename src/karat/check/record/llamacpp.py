"""Traces of llama.cpp over a GGUF file, through its evaluation callback.

llama.cpp runs in a process of its own (llamacpp_worker, by karat.children.starter), so that a broken file ends that
process and not this one. The process imports nothing from the current folder, has a time limit and dies with this one.
"""

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from karat.check.model.checked import CheckedModel
from karat.check.record import llamacpp_worker
from karat.check.record.executors import Steps
from karat.check.record.llamacpp_worker import KNOWN_VERSION, LARGEST_MESSAGE
from karat.check.trace.format import Array, Trace
from karat.check.trace.reading import read_trace
from karat.check.trace.selection import EVERYTHING, Selection
from karat.checkpoint import GgufCheckpoint
from karat.checkpoint.gguf import read_header
from karat.checkpoint.gguf.config import read_model_type
from karat.checkpoint.weights import Weight
from karat.children.starter import run_worker
from karat.errors import ExecutorError
from karat.models.families import FAMILIES

_ELSEWHERE = re.compile(r"^(model\.(embed_tokens|norm)|lm_head)\.|\.(experts|linear_attn|conv)\.")
_MOST_SECONDS = 1800.0  # for one run of llama.cpp


def is_installed() -> bool:
    from importlib.util import find_spec

    return find_spec("llama_cpp") is not None


def reads(model: CheckedModel) -> bool:
    """Whether llama.cpp can be expected to load a model: a GGUF file with a vocabulary."""
    checkpoint = model.checkpoint
    return isinstance(checkpoint, GgufCheckpoint) and "tokenizer.ggml.model" in checkpoint.metadata


def record_llamacpp(
    path: Path, stored: Mapping[str, Weight], steps: Steps, *, selection: Selection = EVERYTHING
) -> Trace:
    """llama.cpp's run of the GGUF file `path`, whose weights are `stored`, over one sequence.

    Raises ExecutorError if llama-cpp-python is not installed, or if llama.cpp fails, then with its last words.
    """
    job = {
        "ids": steps.prompt,
        "cuts": steps.cuts,
        "decode": steps.decode,
        "logit_rows": selection.logit_rows,
        "layers": None if selection.layers is None else sorted(selection.layers),
        "heads": selection.heads,
        "results": _results(path, stored) if stored else {},
    }
    with TemporaryDirectory(prefix="karat-") as folder:
        out = Path(folder) / "llama.trace"
        _run_worker(path, out, job)
        made = read_trace(out)
        arrays = {_named(name, stored): _unpaired(name, array, stored) for name, array in made.arrays.items()}
    arrays.pop("", None)
    plain = all(weight.dtype == "F32" for weight in stored.values())
    return Trace(replace(made.info, activations=made.info.activations if plain else "ggml"), arrays)


@dataclass(frozen=True, slots=True)
class LlamaTokens:
    """Of llama.cpp's tokenizer: the ids of each text by name; BOS, EOS, and all tokens that end a generation."""

    ids: Mapping[str, list[int]]
    bos: int | None
    eos: int | None
    ends: frozenset[int]


def llamacpp_tokens(path: Path, texts: Mapping[str, str], rendered: Mapping[str, str]) -> LlamaTokens:
    """The ids of llama.cpp's tokenizer of the GGUF file `path`: of `texts` with the tokens that the file adds around a
    text, of `rendered` prompts without them. Raises ExecutorError as `record_llamacpp` does."""
    with TemporaryDirectory(prefix="karat-") as folder:
        out = Path(folder) / "ids.json"
        _run_worker(path, out, {"texts": dict(texts), "rendered": dict(rendered)})
        found = json.loads(out.read_text())
        return LlamaTokens(found["ids"], found["bos"], found["eos"], frozenset(found["ends"]))


def _run_worker(path: Path, out: Path, job: Mapping[str, Any]) -> None:
    if not is_installed():
        raise ExecutorError(
            f"llama.cpp is not installed: pip install llama-cpp-python ({KNOWN_VERSION} is known to work)"
        )
    asked = out.with_suffix(".job")
    asked.write_text(json.dumps(job))
    try:
        code, words = run_worker(llamacpp_worker.__name__, [str(path), str(out), str(asked)], _MOST_SECONDS)
    except OSError as fault:
        raise ExecutorError(f"a process for llama.cpp cannot be started ({fault.strerror}): end others") from fault
    last = words[-LARGEST_MESSAGE:] or "no message"
    if code is None:
        raise ExecutorError(
            f"{path}: llama.cpp has not ended within {_MOST_SECONDS:g} seconds and was stopped; use a smaller model "
            "or a shorter prompt"
        )
    if code or not out.exists():
        raise ExecutorError(f"{path}: llama.cpp ended with code {code}: {last}")


def _results(path: Path, stored: Mapping[str, Weight]) -> dict[str, str]:
    """The names of results by those of the file's tensors that they read: of linear layers and norms.

    What delta nets and convolutions read is left out, for files have their rows in another order; so is what several
    weights are rows of.
    """
    forms = {model_type: family.gguf for model_type, family in FAMILIES.items()}
    form = forms[read_model_type(read_header(path).metadata, forms)]
    found: dict[str, set[str]] = defaultdict(set)
    for canonical in stored:
        module, _, kind = canonical.rpartition(".")
        if canonical.endswith(".router.scale"):
            module = f"{module}.input"
        elif kind not in ("weight", "bias") or _ELSEWHERE.search(canonical):
            continue
        found[form.stored_name(canonical) or ""].add(module)
    return {tensor: next(iter(modules)) for tensor, modules in found.items() if len(modules) == 1}


def _named(name: str, stored: Mapping[str, Weight]) -> str:
    """The model's name of a result: of a router, of q and k that are normalised without a weight, and of the sum of
    experts, which has no other MLP beside it or one.

    "" where llama.cpp's result is another: weights of Gemma 4's experts, before they are multiplied by a number each.
    """
    layer, _, part = name.partition(".mlp.")
    if f"{layer}.router.proj.weight" in stored and part in ("chosen_ids", "chosen_weights", "experts"):
        return "" if part == "chosen_weights" else f"{layer}.{part}"
    if name.endswith((".q_norm", ".k_norm")) and f"{name}.weight" not in stored:
        return f"{name}ed"
    if part == "gate" and f"{layer}.mlp.router.weight" in stored:
        return f"{layer}.mlp.router"
    return f"{layer}.mlp" if part == "experts" and f"{layer}.mlp.shared_expert_gate.weight" not in stored else name


def _unpaired(name: str, array: Array, stored: Mapping[str, Weight]) -> Array:
    """q and k in Hugging Face's order of a head. Llama's GGUF files have the numbers of a RoPE pair side by side."""
    prefix, _, part = name.rpartition(".")
    weight = stored.get(f"{prefix}.{part[0]}_proj.weight") if part[:2] in ("q_", "k_") else None
    if weight is None or weight.row_order is None:
        return array
    return np.concatenate((array[..., 0::2], array[..., 1::2]), axis=-1)
