"""Stage weights: the tensors as they are stored."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from karat.check.files.quantised import distances
from karat.check.model.checked import CheckedModel
from karat.check.model.weights import digest
from karat.check.session import agreement
from karat.check.session.session import CheckSession
from karat.check.session.stage import Stage, Verdict
from karat.checkpoint.weights import PLAIN_BYTES, Weight

_PART = 1 << 17  # elements that stay in a cache
_SAMPLE = 1 << 14  # bytes of a tensor that are compared before all of it is


def run(session: CheckSession) -> Stage:
    """The stored tensors, and the digest that a trace states."""
    model = session.plan.model
    stage = check_weights(model, with_hf=session.plan.with_hf, original=session.plan.original)
    stated = None if session.other is None else session.other.info.digest
    if session.other is None or stated is None:
        return (
            stage
            if session.other is None
            else replace(stage, lines=[*stage.lines, "the trace states no digest of its weights"])
        )
    same = stated == digest(model.stored)
    line = (
        "the trace states the digest of these weights"
        if same
        else f"note: the trace states another digest of its weights ({stated[:16]}), maybe another model's"
    )
    return replace(stage, lines=[*stage.lines, line], facts={**stage.facts, "digest_of_trace": same})


def check_weights(model: CheckedModel, *, with_hf: bool, original: CheckedModel | None = None) -> Stage:
    """Every tensor is finite, and has the bytes that the safetensors library reads; zeros and copies are remarked on.

    With `original`: how far the stored values are from that model's, and which of them no rounding makes.
    """
    faults: list[str] = []
    remarks: list[str] = []  # odd, but a model may be made so
    num_parameters = 0
    shapes = {weight.name: weight.shape for weight in model.stored.values()}
    files = agreement.hf_files(model.path, shapes) if with_hf else None
    seen: dict[bytes, Weight] = {}
    for name, weight in model.stored.items():
        num_parameters += int(np.prod(weight.shape))
        data = weight.data
        if bad := _num_not_finite(weight, data):
            faults.append(f"{name}: {bad} values are NaN or infinite")
        elif not name.endswith("bias") and _is_zero(weight, data):
            remarks.append(f"{name} is all zero")
        if name.endswith("_proj.weight"):
            sample = hashlib.sha256(data[:_SAMPLE].data).digest()
            known = seen.setdefault(sample, weight)
            if known is not weight and np.array_equal(known.data, data):
                remarks.append(f"{name} has the same bytes as {known.name}")
        if files is not None and not np.array_equal(data, files.stored_bytes(weight.name)):
            faults.append(f"{name}: other bytes than the safetensors library reads")
        weight.release()
    lines = [
        f"{len(model.stored)} tensors, each used once, shapes as config.json says; {num_parameters:,} finite parameters"
    ]
    if files is not None:
        lines.append("each has the bytes that the safetensors library reads, bit for bit")
    facts: dict[str, Any] = {"tensors": len(model.stored), "parameters": num_parameters}
    if original is not None:
        found = distances(model, original)
        lines += found.lines
        faults += found.faults
        facts["distance"] = found.facts
    else:
        lines.append("a file alone cannot prove its values are the intended ones; compare with --original MODEL")
    shown = [*(faults or lines), *remarks[:8]]
    verdict: Verdict = "bug" if faults else "flagged" if remarks else "exact"
    return Stage("weights", verdict, shown, facts | {"faults": faults, "remarks": remarks})


def _is_zero(weight: Weight, data: np.ndarray) -> bool:
    """Whether all values are 0, -0 included; the first row is looked at first."""
    if not data.any():
        return True
    row_bytes = weight.num_bytes // max(1, weight.shape[0])
    first = Weight(weight.name, weight.dtype, (1, *weight.shape[1:]), data[:row_bytes], weight.file)
    dtype = np.dtype(np.float32)
    return not first.to_array(dtype).any() and not weight.to_array(dtype).any()


def _num_not_finite(weight: Weight, data: np.ndarray) -> int:
    """The number of NaN and infinities; types with an exponent field are counted in their bits, without widening."""
    exponents: Mapping[str, tuple[str, int]] = {
        "BF16": ("<u2", 0x7F80),
        "F16": ("<u2", 0x7C00),
        "F32": ("<u4", 0x7F800000),
    }
    if weight.dtype in exponents and weight.dtype in PLAIN_BYTES:
        kind, mask = exponents[weight.dtype]
        bits, wanted = data.view(kind), np.dtype(kind).type(mask)
        parts = (bits[start : start + _PART] for start in range(0, len(bits), _PART))
        return sum(int(np.count_nonzero((part & wanted) == wanted)) for part in parts)
    values = weight.to_array(np.dtype(np.float32))
    return int(np.count_nonzero(~np.isfinite(values)))
