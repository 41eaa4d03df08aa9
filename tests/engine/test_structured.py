"""Structured outputs in the engine: every finished answer has its form, however its choice is drawn, cut or mended."""

import json
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from karat import LLM, SamplingParams, StructuredOutputs
from karat.engine.choosing.choice import Choice
from karat.engine.engine import Engine
from karat.engine.requests.request_updates import RequestUpdate
from karat.errors import OtherContractError, RequestError
from karat.outputs import CompletionOutput, RequestOutput
from karat.receipts.receipt import sealed
from karat.request_record import Request
from tests.engine.fakes import BYTES, END, OTHER_END, drive, make_engine, request, run, says
from tests.support.seed import SEED

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(max_num_seqs=8)


def answer(engine_says: bytes | None = None, **params: Any) -> CompletionOutput:
    engine, _ = make_engine(None if engine_says is None else says(engine_says, 2), BYTES)
    return run(engine, request("a", [0, 1], **({"temperature": 0} | params)))["a"].outputs[0]


LEAVES = st.one_of(
    st.just({"type": "integer", "minimum": -5, "maximum": 100}),
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.just({"type": "number", "multipleOf": 0.5, "minimum": 0, "maximum": 10}),
    st.builds(lambda n: {"type": "string", "maxLength": n}, st.integers(0, 6)),
    st.builds(
        lambda values: {"enum": values},
        st.lists(st.text(max_size=4) | st.integers(-(2**53), 2**53), min_size=1, max_size=3),
    ),
    st.just({"type": "string", "pattern": "^[a-c]{1,4}-[0-9]{2}$"}),
    st.just({"type": "string", "format": "date"}),
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(
            lambda parts, least: {
                "type": "object",
                "properties": parts,
                "required": list(parts)[:least],
                "additionalProperties": False,
            },
            st.dictionaries(st.sampled_from(["a", "b", "long name", "é"]), inner, max_size=3),
            st.integers(0, 3),
        ),
        st.builds(lambda part: {"type": "array", "items": part, "maxItems": 3}, inner),
        st.builds(lambda one, two: {"anyOf": [one, two]}, inner, inner),
    ),
    max_leaves=4,
)


@pytest.mark.slow
@seed(SEED)
@settings(max_examples=50, deadline=None)
@given(schema=SCHEMAS)
def test_every_finished_answer_validates(llm: LLM, schema: dict[str, Any]) -> None:
    form = StructuredOutputs(json=schema)
    params = SamplingParams(temperature=1.5, max_tokens=120, n=2, seed=int(SEED), structured_outputs=form)
    for choice in llm.generate("Once upon a time", params)[0].outputs:
        assert choice.finish_reason in ("stop", "length"), choice.error
        if choice.finish_reason == "stop":
            jsonschema.validate(json.loads(choice.text), schema, jsonschema.Draft202012Validator)


def test_greedy_and_sampled_draws_obey(llm: LLM) -> None:
    for temperature in (0, 1.5):
        params = SamplingParams(
            temperature=temperature, max_tokens=200, n=3, seed=5, structured_outputs={"json": SCHEMA}, logprobs=1
        )
        for choice in llm.chat([{"role": "user", "content": "Who are you?"}], params)[0].outputs:
            assert choice.finish_reason == "stop"
            jsonschema.validate(json.loads(choice.text), SCHEMA)


def test_penalties_and_filters_do_not_break_the_form(llm: LLM) -> None:
    params = SamplingParams(
        max_tokens=200,
        seed=1,
        top_k=1,
        top_p=0.1,
        min_p=0.9,
        repetition_penalty=1.8,
        frequency_penalty=1,
        logit_bias={5: 100},
        structured_outputs={"json": SCHEMA},
    )
    (choice,) = llm.generate("Once", params)[0].outputs
    jsonschema.validate(json.loads(choice.text), SCHEMA)


def test_without_the_field_no_token_changes(llm: LLM) -> None:
    """The same request before, beside and after one with a form."""
    free = SamplingParams(max_tokens=30, seed=3)
    formed = SamplingParams(max_tokens=30, seed=3, structured_outputs={"regex": "[a-z ]{20,}"})
    alone = llm.generate("Once", free)[0].outputs[0].token_ids
    beside = llm.generate(["Once", "Once"], [free, formed])
    assert beside[0].outputs[0].token_ids == alone != beside[1].outputs[0].token_ids
    assert beside[1].outputs[0].text.islower()


def test_logprobs_are_the_models(llm: LLM) -> None:
    params = {"max_tokens": 1, "temperature": 0, "logprobs": 0}
    ids = llm.tokenizer.encode("Once upon a")
    free = llm.generate(ids, SamplingParams(**params, allowed_token_ids=llm.tokenizer.encode("9")))[0].outputs[0]
    formed = llm.generate(ids, SamplingParams(**params, structured_outputs={"regex": "9+"}))[0].outputs[0]
    assert formed.logprobs == free.logprobs
    assert formed.logprobs is not None
    assert formed.logprobs[0][formed.token_ids[0]].rank > 1


def test_a_choice_ends_where_nothing_can_follow() -> None:
    choice = answer(b"yesyes", structured_outputs={"choice": ["yes", "no"]})
    assert (choice.text, choice.finish_reason, choice.stop_reason) == ("yes", "stop", None)
    assert choice.token_ids == tuple(b"yes"), "no end token is needed"


