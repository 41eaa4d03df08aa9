"""`karat check` of random models of every family, as folders and as GGUF: rounding and nothing else, on every seed."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from karat import LLM
from karat.check.files.quantised import distances
from karat.check.model.checked import CheckedModel, open_model
from karat.check.record import llamacpp
from karat.check.session.agreement import greedy_difference, has_transformers
from karat.check.session.session import STAGES, CheckPlan, CheckSession
from karat.check.session.stage import overall
from karat.check.stages.registry import run_stages
from karat.checkpoint.weights import Weight
from karat.convert import MIXES, convert
from karat.errors import ExecutorError
from karat.models.opening import open_model as open_checkpoint
from tests.convert.folders import FAMILIES, folder_of
from tests.support import seed

SEED = int(seed.SEED)
PROMPT = "Once upon a time, there was a small house. 你好 🍎"
# What takes long: a story of hundreds of tokens means nothing here.
CHOSEN = tuple(stage for stage in STAGES if stage != "story")


def verdicts(model: CheckedModel, **options: Any) -> dict[str, str]:
    session = CheckSession(CheckPlan(model=model, prompt=PROMPT, num_tokens=12, stages=CHOSEN, seed=SEED, **options))
    done = list(run_stages(session))
    bad = [line for stage in done for line in stage.lines if stage.verdict == "bug"]
    assert not bad, f"KARAT_SEED={SEED}: {bad}"
    return {stage.name: stage.verdict for stage in done} | {"": overall(done)}


@pytest.mark.drawn(4)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_of_every_family_is_right(family: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model", SEED, **FAMILIES[family])
    with_hf = has_transformers() and ("KARAT_LONG" in os.environ or not family.startswith("lfm2"))
    if with_hf and family.startswith("phi3"):  # whose modules are others than Llama's
        with pytest.raises(ExecutorError, match="modules are named as Llama's"):
            verdicts(open_model(str(folder)), with_hf=True)
        with_hf = False
    found = verdicts(open_model(str(folder)), with_hf=with_hf)
    assert found[""] == "numerics" and found["weights"] == "exact" and list(found)[:-1] == list(CHOSEN)


@pytest.mark.skipif(not has_transformers(), reason="needs transformers")
def test_a_token_that_the_rounding_of_the_cache_decides_is_no_bug(tmp_path: Path) -> None:
    """This model's logits move by 3 % of their deviation where keys and values are stored in float16."""
    folder = folder_of(tmp_path / "model", 1769045076, **FAMILIES["yarn"])
    plan = CheckPlan(model=open_model(str(folder)), prompt=PROMPT, num_tokens=12, stages=("generation",), with_hf=True)
    if CheckSession(plan).kv_dtype == "float16":
        (stage,) = run_stages(CheckSession(plan))
        assert stage.verdict == "exact"
        same = "takes the same 24 tokens on a float32 cache; on the float16 one token 11 is 1396 ' At' here (ahead by"
        assert same in stage.lines[1]
    (stage,) = run_stages(CheckSession(replace(plan, kv_dtype="float32")))
    assert stage.verdict == "exact" and stage.lines[1] == "transformers takes the same 24 tokens"


@pytest.mark.skipif(not has_transformers(), reason="needs transformers")
def test_what_the_rounding_of_the_cache_does_to_a_layer_is_no_bug(tmp_path: Path) -> None:
    """In this model it moves weights of attention by more than a thousand times the spread that noise shows."""
    folder = folder_of(tmp_path / "model", 14, num_hidden_layers=6, **FAMILIES["linear"])
    plan = CheckPlan(
        model=open_model(str(folder)),
        prompt=PROMPT,
        num_tokens=30,
        stages=("layers",),
        kv_dtype="bfloat16",
        with_hf=True,
    )
    (stage,) = run_stages(CheckSession(plan))
    assert stage.verdict == "numerics", stage.lines
    assert stage.facts["against_transformers"] < 1000 or "; on a float32 cache, as transformers" in stage.lines[2]


