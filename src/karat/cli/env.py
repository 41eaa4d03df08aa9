"""`karat env`: what is installed here, what this machine can do, and which settings are in force."""

import json
import os
import platform
import re
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from karat import __version__
from karat.cli.terminal import bytes_text, columns, emit
from karat.config import DEFAULT_ACTIVATIONS, NUMERIC_CONTRACT, Settings, embedded_model_path
from karat.errors import ExecutorError, KaratError
from karat.machine import control_groups, cores, memory, processor

EXAMPLES = """
Examples

  karat env              to read, or to put into a report of a bug
  karat env --json       to compare two machines by program
"""

_PACKAGES = ("numpy", "tokenizers", "huggingface_hub", "jinja2", "typer", "rich", "msgspec", "starlette", "uvicorn")
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSW", re.IGNORECASE)
_URL_LOGIN = re.compile(r"(?<=://)[^/@]+(?=@)")


def env(as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False) -> None:
    """Show versions, the processor and its kernels, cores, memory, and settings in force (secrets hidden)."""
    facts = gather()
    emit(json.dumps(facts, indent=2, ensure_ascii=False) + "\n" if as_json else as_text(facts))


def gather() -> dict[str, Any]:
    """All facts, for JSON."""
    from karat.ops.registry import EXECUTORS, devices

    extension = _extension()
    builds = extension["kernel_builds"]
    settings = Settings.from_env()
    chosen = settings.isa or (builds[-1] if builds else None)
    return {
        "karat": __version__,
        "numeric_contract": NUMERIC_CONTRACT,
        "default_activations": DEFAULT_ACTIVATIONS,
        "python": platform.python_version(),
        "packages": {name: _version_or_none(name) for name in _PACKAGES},
        "platform": {"system": platform.system(), "release": platform.release(), "machine": platform.machine()},
        "cpu": {
            "model": processor.cpu_model(),
            "features": processor.cpu_features(),
            "cores": os.cpu_count(),
            "usable_cores": cores.num_usable_cores(),
            "cgroup_cores": control_groups.cpu_quota(),
        },
        "memory_bytes": memory.memory_bytes(),
        "executors": list(EXECUTORS),
        "devices": devices(),
        "native": {
            **extension,
            "chosen": chosen if chosen in builds else None,
            "fault": _fault(chosen, extension) if builds and chosen not in builds else None,
        },
        "settings": _without_secrets(settings.variables),
        "embedded_model": _embedded_model(),
    }


def _fault(isa: str | None, extension: Mapping[str, Any]) -> str:
    compiled = isa in extension["compiled_builds"]
    reason = extension["refused_builds"].get(isa, "this CPU cannot run it") if compiled else "it is not installed"
    return f"KARAT_ISA={isa} cannot run here: {reason}; those that can: {', '.join(extension['kernel_builds'])}"


def _extension() -> dict[str, Any]:
    from karat.ops import native

    try:
        reason, runnable, compiled = native.unavailable_reason(), native.supported_isas(), native.compiled_isas()
        refused = native.refused_isas()
    except ExecutorError as stale:
        reason, runnable, compiled, refused = str(stale), (), (), {}
    return {
        "available": reason is None,
        "reason": reason,
        "kernel_builds": list(runnable),
        "compiled_builds": list(compiled),
        "refused_builds": dict(refused),
    }


def _version_or_none(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version  # takes 20 ms, which every command would pay

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _without_secrets(variables: Mapping[str, str]) -> dict[str, str]:
    return {
        name: "(set, hidden)" if _SECRET.search(name) and not name.endswith("_PATH") else _URL_LOGIN.sub("…", value)
        for name, value in variables.items()
    }


def _embedded_model() -> dict[str, Any]:
    from karat.checkpoint import open_folder

    path = embedded_model_path()
    try:
        checkpoint = open_folder(path)
    except KaratError as error:
        return {"path": str(path), "available": False, "reason": str(error)}
    num_bytes = sum(weight.num_bytes for weight in checkpoint.weights.values())
    return {"path": str(path), "available": True, "weight_bytes": num_bytes}


def as_text(facts: dict[str, Any]) -> str:
    """The facts of `gather`, one a line."""
    cpu, native, model = facts["cpu"], facts["native"], facts["embedded_model"]
    limits = f"{cpu['cores']}, of which this process may use {cpu['usable_cores']}"
    if cpu["cgroup_cores"] is not None:
        limits += f", for the time of {cpu['cgroup_cores']:g}"
    kernels = ", ".join(f"{b} (chosen)" if b == native["chosen"] else b for b in native["kernel_builds"])
    elsewhere = {*native["kernel_builds"], *native["refused_builds"]}
    if others := [build for build in native["compiled_builds"] if build not in elsewhere]:
        kernels += f"; not for this processor: {', '.join(others)}"
    kernels += "".join(f"; {build}: no: {reason}" for build, reason in native["refused_builds"].items())
    memory = facts["memory_bytes"]
    rows = [
        ("karat", facts["karat"]),
        ("numeric contract", f"{facts['numeric_contract']}, weights in blocks read {facts['default_activations']}"),
        ("python", f"{facts['python']} ({sys.implementation.name})"),
        *((name, number or "not installed") for name, number in facts["packages"].items()),
        ("system", " ".join(facts["platform"].values())),
        ("processor", cpu["model"] or "unknown"),
        ("features", " ".join(cpu["features"]) or "unknown"),
        ("cores", limits),
        ("memory", bytes_text(memory) if memory else "unknown"),
        ("executors", ", ".join(facts["executors"])),
        *(
            ("device" if device == "cpu" else "", device if reason is None else f"{device}: no: {reason}")
            for device, reason in facts["devices"].items()
        ),
        ("native extension", "yes" if native["available"] else f"no: {native['reason']}"),
        ("kernel builds", native["fault"] or kernels or "none"),
        (
            "embedded model",
            f"{model['path']} ({bytes_text(model['weight_bytes'])})"
            if model["available"]
            else f"missing: {model['reason']}",
        ),
        *((name, value) for name, value in facts["settings"].items()),
    ]
    return columns(rows) + "\n"
