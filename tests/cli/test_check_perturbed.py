"""`karat check` of files in which one weight is another number: a bug, with the tensor's name, for every family.

A file alone cannot show that it was meant otherwise. The other side is the model it was made of (--original), or a
trace of a run on the right weights.
"""

import json
import shutil
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import gguf
import numpy as np
import pytest

from karat.check.model.checked import open_model
from karat.check.record.executors import Steps, record
from karat.check.trace.format import Trace
from karat.check.trace.writing import write_trace
from karat.convert import MIXES, convert
from karat.models import families
from karat.models.opening import open_model as open_checkpoint
from karat.ops.registry import create
from karat.quant import FORMATS
from tests.cli.conftest import Karat
from tests.convert.folders import FAMILIES, folder_of
from tests.support import seed
from tests.support.parallel import hub_name

SEED = int(seed.SEED)
PLAIN = ("folder", "F32", "F16", "BF16")
QUANTISED = tuple(mix for mix in MIXES if mix not in PLAIN)
LARGE = {"hidden_size": 256, "intermediate_size": 256}  # whole blocks of every format
LARGER_HEADS = {"phi3 with longrope": {"partial_rotary_factor": 0.125}}  # as many pairs as there are factors
F32 = np.dtype(np.float32)
SEEN = 1e-5  # of the deviation of an op's results, ten times the floor: what moves them less counts as rounding


@dataclass(frozen=True)
class Subject:
    """A right model, one of its making with one number changed, and where."""

    folder: Path
    right: Path
    wrong: Path
    name: str
    row: int


def rng_of(*words: str) -> np.random.Generator:
    return np.random.default_rng([SEED, *"".join(words).encode()])


def made(tmp_path: Path, family: str, kind: str, rng: np.random.Generator, part: str | None = None) -> Subject:
    """A model of the family as it is stored in this way, and a copy with one weight perturbed in the file."""
    sizes = {**LARGE, **LARGER_HEADS.get(family, {})} if kind in QUANTISED else {}
    folder = folder_of(tmp_path / "model", SEED, **{**FAMILIES[family], **sizes})
    right = folder
    if kind != "folder":
        right = tmp_path / "right.gguf"
        convert(open_checkpoint(folder), right, MIXES[kind])
    wrong = tmp_path / ("wrong" if kind == "folder" else "wrong.gguf")
    (shutil.copytree if kind == "folder" else shutil.copy)(right, wrong)
    opened = open_model(str(right))
    stored, form = opened.stored, families.FAMILIES[opened.config.model_type].gguf
    names = [n for n, w in stored.items() if w.is_quantised == (kind in QUANTISED) and (part is None or part in n)]
    names = [n for n in names if ".experts." not in n]  # tokens need not choose the expert
    name = str(rng.choice(sorted(names)))
    if kind == "folder":
        file = wrong / "model.safetensors"
        tensors = tensors_of_folder(file)
        stored_name = hub_name(opened.config.model_type, name)
    else:
        file, tensors, stored_name = wrong, tensors_of_gguf(wrong), form.stored_name(name)
    # A weight that is some rows of a stored tensor, as phi3's gate_proj is of gate_up_proj, is found by its bytes.
    offset, size = tensors.get(stored_name, (0, 0))
    if size != stored[name].num_bytes:
        offset = file.read_bytes().index(stored[name].data.tobytes())
    perturb(file, offset, stored[name].dtype, stored[name].num_bytes, rng)
    before, after = (open_model(str(path)).stored[name].to_array(F32) for path in (right, wrong))
    rows = np.unique(np.argwhere(before != after)[:, 0])
    assert len(rows) == 1
    return Subject(folder, right, wrong, name, int(rows[0]))


def tensors_of_folder(file: Path) -> dict[str, tuple[int, int]]:
    """Where each tensor begins in the file, and its bytes."""
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    spans = {name: each["data_offsets"] for name, each in header.items() if name != "__metadata__"}
    return {name: (8 + length + start, stop - start) for name, (start, stop) in spans.items()}


def tensors_of_gguf(file: Path) -> dict[str, tuple[int, int]]:
    return {t.name: (int(t.data_offset), int(t.n_bytes)) for t in gguf.GGUFReader(file).tensors}