def test_an_end_token_ends_where_the_answer_is_whole() -> None:
    choice = answer(b"a", structured_outputs={"regex": "a+"})
    assert (choice.text, choice.finish_reason, choice.stop_reason) == ("a", "stop", END)
    assert answer(b"", structured_outputs={"regex": "a+"}).text.startswith("a"), "not before"
    for end in (END, OTHER_END):
        engine, _ = make_engine(says([97, end], 2), BYTES)
        made = request("a", [0, 1], end=(END, OTHER_END), temperature=0, structured_outputs={"regex": "a+"})
        assert run(engine, made)["a"].outputs[0].stop_reason == end


def test_a_truncated_answer_says_length() -> None:
    choice = answer(b"abcdef", structured_outputs={"regex": "abcdef"}, max_tokens=3)
    assert (choice.text, choice.finish_reason) == ("abc", "length")
    whole = answer(b"abc", structured_outputs={"regex": "abc"}, max_tokens=3)
    assert (whole.text, whole.finish_reason) == ("abc", "stop"), "complete with its last token"


def test_with_stops_min_tokens_and_ignore_eos() -> None:
    letters = {"structured_outputs": {"regex": "[a-z]+"}}
    cut = answer(b"abcdef", stop=["cd"], **letters)
    assert (cut.text, cut.finish_reason, cut.stop_reason) == ("ab", "stop", "cd")
    assert answer(b"abx", stop_token_ids=[ord("x")], **letters).text == "ab"
    assert len(answer(b"ab", min_tokens=5, **letters).token_ids) == 6, "five letters, then the end token"
    endless = answer(b"ab", ignore_eos=True, max_tokens=9, **letters)
    assert (len(endless.text), endless.finish_reason) == (9, "length")
    short = answer(b"ab", ignore_eos=True, min_tokens=9, structured_outputs={"regex": "ab"})
    assert (short.text, short.finish_reason) == ("ab", "stop"), "nothing can follow"


def test_no_token_left_is_an_error_that_says_so() -> None:
    choice = answer(b"ab", structured_outputs={"regex": "ab"}, allowed_token_ids=[ord("x")])
    assert choice.finish_reason == "error"
    assert choice.error is not None
    assert "structured_outputs" in choice.error
    assert "allowed_token_ids" in choice.error


def both(**changes: Any) -> list[RequestOutput]:
    params: dict[str, Any] = {"temperature": 1.0, "n": 2, "structured_outputs": {"regex": r"(ab|cd)[0-9]{3,12}x"}}
    engine, _ = make_engine(None, BYTES, **changes)
    for name in ("a", "b", "c"):
        engine.add_request(request(name, [1, 2, 3, 4], seed=ord(name), max_tokens=20, **params))
    outputs, _ = drive(engine)
    return [outputs[name] for name in ("a", "b", "c")]


def test_preemption_changes_nothing() -> None:
    assert both(num_blocks=12) == both()


@pytest.mark.parametrize("after", [1, 7, 30])
def test_a_form_is_rebuilt_from_the_tokens(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """An interrupt just after a token: the next step mends everything."""
    undisturbed = both()
    follow, count = Choice._follow, 0

    def interrupted(self: Choice, token_id: int) -> None:
        nonlocal count
        follow(self, token_id)
        count += 1
        if count == after:
            raise KeyboardInterrupt

    monkeypatch.setattr(Choice, "_follow", interrupted)
    step, num_interrupts = Engine.step, 0

    def steadfast(self: Engine) -> list[RequestUpdate]:
        nonlocal num_interrupts
        try:
            return step(self)
        except KeyboardInterrupt:
            num_interrupts += 1
            return step(self)

    monkeypatch.setattr(Engine, "step", steadfast)
    assert both() == undisturbed
    assert num_interrupts == 1


def test_bad_forms_are_refused_before_any_work(llm: LLM) -> None:
    with pytest.raises(RequestError, match="json: not: "):
        llm.generate("a", SamplingParams(structured_outputs={"json": {"not": {}}}))
    assert llm.engine.stats().num_waiting == 0


def test_messages_carry_forms() -> None:
    for form in ({"json": SCHEMA}, {"choice": ["a", "b"]}, {"regex": "a"}, {"grammar": 'start: "a"'}):
        asked = request("a", [1], structured_outputs=form)
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(asked), type=Request) == asked


@pytest.mark.parametrize("form", [{"json": SCHEMA}, {"choice": ["a", "bc"]}, {"regex": "[a-d]{3,9}"}], ids=str)
def test_a_receipt_has_the_form(llm: LLM, form: dict[str, Any]) -> None:
    params = SamplingParams(structured_outputs=form, n=2, temperature=1.5, seed=3, max_tokens=60)
    (output,) = llm.generate("Once", params, receipt=True)
    for choice in output.outputs:
        assert llm.verify(choice.receipt).kind == "identical"
        (name,) = form
        stated = choice.receipt.sampling.structured_outputs[name]
        assert (json.loads(stated) if name == "json" else stated) == (form[name] if name != "choice" else ("a", "bc"))
        assert choice.receipt.versions.llguidance
        body = msgspec.to_builtins(choice.receipt)
        body["sampling"]["structured_outputs"] = {"regex": "x{3}"}
        for member in ("checksums", "sha256", "signature"):
            del body[member]
        assert "output.token_ids: token 1 " in str(llm.verify(sealed(body)))
        body["versions"]["llguidance"] = "0.0.1"
        with pytest.raises(OtherContractError, match=r"another llguidance \(0\.0\.1, here"):
            llm.verify(sealed(body))
