"""A state that is not cleared: a text begins with what the one before left, in the rule, the convolution, or both."""

import random
import sys
from itertools import count
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="transformers needs torch")

from karat.check.diagnosis.diagnose import Diagnoser  # noqa: E402
from karat.check.record.executors import Steps  # noqa: E402
from karat.check.record.hf import record_hf  # noqa: E402
from karat.check.record.hf_modules import mixer_of  # noqa: E402
from karat.check.trace.format import Trace  # noqa: E402
from tools.zoo.batches import side_by_side  # noqa: E402
from tools.zoo.models import Subject, draw  # noqa: E402


class Uncleared:
    """Functions of transformers' source file that go on from what their last pass left, layer by layer."""

    def __init__(self, subject: Subject, patch: pytest.MonkeyPatch, kept: tuple[str, ...]) -> None:
        source = sys.modules[type(subject.hf.model).__module__]
        recurrent = [layer for layer in subject.hf.model.layers if mixer_of(layer) != "self_attn"]
        self._num_layers, self._rows, self._states = len(recurrent), dict[int, Any](), dict[int, Any]()
        self._convs, self._rules = count(), count()
        if "conv" in kept:
            patch.setattr(source, "causal_conv1d_fn", self._conv(source.causal_conv1d_fn))
        if "rule" in kept:
            rule = source.torch_chunk_gated_delta_rule
            patch.setattr(source, "torch_chunk_gated_delta_rule", self._rule(rule))

    def _conv(self, original: Any) -> Any:
        def conv(x: Any, weight: Any, *args: Any, **more: Any) -> Any:  # x [1, channels, tokens]
            layer, taps = next(self._convs) % self._num_layers, weight.shape[-1]
            whole = torch.cat([self._rows.get(layer, torch.zeros_like(x[..., : taps - 1])), x], -1)
            self._rows[layer] = whole[..., whole.shape[-1] - taps + 1 :]
            return original(whole, weight, *args, **more)[..., taps - 1 :]

        return conv

    def _rule(self, original: Any) -> Any:
        def rule(*args: Any, **more: Any) -> Any:
            layer = next(self._rules) % self._num_layers
            more |= {"initial_state": self._states.get(layer), "output_final_state": True}
            out, self._states[layer] = original(*args, **more)
            return out, self._states[layer]

        return rule


def two_texts(subject: Subject) -> Trace:
    """The subject's, and after it another one."""
    rng = random.Random("second")
    second = tuple(rng.randrange(subject.raw["vocab_size"]) for _ in range(20))
    traces = [record_hf(subject.hf, Steps(ids)) for ids in (subject.steps.prompt, second)]
    return side_by_side(traces, in_turn=True)


CASES = [("lfm2", ("conv",)), *(("qwen3_5_text", kept) for kept in [("conv",), ("rule",), ("conv", "rule")])]


@pytest.mark.drawn(2)
@pytest.mark.parametrize(("family", "kept"), CASES)
def test_a_state_that_is_not_cleared_has_a_name(
    family: str, kept: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = draw(f"kept-{family}", family=family, steps="whole")
    right = Diagnoser(subject.graph, subject.weights, two_texts(subject)).run()
    assert right.named == [] and right.unexplained == []
    Uncleared(subject, monkeypatch, kept)
    found = Diagnoser(subject.graph, subject.weights, two_texts(subject)).run()
    assert not found.unexplained and {bug for named in found.named for bug in named.bugs} == {"state-kept"}
    part = {("conv",): "of the convolution", ("rule",): "of the rule"}.get(kept if family != "lfm2" else (), "")
    details = [detail for named in found.named for detail in named.details]
    assert all("computed before it" in detail and detail.endswith(part) for detail in details)
