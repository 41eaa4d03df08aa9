"""How long an answer may become, and whether it may begin."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat import LLM, SamplingParams
from karat.engine.lengths import params_after, require_a_choice, resolve_max_tokens, room_after
from karat.errors import CapacityError, RequestError
from tests.engine.tiny import IM_END


def test_what_is_given_comes_before_the_models_defaults() -> None:
    defaults = SamplingParams(temperature=0.5, max_tokens=30, min_tokens=20)
    assert params_after(10, 100, defaults, usual=40) == SamplingParams(temperature=0.5, max_tokens=30, min_tokens=20)
    assert params_after(10, 100, defaults, {"max_tokens": 50}, usual=40).max_tokens == 50
    assert params_after(10, 100, SamplingParams(), {"top_p": 0.5}, usual=40) == SamplingParams(top_p=0.5, max_tokens=40)
    lowered = SamplingParams(temperature=0.5, max_tokens=10, min_tokens=10)
    assert params_after(90, 100, defaults, usual=40) == params_after(90, 100, defaults) == lowered
    assert params_after(10, 100, defaults, {"max_tokens": 5}).min_tokens == 5, "nobody asked for a minimum"
    assert params_after(10, 100, SamplingParams()).max_tokens is None
    with pytest.raises(CapacityError, match="has 100 tokens, and the context of 100 must hold at least one more"):
        params_after(100, 100, defaults)
    with pytest.raises(RequestError, match="min_tokens=41"):
        params_after(10, 100, SamplingParams(), {"min_tokens": 41}, usual=40)


LENGTHS = st.none() | st.integers(1, 60)


@given(st.integers(1, 50), st.integers(1, 50), LENGTHS, st.integers(0, 60), LENGTHS, LENGTHS)
def test_parameters_of_defaults_always_fit(
    prompt_len: int, context: int, most: int | None, least: int, usual: int | None, asked: int | None
) -> None:
    """Defaults never make a request fail that would be served without them."""
    defaults = SamplingParams(max_tokens=most, min_tokens=least if most is None else min(least, most))
    sent: dict[str, Any] = {} if asked is None else {"max_tokens": asked}
    if prompt_len >= context:
        with pytest.raises(CapacityError):
            params_after(prompt_len, context, defaults, sent, usual=usual)
        return
    params, room = params_after(prompt_len, context, defaults, sent, usual=usual), room_after(prompt_len, context)
    if asked is not None and asked > room:
        with pytest.raises(CapacityError, match=f"max_tokens={asked} .* leaves {room}"):
            resolve_max_tokens(params, prompt_len, context)
        return
    resolved = resolve_max_tokens(params, prompt_len, context)
    assert resolved == (asked or min(room, most or room, usual or room)) and params.min_tokens <= resolved


def test_min_tokens_that_bars_every_token_is_refused_before_any_work(llm: LLM) -> None:
    params = SamplingParams(min_tokens=1, allowed_token_ids=(7,), stop_token_ids=(7,), ignore_eos=True)
    with pytest.raises(RequestError, match="min_tokens=1: until then no token that ends an answer is chosen"):
        llm.generate("a", params)
    with pytest.raises(RequestError, match="min_tokens=1"):
        next(iter(llm.stream("a", params)))
    size = llm.config.vocab_size
    with pytest.raises(RequestError, match="min_tokens=1"):
        require_a_choice(SamplingParams(min_tokens=1, allowed_token_ids=(IM_END,)), frozenset({IM_END}), size)
    require_a_choice(SamplingParams(min_tokens=1, allowed_token_ids=(7, IM_END)), frozenset({IM_END}), size)