def perturb(file: Path, offset: int, dtype: str, num_bytes: int, rng: np.random.Generator) -> None:
    """One element, by 2 % to 100 % and a little; of blocks a byte, until a value moves by half of the largest."""
    data = bytearray(file.read_bytes())
    if dtype in FORMATS:
        size = FORMATS[dtype].block_bytes
        at = offset + size * int(rng.integers(num_bytes // size))
        block = np.frombuffer(bytes(data[at : at + size]), np.uint8)
        right = FORMATS[dtype].dequantize(block[None])
        while True:
            new = block.copy()
            new[rng.integers(size)] = rng.integers(256)
            values = FORMATS[dtype].dequantize(new[None])
            if np.isfinite(values).all() and np.abs(values - right).max() > np.abs(right).max() / 2:
                break
        data[at : at + size] = new.tobytes()
    else:
        width = {"F32": 4, "F16": 2, "BF16": 2}[dtype]
        at = offset + width * int(rng.integers(num_bytes // width))
        stored = bytes(data[at : at + width])
        right = float(
            np.frombuffer(stored, "<f2")[0] if dtype == "F16" else np.frombuffer(bytes(4 - width) + stored, "<f4")[0]
        )
        wrong = right + np.copysign(float(rng.uniform(0.02, 1)) * abs(right) + 0.02, rng.choice([-1, 1]))
        number = np.array(wrong, "<f2" if dtype == "F16" else "<f4").tobytes()
        data[at : at + width] = number if dtype == "F16" else number[4 - width :]
    file.write_bytes(data)


@pytest.mark.drawn(2, each="kind")
@pytest.mark.parametrize("kind", ["folder", "plain GGUF", "quantised GGUF"])
@pytest.mark.parametrize("family", FAMILIES)
def test_beside_the_original_one_wrong_weight_is_named(
    family: str, kind: str, tmp_path: Path, karat_here: Karat
) -> None:
    rng = rng_of(family, kind)
    stored = "folder" if kind == "folder" else str(rng.choice(PLAIN[1:] if "plain" in kind else QUANTISED))
    subject = made(tmp_path, family, stored, rng)
    options = ("--against", "reference", "--stages", "weights", "--original", str(subject.folder))
    right = karat_here("check", str(subject.right), *options)
    assert right.returncode == 0 and "verdict: exact" in right.stdout, right.stdout
    done = karat_here("check", str(subject.wrong), *options)
    where = f"KARAT_SEED={SEED} {stored} {subject}: {done.stdout}"
    assert done.returncode == 1 and "verdict: bug" in done.stdout, where
    (line,) = (line.strip() for line in done.stdout.splitlines() if line.startswith("   "))
    assert line.startswith(f"{subject.name} (") and ("which no rounding to" in line or "NaN" in line), where
    assert f"[{subject.row}, " in line or f"[{subject.row}] " in line, where


def run(path: Path, ids: tuple[int, ...]) -> Trace:
    model = open_model(str(path))
    return record(model.config, model.checkpoint, create("reference", "float32"), Steps(ids))


def moves(op: str, right: Trace, wrong: Trace) -> float:
    """How far the results of an op are moved at most, of their deviation."""
    return float(np.abs(wrong.arrays[op] - right.arrays[op]).max() / right.arrays[op].std())


@pytest.mark.drawn(2, each="kind")
@pytest.mark.parametrize("kind", ["folder", "quantised GGUF"])
@pytest.mark.parametrize("family", FAMILIES)
def test_beside_a_trace_of_the_right_weights_the_op_of_a_wrong_one_is_named(
    family: str, kind: str, tmp_path: Path, karat_here: Karat
) -> None:
    rng = rng_of(family, kind, "trace")
    stored = "folder" if kind == "folder" else str(rng.choice(QUANTISED))
    ids = tuple(int(i) for i in rng.integers(0, 4000, 40))
    for attempt in count():
        subject = made(tmp_path / str(attempt), family, stored, rng, part="_proj.weight")
        trace = run(subject.right, ids)
        if moves(subject.name.removesuffix(".weight"), trace, run(subject.wrong, ids)) > SEEN:
            break
    write_trace(tmp_path / "right.trace", trace)
    options = ("--against", str(tmp_path / "right.trace"), "--stages", "weights,layers")
    right = karat_here("check", str(subject.right), *options)
    where = f"KARAT_SEED={SEED} {stored} {subject}: {right.stdout}"
    assert right.returncode == 0 and "the trace states the digest of these weights" in right.stdout, where
    done = karat_here("check", str(subject.wrong), *options)
    where = f"KARAT_SEED={SEED} {stored} {subject}: {done.stdout}"
    assert done.returncode == 1 and "verdict: bug" in done.stdout, where
    assert "note: the trace states another digest of its weights" in done.stdout
    assert subject.name.removesuffix(".weight") in done.stdout, where


def test_what_a_file_cannot_show_of_itself_is_said(tmp_path: Path, karat_here: Karat) -> None:
    rng = rng_of("alone")
    subject = made(tmp_path, "qwen2", "Q4_0", rng)
    done = karat_here("check", str(subject.wrong), "--against", "reference", "--stages", "weights")
    assert done.returncode == 0
    assert "a file alone cannot prove its values are the intended ones; compare with --original MODEL" in done.stdout
