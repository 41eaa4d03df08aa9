"""The facts that `karat check` gives to programs and to its report: the result, and where and how it was made."""

import hashlib
import math
import platform
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np

from karat import __version__
from karat.machine import cores, memory, processor

if TYPE_CHECKING:
    from karat.check.session.session import CheckSession
    from karat.check.session.stage import Stage

# Packages that decide the computed numbers, or those that they are compared with. Installed ones are listed.
_PACKAGES = ("tokenizers", "jinja2", "safetensors", "torch", "transformers", "llama_cpp_python", "gguf")


def gather(session: "CheckSession", stages: "Sequence[Stage]", verdict: str, args: Sequence[str]) -> dict[str, Any]:
    """All facts; `args` are the words behind `karat`."""
    from karat.check.model.weights import digest
    from karat.ops.contract import contract_of
    from karat.ops.registry import device_of

    results, plan = session.results, session.plan
    return {
        "verdict": verdict,
        "flagged": [stage.name for stage in stages if stage.verdict == "flagged"],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["karat", *args]),
        "model": str(plan.model.path),
        "digest": digest(plan.model.stored),
        **({} if results is None else {"logits_digest": hashlib.sha256(results.logits["ours"].tobytes()).hexdigest()}),
        "executor": session.executor,
        "device": device_of(session.executor),
        "dtype": session.dtype,
        "kv_dtype": session.kv_dtype,
        "activations": session.activations,
        "numeric_contract": contract_of(
            plan.model.config, plan.model.types, plan.model.by_columns, session.activations
        ),
        "threads": session.ops.options.get("threads"),
        "kernel_build": session.ops.options.get("isa"),
        "tokens": len(session.ids),
        "ids_from": "seed" if session.drawn else "trace" if session.has_trace else "prompt",
        "prompt": None if session.drawn or session.has_trace else session.prompt,
        "token_ids": list(session.ids),
        "seed": plan.seed,
        "options": _options(session),
        "karat": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        **session.versions(),
        "packages": _installed(),
        "machine": platform.platform(),
        "cpu": processor.cpu_model(),
        "cpu_features": processor.cpu_features(),
        "usable_cores": cores.num_usable_cores(),
        "memory_bytes": memory.memory_bytes(),
        "stages": [
            {
                "name": s.name,
                "verdict": s.verdict,
                "seconds": round(s.seconds, 2),
                "lines": list(s.lines),
                "facts": s.facts,
            }
            for s in stages
        ],
    }


def plain(value: Any) -> Any:
    """`value` for JSON: NaN and infinity, which JSON does not have, become null."""
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if value is None or isinstance(value, str | int):
        return value
    return float(value) if math.isfinite(value) else None


def _options(session: "CheckSession") -> dict[str, Any]:
    """The plan that was carried out, with its defaults."""
    plan = session.plan
    beside = [name for name, there in (("hf", plan.with_hf), ("llama.cpp", plan.with_llamacpp)) if there]
    return {
        "against": [*beside, *([str(plan.other)] if plan.other else [])] or ["reference"],
        "stages": list(plan.stages),
        "layers": None if plan.layers is None else sorted(plan.layers),
        "num_tokens": plan.num_tokens,
        "steps": list(session.steps.cuts),
        "stories": plan.stories,
        "hybrid": list(plan.hybrid),
        "original": None if plan.original is None else str(plan.original.path),
    }


def _installed() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