@pytest.mark.parametrize("chunk", [None, 1, 7])
def test_chunks_change_what_rounding_does_and_no_more(
    chunk: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the reference, whose sums of products depend on the number of tokens; this model makes much of a last bit."""
    folder = folder_of(tmp_path / "model", SEED, num_hidden_layers=6)

    class Disturbed(LLM):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.is_wrong = options["max_num_batched_tokens"] == chunk

        def logits(self, *args: Any) -> Any:
            return super().logits(*args) * np.float32(1.05 if self.is_wrong else 1)

    monkeypatch.setattr("karat.check.session.session.LLM", Disturbed)
    plan = CheckPlan(
        model=open_model(str(folder)),
        prompt=PROMPT,
        num_tokens=14,
        stages=("invariance",),
        executor="reference",
        kv_dtype="bfloat16",
    )
    (stage,) = run_stages(CheckSession(plan))
    assert stage.verdict == ("numerics" if chunk is None else "bug"), f"KARAT_SEED={SEED}: {stage.lines}"


def test_tokens_that_differ_are_a_bug_unless_rounding_explains_every_one() -> None:
    rng = np.random.default_rng(SEED)
    theirs = rng.standard_normal((6, 50))
    close = np.sort(theirs[4])[-2:]
    theirs[4, theirs[4].argmax()] = close[0] + 1e-4  # a near tie, which noise of 1e-3 turns
    ours = theirs.copy()
    assert greedy_difference(theirs, ours) is None
    first, second = theirs[4].argsort()[::-1][:2]
    ours[4, second] += 1e-3
    assert greedy_difference(theirs, ours).startswith(f"rounding decides: token 4 is {second} here")
    ours[5, theirs[5].argmin()] += 10
    assert greedy_difference(theirs, ours).startswith(f"bug: token 5 is {theirs[5].argmin()} here")
    assert first != second


@pytest.mark.drawn(1, each="mix")
@pytest.mark.parametrize(
    ("family", "mix"),
    [(family, ("F32", "Q8_0", "Q4_0")[i % 3]) for i, family in enumerate(FAMILIES)] + [("qwen2", "Q4_K_M")],
)
def test_a_gguf_file_of_every_family_is_right(family: str, mix: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 256} if mix == "Q4_K_M" else {}
    folder = folder_of(tmp_path / "model", SEED, **{**FAMILIES[family], **sizes})
    path = tmp_path / "model.gguf"
    convert(open_checkpoint(folder), path, MIXES[mix])
    original = open_model(str(folder))
    found = verdicts(open_model(str(path)), with_llamacpp=llamacpp.is_installed(), original=original)
    assert found[""] == ("numerics" if mix == "F32" else "quantisation")
    assert found["layers"] == found[""]


@pytest.mark.parametrize("mix", ["F32", "BF16", "F16"])
def test_one_element_that_is_not_the_originals_is_named(mix: str, tmp_path: Path) -> None:
    """A file of a plain type, rounded from the original; then one element of one tensor changes by 2 % and a little."""
    rng = np.random.default_rng(SEED)
    folder = folder_of(tmp_path / "model", SEED)
    path = tmp_path / "model.gguf"
    convert(open_checkpoint(folder), path, MIXES[mix])
    model, original = open_model(str(path)), open_model(str(folder))
    assert not distances(model, original).faults
    name = rng.choice(sorted(model.stored))
    weight = model.stored[name]
    values = weight.to_array(np.dtype(np.float32))
    index = tuple(int(rng.integers(n)) for n in values.shape)
    values[index] = values[index] * 1.02 + 1e-3 * np.sign(values[index])
    stored = replace(weight, row_order=None, stored=_narrowed(values, weight.dtype))
    changed = replace(model, stored={**model.stored, name: stored})
    (fault,) = distances(changed, original).faults
    assert fault.startswith(f"{name} (") and f"element {list(index)} is " in fault, f"KARAT_SEED={SEED}"


def _narrowed(values: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "BF16":
        return (values.reshape(-1).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return values.reshape(-1).astype({"F16": np.float16, "F32": np.float32}[dtype]).view(np.uint8)


def test_the_distance_to_the_original_names_the_worst_tensor_and_strangers(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model", SEED)
    path = tmp_path / "model.gguf"
    convert(open_checkpoint(folder), path, MIXES["Q4_0"])
    model, original = open_model(str(path)), open_model(str(folder))
    found = distances(model, original)
    far: dict[str, float] = found.facts["tensors"]
    assert not found.faults and far.keys() == model.stored.keys()
    for name, value in far.items():
        ours, right = (m.stored[name].to_array(np.dtype(np.float32)).astype(np.float64) for m in (model, original))
        assert value == pytest.approx(np.sqrt(np.mean((ours - right) ** 2) / np.mean(right**2)), rel=1e-9)
    worst = max(far, key=far.__getitem__)
    assert found.lines[-1].startswith(f"furthest from the original: {worst}, ")
    name = "model.layers.1.mlp.up_proj.weight"
    stranger = Weight(name, "F32", (96, 64), np.zeros(96 * 64 * 4, np.uint8) + np.uint8(60), Path("x"))
    wrong = replace(model, stored={**model.stored, name: stranger})
    (fault,) = distances(wrong, original).faults
    assert fault.startswith(f"{name} (F32): ") and "away from the original's" in fault
