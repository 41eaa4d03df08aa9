"""An answer that is resumed after any of its tokens is what an undisturbed run makes, and so is its receipt.

Covers: karat.engine.receipts.resuming.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from karat import LLM, SamplingParams
from karat.errors import RequestError
from karat.outputs import CompletionOutput, StreamChunk
from tests.engine.tiny import CHATML, write_model
from tests.support.seed import SEED

FORMS: list[Any] = [None, {"regex": "[a-f]{3,30}"}, {"json": {"type": "array", "items": {"type": "integer"}}}]
PARAMS = st.builds(
    SamplingParams,
    n=st.integers(1, 3),
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_k=st.sampled_from([0, 20]),
    top_p=st.sampled_from([1.0, 0.9]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    frequency_penalty=st.sampled_from([0.0, -0.4]),
    repeat_last_n=st.sampled_from([None, 5]),
    top_n_sigma=st.sampled_from([0.0, 2.0]),
    typical_p=st.sampled_from([1.0, 0.8]),
    xtc_probability=st.sampled_from([0.0, 0.5]),
    xtc_threshold=st.just(0.02),
    dry_multiplier=st.sampled_from([0.0, 4.0]),
    dry_allowed_length=st.integers(0, 1),
    bad_words=st.sampled_from([(), ("th", "c")]),
    seed=st.integers(0, 2**63 - 1),
    max_tokens=st.integers(1, 30),
    min_tokens=st.just(1),
    stop=st.lists(st.sampled_from(["e", "th", "\n", "\x10", "é"]), max_size=2).map(tuple),
    include_stop_str_in_output=st.booleans(),
    logprobs=st.sampled_from([None, 1]),
    structured_outputs=st.sampled_from(FORMS),
)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with LLM(write_model(tmp_path_factory.mktemp("model"), eos_token="<|im_end|>"), num_blocks=40) as made:
        yield made


def gathered(chunks: list[StreamChunk]) -> CompletionOutput:
    """The chunks as one output."""
    ids = tuple(token_id for chunk in chunks for token_id in chunk.token_ids)
    logprobs = tuple(entry for chunk in chunks for entry in chunk.logprobs or ())
    last = chunks[-1]
    text = "".join(chunk.text for chunk in chunks)
    return CompletionOutput(0, text, ids, last.finish_reason, last.stop_reason, logprobs or None)


def texts_at(llm: LLM, prompt: Any, params: SamplingParams, index: int) -> list[str]:
    """What a reader of the stream has of choice `index` after 0, 1, 2 … tokens."""
    texts = [""]
    for chunk in llm.stream(prompt, params):
        if chunk.index == index:
            assert len(chunk.token_ids) == 1
            texts.append(texts[-1] + chunk.text)
    return texts


@seed(SEED)
@settings(max_examples=30, deadline=None)
@given(params=PARAMS, chat=st.booleans(), data=st.data())
def test_any_position_goes_on_as_if_nothing_had_happened(
    llm: LLM, params: SamplingParams, chat: bool, data: st.DataObject
) -> None:
    prompt: Any = llm.chat_prompt([{"role": "user", "content": "Hi"}]) if chat else "Once upon a time"
    (whole,) = llm.generate(prompt, params)
    index = data.draw(st.integers(0, params.n - 1))
    choice = whole.outputs[index]
    num = data.draw(st.integers(0, len(choice.token_ids)))
    rest = gathered(list(llm.resume(prompt, choice.token_ids[:num], params, choice=index)))
    texts = texts_at(llm, prompt, params, index)
    assert texts[num] + rest.text == choice.text == texts[-1]
    assert choice.token_ids[:num] + rest.token_ids == choice.token_ids
    assert (rest.finish_reason, rest.stop_reason) == (choice.finish_reason, choice.stop_reason)
    if choice.logprobs is not None:
        assert (rest.logprobs or ()) == choice.logprobs[num:]


@seed(SEED)
@settings(max_examples=12, deadline=None)
@given(params=PARAMS, chat=st.booleans(), data=st.data())
def test_a_resumed_answer_has_the_receipt_of_the_whole(
    llm: LLM, params: SamplingParams, chat: bool, data: st.DataObject
) -> None:
    prompt: Any = llm.chat_prompt([{"role": "user", "content": "Hi"}]) if chat else "Once upon a time"
    (whole,) = llm.generate(prompt, params, receipt=True)
    index = data.draw(st.integers(0, params.n - 1))
    choice = whole.outputs[index]
    num = data.draw(st.integers(0, len(choice.token_ids)))
    *before, last = llm.resume(prompt, choice.token_ids[:num], params, choice=index, receipt=True)
    assert last.receipt is not None and not any(chunk.receipt for chunk in before)
    assert llm.verify(last.receipt).kind == "identical"
    if params.n == 1:  # a receipt states the n that it was asked with
        assert last.receipt == choice.receipt
    (last,) = list(llm.resume(prompt, choice.token_ids, params, choice=index, receipt="digests"))
    assert isinstance(last.receipt.output.token_ids, str)
    assert llm.verify(last.receipt, prompt).kind == "identical"


def test_a_branch_has_no_receipt(llm: LLM) -> None:
    params = SamplingParams(seed=3, max_tokens=12, temperature=1.2, ignore_eos=True)
    ids = llm.generate("Once", params)[0].outputs[0].token_ids
    with pytest.raises(RequestError, match="drew whole"):
        llm.resume("Once", (*ids[:4], ids[4] ^ 1), params, receipt=True)
    with pytest.raises(RequestError, match="receipt='yes'"):
        llm.resume("Once", ids[:4], params, receipt="yes")  # type: ignore[arg-type]
    stream = llm.resume("Once", ids[:4], params, receipt=True)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert llm.engine.stats().num_running == llm.engine.stats().num_waiting == 0


def test_a_branch_takes_another_token(llm: LLM) -> None:
    params = SamplingParams(seed=3, max_tokens=12, temperature=1.2, ignore_eos=True)
    (whole,) = llm.generate("Once", params)
    ids = whole.outputs[0].token_ids
    branch = gathered(list(llm.resume("Once", (*ids[:4], ids[4] ^ 1), params)))
    assert len(branch.token_ids) == 7 and branch.token_ids != ids[5:]


def test_what_cannot_be_resumed_is_refused(llm: LLM) -> None:
    params = SamplingParams(seed=3, max_tokens=5, ignore_eos=True)
    ids = llm.generate("Once", params)[0].outputs[0].token_ids
    with pytest.raises(RequestError, match="more than max_tokens=5"):
        llm.resume("Once", (*ids, 65), params)
    stopped = replace(params, stop_token_ids=(ids[1],))
    with pytest.raises(RequestError, match="the answer ends after 2 of its 3 tokens"):
        list(llm.resume("Once", ids[:3], stopped))
    with pytest.raises(RequestError, match="without a seed"):
        llm.resume("Once", ids[:3], replace(params, seed=None))
    with pytest.raises(RequestError, match="no token id"):
        llm.resume("Once", (10_000,), params)
    with pytest.raises(RequestError, match="choice=64"):
        llm.resume("Once", ids[:1], params, choice=64)
    with pytest.raises(RequestError, match="n or prompt_logprobs"):
        llm.resume("Once", ids[:1], replace(params, prompt_logprobs=1))
    form = replace(params, structured_outputs={"regex": "[a-f]+"})  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="structured_outputs"):
        list(llm.resume("Once", llm.tokenizer.encode("z"), form))
    assert llm.engine.stats().num_running == llm.engine.stats().num_waiting == 0


def test_it_is_preempted_like_any_other(tmp_path: Any) -> None:
    params = SamplingParams(seed=3, max_tokens=40, temperature=1.2, ignore_eos=True)
    with LLM(write_model(tmp_path, chat_template=CHATML), num_blocks=6, max_model_len=64) as llm:
        prompts = ["Once upon a time", "The quick brown fox"]
        whole = [output.outputs[0] for output in llm.generate(prompts, params)]
        streams = [llm.resume(p, w.token_ids[:9], params) for p, w in zip(prompts, whole, strict=True)]
        parts = [[chunk for chunk in part if chunk] for part in zip(*zip_longest(*streams), strict=True)]  # in turns
        assert [gathered(part).token_ids for part in parts] == [choice.token_ids[9:] for choice in whole]
        assert llm.engine.stats().num_preemptions > 0
