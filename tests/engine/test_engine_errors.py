"""The engine where numbers go wrong: what is at fault ends, and nothing else is disturbed."""

from typing import Any

import numpy as np
import pytest

from karat.errors import NumericsError
from karat.ops.executor import AtOnce
from tests.engine.fakes import SAMPLED, alone, drive, make_engine, request, run, says


def nan_after(token_id: int, value: float = np.nan) -> Any:
    """Noise, but not a number after any context that ends with `token_id`."""
    _, model = make_engine()

    def logits_of(context: tuple[int, ...]) -> np.ndarray:
        logits = model.noise(context)
        if context[-1] == token_id:
            logits[7] = value
        return logits

    return logits_of


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_end_only_the_request_they_are_in(value: float) -> None:
    engine, _ = make_engine(nan_after(255, value))
    good = request("good", b"abc", seed=1, **SAMPLED)
    outputs = run(engine, good, request("bad", b"ab\xff", n=2, max_tokens=5))
    assert outputs["good"] == alone(good)
    for choice in outputs["bad"].outputs:
        assert (choice.finish_reason, choice.token_ids, choice.text) == ("error", (), "")
        assert f"choice {choice.index}: the logits after the token at position 2" in str(choice.error)
        assert "token id 7" in str(choice.error)


def test_a_choice_in_error_keeps_what_it_had() -> None:
    said = says([97, 98, 99], 2)

    def logits_of(context: tuple[int, ...]) -> np.ndarray:
        return said(context) * (np.nan if context[-1] == 98 else 1)

    engine, _ = make_engine(logits_of)
    engine.add_request(request("a", b"..", temperature=0, stop="bx"))
    outputs, chunks = drive(engine)
    (choice,) = outputs["a"].outputs
    assert (choice.text, choice.token_ids, choice.finish_reason) == ("ab", (97, 98), "error"), "held-back text included"
    assert chunks["a"][-1].finish_reason == "error" and chunks["a"][-1].error == choice.error
    assert "position 3" in str(choice.error)


def test_prompt_logits_that_are_not_finite_are_an_error_too() -> None:
    engine, _ = make_engine(nan_after(255))
    engine.add_request(request("a", b"a\xffb", max_tokens=2))
    engine.add_request(request("b", b"a\xffb", prompt_logprobs=0))
    outputs, chunks = drive(engine)
    assert outputs["a"].outputs[0].finish_reason == "length", "nobody asked"
    assert outputs["b"].outputs[0].finish_reason == "error"
    assert "position 1" in str(outputs["b"].outputs[0].error)
    (first, second) = outputs["b"].prompt_logprobs or ()
    assert first is None and second is not None and 255 in second, "what came before the fault"
    (chunk,) = chunks["b"]
    assert chunk.prompt_logprobs == outputs["b"].prompt_logprobs


def test_a_value_the_cache_cannot_hold_ends_only_its_sequence() -> None:
    engine, model = make_engine()

    def overflow(batch: Any) -> Any:
        if (batch.token_ids == 255).any():
            raise NumericsError("K of layer 3 does not fit")
        return model(batch)

    engine.run = AtOnce(overflow)
    good = [request(str(i), bytes([97 + i] * 5), seed=i, **SAMPLED) for i in range(3)]
    outputs = run(engine, good[0], request("bad", b"ab\xff"), *good[1:])
    assert all(outputs[item.request_id] == alone(item) for item in good)
    assert outputs["bad"].outputs[0].error == "choice 0: K of layer 3 does not fit"


def test_logits_of_a_text_that_overflows() -> None:
    engine, _ = make_engine()

    def overflow(batch: Any) -> Any:
        raise NumericsError("K of layer 3 does not fit")

    engine.run = AtOnce(overflow)
    reader = engine.add_logits((1, 2), np.empty((2, 258), np.float32))
    drive(engine)
    assert reader.done and "layer 3" in str(reader.error)


def test_a_forward_pass_that_raises_leaves_all_as_it_was() -> None:
    engine, model = make_engine()
    item = request("a", b"abc", seed=4, **SAMPLED)
    engine.add_request(item)
    engine.step()

    def fail(batch: Any) -> Any:
        raise RuntimeError("a bug")

    engine.run = AtOnce(fail)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="a bug"):
            engine.step()
        engine.scheduler.check()
    engine.run = model
    outputs, _ = drive(engine)
    assert outputs["a"] == alone(item)
