"""What an engine of these sizes can serve is admitted and runs to its end; a fault is refused in words of its own."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from msgspec import structs

from karat import LLM
from karat.engine.requests.admission import Admission, params_after, require_a_choice, resolve_max_tokens, room_after
from karat.engine.requests.grammar_cache import GrammarCache
from karat.errors import CapacityError, KaratError, RequestError
from karat.request import MAX_CHOICES, MAX_COUNT, Resume, SamplingParams
from karat.request_record import Request
from tests.engine.fakes import BYTES, drive, make_config, make_engine
from tests.engine.tiny import IM_END
from tests.support.drawn import examples
from tests.support.seed import SEED

CONFIG = make_config()
ADMISSION = Admission(CONFIG, GrammarCache.of(BYTES, CONFIG.vocab_size))
SIZE, CONTEXT = CONFIG.vocab_size, CONFIG.max_model_len
TOKEN_IDS = st.integers(0, SIZE - 1)
NO_TOKEN_IDS: Any = st.sampled_from([-1, SIZE, 10**30, True, 1.0, "a", None])


@st.composite
def requests(draw: st.DrawFn, *, resumed: bool | None = None) -> Request:
    """Any request that an engine of CONFIG can serve, often with nothing to spare."""
    prompt = draw(st.lists(TOKEN_IDS, min_size=1, max_size=CONTEXT - 1))
    rest = CONTEXT - len(prompt)
    max_tokens = draw(st.none() | st.just(rest) | st.integers(1, rest))
    most = max_tokens or rest
    is_resumed = draw(st.booleans()) if resumed is None else resumed
    params = SamplingParams(
        n=1 if is_resumed else draw(st.integers(1, 3)),
        max_tokens=max_tokens,
        min_tokens=draw(st.just(most) | st.integers(0, most)),
        stop_token_ids=tuple(draw(st.lists(TOKEN_IDS, max_size=3))),
        logit_bias=dict(draw(st.lists(st.tuples(TOKEN_IDS, st.floats(-100, 100)), max_size=3))),
    )
    goes_on = TOKEN_IDS.filter(lambda token_id: token_id not in params.stop_token_ids)
    resume = Resume(tuple(draw(st.lists(goes_on, max_size=most - 1))), draw(st.integers(0, MAX_CHOICES - 1)))
    return Request(
        "a",
        tuple(prompt),
        params,
        draw(st.integers(0, 2**63 - 1)),
        priority=draw(st.sampled_from([-MAX_COUNT, 0, MAX_COUNT]) | st.integers(-MAX_COUNT, MAX_COUNT)),
        resume=resume if is_resumed else None,
    )


def is_refused(request: Request, error: type[KaratError], words: str) -> None:
    """check_limits and the engine refuse it in these words, and the engine has nothing of it."""
    with pytest.raises(error, match=f"^{words}"):
        ADMISSION.check_limits(request)
    engine, _ = make_engine()
    with pytest.raises(error, match=f"^{words}"):
        engine.add_request(request)
    assert not engine.has_work
    engine.scheduler.check()


@seed(SEED)
@settings(max_examples=examples(60), deadline=None)
@given(requests())
def test_what_is_admitted_ends_within_its_tokens(request: Request) -> None:
    most = ADMISSION.check_limits(request)
    assert most == (request.params.max_tokens or CONTEXT - len(request.prompt_token_ids))
    had = len(request.resume.token_ids) if request.resume else 0
    engine, _ = make_engine()
    engine.add_request(request)
    outputs, _ = drive(engine)
    for choice in outputs["a"].outputs:
        assert choice.finish_reason in ("length", "stop")
        assert had + len(choice.token_ids) <= most


@seed(SEED)
@settings(max_examples=examples(60), deadline=None)
@given(requests(), NO_TOKEN_IDS, st.data())
def test_what_is_no_token_id_is_refused_wherever_it_is(request: Request, wrong: Any, data: st.DataObject) -> None:
    ids = request.prompt_token_ids
    place = data.draw(st.integers(0, len(ids) - 1))
    words = f"the prompt: {re.escape(repr(wrong))} is no token id; expected integers from 0 to {SIZE - 1}$"
    is_refused(structs.replace(request, prompt_token_ids=(*ids[:place], wrong, *ids[place + 1 :])), RequestError, words)


@seed(SEED)
@settings(max_examples=40, deadline=None)
@given(requests(), st.integers(SIZE, MAX_COUNT), st.sampled_from(["stop_token_ids", "allowed_token_ids", "logit_bias"]))
def test_a_token_id_of_a_larger_vocabulary_is_refused_by_its_field(request: Request, wrong: int, field: str) -> None:
    value: Any = {1: 1.0, wrong: 1.0} if field == "logit_bias" else (1, wrong)
    is_refused(
        structs.replace(request, params=replace(request.params, **{field: value})),
        RequestError,
        f"{field}: {wrong} is no token id; expected integers from 0 to {SIZE - 1}$",
    )


@pytest.mark.parametrize("wrong", [-MAX_COUNT - 1, MAX_COUNT + 1, True, 1.0, "high", None])
def test_a_priority_that_is_none_is_refused(wrong: Any) -> None:
    plain = Request("a", (1, 2), SamplingParams(), 0, priority=wrong)
    is_refused(plain, RequestError, f"priority={re.escape(repr(wrong))}: expected an integer from -")


@seed(SEED)
@settings(max_examples=40, deadline=None)
@given(requests(), st.integers(1, 1000))
def test_a_request_longer_than_the_context_is_refused(request: Request, over: int) -> None:
    rest = CONTEXT - len(request.prompt_token_ids)
    for name in ("max_tokens", "min_tokens"):
        long = replace(request.params, **{"max_tokens": None, "min_tokens": 0, name: rest + over})
        words = (
            f"{name}={rest + over} after a prompt of {CONTEXT - rest} tokens: the context of {CONTEXT} leaves {rest}; "
        )
        is_refused(structs.replace(request, params=long), CapacityError, words)
    full = (*request.prompt_token_ids, *[0] * rest)
    is_refused(
        structs.replace(request, prompt_token_ids=full),
        CapacityError,
        f"the prompt has {CONTEXT} tokens, and the context of {CONTEXT} must hold at least one more",
    )


@seed(SEED)
@settings(max_examples=40, deadline=None)
@given(requests(resumed=True), st.integers(1, 100))
def test_a_resumed_answer_is_one_choice_within_its_tokens(request: Request, over: int) -> None:
    most, resume = ADMISSION.check_limits(request), request.resume
    assert resume is not None
    assert ADMISSION.check_limits(structs.replace(request, resume=replace(resume, token_ids=(0,) * most))) == most
    long = (0,) * (most + over)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"resume": replace(resume, token_ids=long)}, f"resume: {most + over} tokens, more than max_tokens={most};"),
        ({"resume": replace(resume, token_ids=(SIZE,))}, f"resume: {SIZE} is no token id"),
        (
            {"resume": replace(resume, choice=MAX_CHOICES)},
            f"resume: choice={MAX_CHOICES}: expected an integer from 0 to",
        ),
        ({"resume": replace(resume, choice=-1)}, "resume: choice=-1: expected an integer from 0 to"),
        ({"params": replace(request.params, n=2)}, "resume with n or prompt_logprobs"),
        ({"params": replace(request.params, prompt_logprobs=0)}, "resume with n or prompt_logprobs"),
    ]
    for change, words in wrong:
        is_refused(structs.replace(request, **change), RequestError, words)


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
