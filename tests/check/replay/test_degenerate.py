"""A result that carries no information gets no name, and is called what it is."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from karat.check.diagnosis.diagnose import Diagnoser
from karat.check.diagnosis.wording import diagnosis_lines
from karat.check.model.checked import CheckedModel, open_model
from karat.check.record.executors import Steps, record_model
from karat.check.trace.format import Trace
from karat.models.registry import build
from karat.ops.reference import ReferenceOps
from tests.support.parallel import config_of, write

IDS = (5, 9, 300)


def _run(model: CheckedModel) -> Trace:
    return record_model(
        build(model.config, ReferenceOps("float64"), model.checkpoint, num_positions=3), Steps.chunked(IDS, None)
    )


@pytest.fixture(scope="module")
def right() -> Trace:
    return _run(open_model(None))


def _said(
    trace: Trace, arrays: dict[str, np.ndarray], seconds: float = 1, path: str | None = None
) -> tuple[list[str], str]:
    model = open_model(path)
    diagnosis = Diagnoser(model.graph, model.weights(), Trace(trace.info, arrays), seconds=seconds).run()
    lines = diagnosis_lines(diagnosis, model.graph, trace.info)
    return [bug for named in diagnosis.named for bug in sorted(named.bugs)], "\n".join(lines)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (np.zeros_like, "all zero"),
        (lambda x: np.full_like(x, -0.0), "all zero"),
        (lambda x: np.full_like(x, 2.5), "constant"),
        (lambda x: np.full_like(x, np.nan), "not finite"),
        (lambda x: np.full_like(x, np.inf), "not finite"),
        (lambda x: np.sign(x) * 3, "of 2 values only"),
    ],
)
@pytest.mark.parametrize("name", ["lm_head", "model.layers.2"])
def test_it_gets_no_name(right: Trace, make: Callable[[np.ndarray], np.ndarray], word: str, name: str) -> None:
    alone = {name: make(np.array(right.arrays[name]))}
    bugs, text = _said(right, alone)
    assert f"{word}: {name}, token" in text and "verdict: bug" in text and not bugs, text


@pytest.mark.parametrize("name", ["scores", "weights"])
def test_attention_without_a_number_gets_no_name(right: Trace, name: str) -> None:
    """Two steps: what fills up the first one's rows, for keys that come later, is nobody's result."""
    name = f"model.layers.1.self_attn.{name}"
    filled = np.array(right.arrays[name])
    filled[:, :2, 2] = -np.inf if name.endswith("scores") else 0
    filled[:, :2, :2] = filled[:, 2] = np.nan
    info = replace(right.info, steps=(0, 2))
    bugs, text = _said(Trace(info, {}), {name: filled})
    assert f"not finite: {name}, head 0, token" in text and "verdict: bug" in text and not bugs, text


def test_what_may_have_overflowed_tells_no_mistake_from_another(right: Trace) -> None:
    """float16, and inputs so large that any wrong weights would do: every value may be NaN or either infinity."""
    rng = np.random.default_rng(2)
    act, down = (f"model.layers.2.mlp.{part}" for part in ("act", "down_proj"))
    large = 3e4 * rng.choice([-1.0, 1.0], right.arrays[act].shape)
    odd = rng.choice([np.nan, np.inf, -np.inf], right.arrays[down].shape)
    bugs, text = _said(Trace(replace(right.info, dtype="float16"), {}), {act: large, down: odd})
    assert f"unexplained: {down}, token 0" in text and not bugs, text


@pytest.mark.parametrize("num_layers", [2, pytest.param(6, marks=pytest.mark.long)])
def test_partial_traces_say_from_where_and_how_far(num_layers: int, tmp_path: Path) -> None:
    """Logits alone, with noise: nothing is said of lm_head that is not said of everything before it.

    Whatever can be tried is tried, on all ops: six layers, the embedded model's, take a minute.
    """
    config = config_of(
        "qwen2",
        vocab_size=512,
        hidden_size=64,
        num_attention_heads=4,
        head_dim=16,
        intermediate_size=128,
        num_hidden_layers=num_layers,
    )
    path = None if num_layers == 6 else str(write(tmp_path / "model", config, "F32"))
    right = _run(open_model(path))
    rng = np.random.default_rng(1)
    logits = np.array(right.arrays["lm_head"])
    bugs, text = _said(right, {"lm_head": logits + 0.1 * rng.standard_normal(logits.shape)}, path=path)
    assert not bugs and "unexplained: lm_head, token" in text
    for said in (
        f"computed from the token ids over {4 + 17 * num_layers} ops, model.embed_tokens to lm_head: what is",
        f"a bug can only be narrowed down to this range: layers 0-{num_layers - 1}, model.embed_tokens, model.norm, lm",
    ):
        assert said in text
    assert "named if one mistake, in one layer or in all, gives what follows" in text


def test_a_name_says_the_layer_of_the_mistake(right: Trace) -> None:
    """Scores of layer 3 that nobody scaled, told from two layers' outputs alone."""
    model = open_model(None)
    arrays = {n: np.array(x) for n, x in right.arrays.items() if n.removeprefix("model.layers.").isdigit()}
    replay = Diagnoser(model.graph, model.weights(), Trace(right.info, arrays)).replay
    name = "model.layers.3"
    edits = {f"{name}.self_attn.scores": {"scale": 1.0}}
    arrays[name] = replay.run(replay.segment(name), edits)
    bugs, text = _said(right, {n: arrays[n] for n in ("model.layers.1", name)}, seconds=5)
    assert bugs == ["scale-missing"], text
    assert "mistake in self_attn.scores in layer 3" in text
    assert "computed   from the recorded layer in layer 1 over 34 ops, model.layers.2.input_layernorm to" in text
