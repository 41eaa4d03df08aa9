"""The noise that a right result may have: that of a library's GELU."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from karat.check.model.context import Context
from karat.check.model.graph import Node
from karat.check.model.tokens import Tokens
from karat.check.replay.noise import Noise
from tests.support import mistakes

torch = pytest.importorskip("torch", reason="a library whose GELU is looked at")


@pytest.mark.parametrize("form", ["tanh", "erf"])
@pytest.mark.parametrize("least", [-5.0, -4.0, -3.0])
def test_a_gelu_that_is_tiny_may_be_as_far_off_as_a_librarys(form: str, least: float) -> None:
    """Near -4 the sum with 1 has few bits left: more than a rounding of the result is off."""
    rng = np.random.default_rng(0)
    gate, up = rng.uniform(least, least + 0.5, 4096), rng.standard_normal(4096)
    approximate = "tanh" if form == "tanh" else "none"
    inputs = [gate.astype(np.float32)[None], up.astype(np.float32)[None]]

    def gelu(dtype: Any) -> NDArray[np.float64]:
        gates, ups = (torch.from_numpy(each).to(dtype) for each in inputs)
        made: NDArray[np.float64] = (
            (torch.nn.functional.gelu(gates, approximate=approximate) * ups).numpy().astype(np.float64)
        )
        return made

    right = gelu(torch.float64)
    _, weights = mistakes.model_of("llama")
    info = mistakes.traces()["two"]
    tokens = Tokens.of(info)
    noise = Noise(info, Context(weights, tokens, np.arange(tokens.num_tokens)), 0)
    node = Node("act", "gelu_mul", ("gate", "up"), {}, mistakes={} if form == "tanh" else {"activation": "gelu (erf)"})
    floor = noise.with_gelu_of_library(node, inputs, right) - right
    off = gelu(torch.float32) - right
    assert np.sqrt(np.square(off).mean()) < 5 * np.sqrt(np.square(floor).mean())
