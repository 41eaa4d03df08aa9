"""The engine on the fake model: what comes out of requests, however they are batched, cut and preempted."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from karat.engine.engine import Engine
from karat.errors import CapacityError, NumericsError, RequestError
from karat.request import Request, RequestOutput
from karat.text import Tokenizer
from tests.engine.fakes import BYTES, END, OTHER_END, drive, make_engine, piece_tokenizer, request, run, says

SAMPLED: dict[str, Any] = {"temperature": 1.0, "max_tokens": 12, "logprobs": 2}


def alone(item: Request) -> RequestOutput:
    """The output of a request that has an engine to itself, and a step for each prompt."""
    engine, _ = make_engine(max_num_batched_tokens=64)
    return run(engine, item)[item.request_id]


def some_requests() -> list[Request]:
    rng = np.random.default_rng(3)
    prompts = [bytes(rng.integers(0, 256, n).tolist()) for n in (1, 2, 4, 5, 9, 17, 30, 3)]
    extras: list[dict[str, Any]] = [
        {}, {"n": 3}, {"temperature": 0}, {"repetition_penalty": 1.5, "top_k": 5}, {"prompt_logprobs": 1},
        {"top_p": 0.5}, {"prompt_logprobs": 0, "n": 2}, {"frequency_penalty": 1.0, "presence_penalty": 0.5},
    ]  # fmt: skip
    return [
        request(str(i), prompt, seed=i, **(SAMPLED | extra))
        for i, (prompt, extra) in enumerate(zip(prompts, extras, strict=True))
    ]


# Batch composition, chunks and preemption


@pytest.mark.parametrize(
    ("sizes", "preempts"),
    [
        ({}, False),
        ({"max_num_seqs": 1, "max_num_batched_tokens": 1}, False),
        ({"max_num_seqs": 2, "max_num_batched_tokens": 3}, False),
        ({"max_num_batched_tokens": 8}, False),
        ({"block_size": 1, "num_blocks": 256}, False),
        ({"block_size": 64, "num_blocks": 5}, False),
        ({"block_size": 1}, True),
        ({"num_blocks": 16}, True),
        ({"num_blocks": 11, "max_num_batched_tokens": 9}, True),
    ],
    ids=str,
)
def test_alone_together_chunked_and_preempted_are_the_same(sizes: dict[str, int], preempts: bool) -> None:
    """Tokens, text, log-probabilities, prompt log-probabilities and finish reasons, exactly."""
    requests = some_requests()
    engine, _ = make_engine(**sizes)
    together = run(engine, *requests)
    assert together == {item.request_id: alone(item) for item in requests}
    assert (engine.scheduler.num_preemptions > 0) == preempts


@given(st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_requests_that_come_and_go_do_not_disturb_each_other(rng: Any) -> None:
    requests = some_requests()
    rng.shuffle(requests)
    engine, _ = make_engine(num_blocks=rng.choice([11, 20, 64]), max_num_batched_tokens=rng.choice([8, 13, 32]))
    outputs: dict[str, RequestOutput] = {}
    aborted: set[str] = set()
    waiting = list(requests)
    while waiting or engine.has_work:
        if waiting and rng.random() < 0.4:
            engine.add_request(waiting.pop())
        if rng.random() < 0.05 and engine._requests:
            victim = rng.choice(sorted(engine._requests))
            update = engine.abort(victim)
            assert update is not None and update.output is not None
            outputs[victim] = update.output
            aborted.add(victim)
        for update in engine.step():
            if update.output:
                assert update.request_id not in outputs, "ended twice"
                outputs[update.request_id] = update.output
        engine.scheduler.check()
    assert engine.scheduler.blocks.num_free == engine.config.num_blocks
    assert set(outputs) == {item.request_id for item in requests}
    for item in requests:
        whole = alone(item)
        got = outputs[item.request_id]
        assert got.finished
        if item.request_id not in aborted:
            assert got == whole
        for part, full in zip(got.outputs, whole.outputs, strict=True):
            assert full.token_ids[: len(part.token_ids)] == part.token_ids
            assert full.text.startswith(part.text.rstrip("\ufffd"))
            assert part.finish_reason == ("abort" if part != full else full.finish_reason)


def test_every_token_goes_through_the_model_once() -> None:
    """Incremental decode: after the prompt, one token a step, at rising positions."""
    engine, model = make_engine()
    run(engine, request("a", b"hello", **SAMPLED))
    assert [batch.positions.tolist() for batch in model.batches] == [[0, 1, 2, 3, 4], *([p] for p in range(5, 16))]


# How choices end


def text_of(output: RequestOutput) -> tuple[str, str | None, object]:
    (choice,) = output.outputs
    return choice.text, choice.finish_reason, choice.stop_reason


def say(text: bytes | list[int], tokenizer: Tokenizer = BYTES, **params: Any) -> RequestOutput:
    """What a greedy request gets from a model that says `text`."""
    engine, _ = make_engine(says(text, 2, tokenizer.vocab_size), tokenizer)
    return run(engine, request("a", [0, 1], **({"temperature": 0} | params)))["a"]


def test_length() -> None:
    output = say(b"abcdef", max_tokens=3)
    assert text_of(output) == ("abc", "length", None)
    assert output.outputs[0].token_ids == tuple(b"abc")


def test_an_end_token_ends_and_is_no_text() -> None:
    output = say(b"abc")
    assert text_of(output) == ("abc", "stop", END)
    assert output.outputs[0].token_ids == (*b"abc", END)


@pytest.mark.parametrize("end", [END, OTHER_END])
def test_every_end_token_ends(end: int) -> None:
    output = say([97, end, 98], end=(END, OTHER_END))
    assert text_of(output) == ("a", "stop", end)


def test_a_special_token_that_is_no_end_token_goes_on() -> None:
    assert text_of(say([97, OTHER_END, 98])) == ("ab", "stop", END)
    assert text_of(say([97, OTHER_END, 98], skip_special_tokens=False)) == ("a<257>b", "stop", END)


def test_ignore_eos_ends_at_the_end_of_the_context() -> None:
    output = say([97, END, 98, END], ignore_eos=True)
    assert text_of(output) == ("ab", "length", None)
    assert len(output.outputs[0].token_ids) == 62, "64 of context, 2 of prompt"


def test_stop_token_ids_end_even_if_eos_is_ignored() -> None:
    params = {"ignore_eos": True, "stop_token_ids": [99]}
    assert text_of(say([97, END, 98, 99, 97], **params)) == ("ab", "stop", 99)
    assert text_of(say([97, END, 98, 99, 97], include_stop_str_in_output=True, **params)) == ("abc", "stop", 99)


def test_max_tokens_and_end_token_at_once_is_a_stop() -> None:
    assert text_of(say(b"ab", max_tokens=3)) == ("ab", "stop", END)
    assert text_of(say(b"ab", max_tokens=2)) == ("ab", "length", None)


def test_min_tokens_hold_back_end_and_stop_tokens() -> None:
    def logits_of(context: tuple[int, ...]) -> np.ndarray:
        logits = np.zeros(258, np.float32)
        logits[[END, 99, 120]] = 50, 40, 30  # the end, then a stop token, then x
        return logits

    engine, _ = make_engine(logits_of)
    params = {"temperature": 0, "min_tokens": 3, "stop_token_ids": [99]}
    outputs = run(engine, request("a", b"..", **params), request("b", b"..", ignore_eos=True, max_tokens=5, **params))
    assert outputs["a"].outputs[0].token_ids == (120, 120, 120, END)
    assert outputs["b"].outputs[0].token_ids == (END,) * 5, "not held back where it does not end"


WORDS = piece_tokenizer([b"Once", b" upon", b" a", b" time", b"\n", b"\nUser", b":", b" The", b" END", b".", b" s\xc3",
                         b"\xa9", b"\xe2\x98", b"\x83", b" aa", b"ab"])  # fmt: skip
WORDS_END = 16


def say_words(*token_ids: int, **params: Any) -> RequestOutput:
    return say([*token_ids, WORDS_END, WORDS_END], WORDS, end=(WORDS_END,), **params)


@pytest.mark.parametrize(
    ("stop", "token_ids", "text", "num_tokens"),
    [
        ("\nUser:", (0, 4, 5, 6, 7), "Once\n", 4),  # over two tokens, after a false start
        ("\nUser:", (0, 5, 1), "Once\nUser upon", None),  # never completed
        ("upon a", (0, 1, 2, 3), "Once ", 3),  # from the middle of one token on
        ("e u", (0, 1, 2), "Onc", 2),
        ("im", (0, 1, 2, 3, 7), "Once upon a t", 4),  # within a token, whose rest is dropped
        ("Once", (0, 1), "", 1),
        (" The END.", (0, 7, 8, 9), "Once", 4),
        ("aab", (14, 14, 15, 0), " aa a", 3),  # overlapping beginnings
        ("sé", (10, 11, 0), " ", 2),  # a character over two tokens
        ("☃", (0, 12, 13, 1), "Once", 3),
    ],
)
def test_stop_strings_over_token_borders(
    stop: str, token_ids: tuple[int, ...], text: str, num_tokens: int | None
) -> None:
    output = say_words(*token_ids, stop=stop)
    if num_tokens is None:
        assert text_of(output) == (text, "stop", WORDS_END)
    else:
        assert text_of(output) == (text, "stop", stop)
        assert output.outputs[0].token_ids == token_ids[:num_tokens]
        included = say_words(*token_ids, stop=stop, include_stop_str_in_output=True)
        assert text_of(included) == (text + stop, "stop", stop)


def test_the_first_of_several_stop_strings() -> None:
    assert text_of(say_words(0, 1, 2, 3, stop=("time", " a", "zzz"))) == ("Once upon", "stop", " a")


def test_a_stop_string_completed_by_the_last_token_allowed_is_a_stop() -> None:
    assert text_of(say_words(0, 1, 2, stop="upon", max_tokens=2)) == ("Once ", "stop", "upon")


def test_a_character_that_the_prompt_began_is_completed() -> None:
    engine, _ = make_engine(says([13, 0], 2, WORDS.vocab_size), WORDS)
    assert text_of(run(engine, request("a", [0, 12], temperature=0, max_tokens=2))["a"])[0] == "☃Once"


def test_text_held_back_comes_out_at_the_end() -> None:
    assert text_of(say_words(0, 5, stop="\nUser:")) == ("Once\nUser", "stop", WORDS_END)
    assert text_of(say_words(0, 5, 7, stop="\nUser:", max_tokens=2)) == ("Once\nUser", "length", None)


def test_a_character_cut_short_shows_at_the_end() -> None:
    assert text_of(say_words(0, 12, max_tokens=2)) == ("Once\ufffd", "length", None)


def test_stop_strings_count_after_min_tokens() -> None:
    assert text_of(say_words(0, 1, 0, 1, stop="upon", min_tokens=2)) == ("Once uponOnce ", "stop", "upon")
    assert text_of(say_words(0, 1, 0, 1, stop="e upon", min_tokens=1)) == ("Once uponOnc", "stop", "e upon")


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_streamed_text_is_the_whole_text(data: st.DataObject) -> None:
    """Chunks joined are the output, nothing that went out is taken back, and text is cut exactly before the stop."""
    token_ids = data.draw(st.lists(st.integers(0, 15), max_size=12))
    stops = data.draw(st.lists(st.sampled_from(["a", "aab", "\n", "upon a", "é", "☃O", "e"]), max_size=2))
    max_tokens = data.draw(st.integers(1, 14))
    engine, _ = make_engine(says([*token_ids, WORDS_END], 2, WORDS.vocab_size), WORDS)
    params = {"temperature": 0, "stop": stops, "max_tokens": max_tokens, "logprobs": 0}
    engine.add_request(request("a", [0, 1], end=(WORDS_END,), **params))
    outputs, chunks = drive(engine)
    (choice,) = outputs["a"].outputs
    assert "".join(chunk.text for chunk in chunks["a"]) == choice.text
    assert sum((chunk.token_ids for chunk in chunks["a"]), ()) == choice.token_ids
    assert sum((chunk.logprobs or () for chunk in chunks["a"]), ()) == choice.logprobs
    assert [chunk.finish_reason for chunk in chunks["a"]][:-1] == [None] * (len(chunks["a"]) - 1)
    assert (chunks["a"][-1].finish_reason, chunks["a"][-1].stop_reason) == (choice.finish_reason, choice.stop_reason)
    visible = [i for i in choice.token_ids if i != WORDS_END]
    said = b"".join(WORDS.token_bytes(i) for i in visible).decode("utf-8", "replace")
    found = [said.find(stop) for stop in stops if stop in said]
    if isinstance(choice.stop_reason, str):
        assert choice.text + choice.stop_reason in said and choice.text == said[: said.find(choice.stop_reason)]
    else:
        assert choice.text == said and not found


def test_log_probabilities_name_tokens_as_they_read() -> None:
    output = say_words(0, 12, logprobs=1, max_tokens=2)
    (first, second) = output.outputs[0].logprobs or ()
    assert first[0].decoded_token == "Once" and second[12].decoded_token == "\ufffd"


# Choices and seeds


def test_choices_share_the_prompt_and_nothing_else() -> None:
    engine, _ = make_engine()
    output = run(engine, request("a", b"abc", n=4, seed=9, **SAMPLED))["a"]
    assert [choice.index for choice in output.outputs] == [0, 1, 2, 3]
    assert len({choice.token_ids for choice in output.outputs}) == 4
    engine, _ = make_engine()
    fewer = run(engine, request("b", b"abc", n=2, seed=9, **SAMPLED))["b"]
    assert fewer.outputs == output.outputs[:2], "a choice does not depend on how many there are"


def test_greedy_choices_are_the_same() -> None:
    engine, _ = make_engine()
    output = run(engine, request("a", b"abc", n=3, temperature=0, max_tokens=5))["a"]
    assert len({choice.token_ids for choice in output.outputs}) == 1


def test_choices_end_one_by_one() -> None:
    engine, _ = make_engine()
    engine.add_request(request("a", b"abc", n=8, seed=1, stop_token_ids=list(range(128)), max_tokens=6))
    outputs, chunks = drive(engine)
    lengths = {choice.index: len(choice.token_ids) for choice in outputs["a"].outputs}
    assert len(set(lengths.values())) > 1
    for index, length in lengths.items():
        own = [chunk for chunk in chunks["a"] if chunk.index == index]
        assert len(own) == length and [chunk.finish_reason is None for chunk in own] == [True] * (length - 1) + [False]


# Prompt log-probabilities and logits


def test_prompt_logprobs_are_those_of_the_models_logits() -> None:
    from karat.engine.logprobs import token_logprobs

    engine, model = make_engine(max_num_batched_tokens=8)
    prompt = bytes(range(40, 63))
    output = run(engine, request("a", prompt, prompt_logprobs=3, max_tokens=1))["a"]
    assert output.prompt_logprobs is not None and output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(prompt)
    for i in range(1, len(prompt)):
        row = model.logits_of(tuple(prompt[:i]))
        want = token_logprobs(row, prompt[i], 3, lambda token_id: BYTES.decode_continuation([token_id]))
        assert output.prompt_logprobs[i] == want


@pytest.mark.parametrize("sizes", [{}, {"max_num_batched_tokens": 8}, {"num_blocks": 16}], ids=str)
def test_prompt_logprobs_come_once_in_the_first_chunk_of_choice_0(sizes: dict[str, int]) -> None:
    engine, _ = make_engine(**sizes)
    for item in some_requests():
        engine.add_request(item)
    engine.add_request(request("n", bytes(20), n=3, prompt_logprobs=2, seed=1, **SAMPLED))
    outputs, chunks = drive(engine)
    assert sum(output.prompt_logprobs is not None for output in outputs.values()) == 3
    for name, output in outputs.items():
        first, *others = [chunk for chunk in chunks[name] if chunk.index == 0]
        assert first.prompt_logprobs == output.prompt_logprobs
        others += [chunk for chunk in chunks[name] if chunk.index != 0]
        assert all(chunk.prompt_logprobs is None for chunk in others)


def test_prompt_logits_are_made_once_for_all_choices() -> None:
    engine, model = make_engine()
    run(engine, request("a", bytes(10), prompt_logprobs=1, n=3, max_tokens=2))
    assert sum(len(batch.logit_rows) for batch in model.batches) == 9 + 3 * 2


def test_prompt_logits_are_made_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("karat.engine.engine.PROMPT_LOGITS_BYTES", 5 * 258 * 4)
    engine, model = make_engine()
    whole = run(engine, request("a", bytes(30), prompt_logprobs=1, max_tokens=2))["a"]
    assert max(len(batch.logit_rows) for batch in model.batches) == 5
    monkeypatch.undo()
    engine, model = make_engine()
    assert run(engine, request("a", bytes(30), prompt_logprobs=1, max_tokens=2))["a"] == whole
    assert max(len(batch.logit_rows) for batch in model.batches) == 30


@pytest.mark.parametrize("budget", [8, 64])
def test_logits_of_every_position_beside_other_requests(budget: int) -> None:
    engine, model = make_engine(num_blocks=16, max_num_batched_tokens=budget)
    engine.add_request(request("a", b"abcdefgh", max_tokens=40, ignore_eos=True))
    for _ in range(3):
        engine.step()
    text = tuple(range(30))
    reader = engine.add_logits(text, np.empty((30, 258), np.float32))
    drive(engine)
    assert reader.done and reader.error is None
    for i in range(30):
        assert (reader.logits[i] == model.logits_of(text[: i + 1])).all()


def test_logits_given_up_leave_nothing() -> None:
    engine, _ = make_engine(max_num_batched_tokens=8)
    reader = engine.add_logits(tuple(range(30)), np.empty((30, 258), np.float32))
    engine.step()
    assert engine.scheduler.blocks.num_free < 64
    engine.abort_logits(reader)
    engine.abort_logits(reader)
    assert engine.scheduler.blocks.num_free == 64 and not engine.has_work


# Errors


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

    engine._run = overflow
    good = [request(str(i), bytes([97 + i] * 5), seed=i, **SAMPLED) for i in range(3)]
    outputs = run(engine, good[0], request("bad", b"ab\xff"), *good[1:])
    assert all(outputs[item.request_id] == alone(item) for item in good)
    assert outputs["bad"].outputs[0].error == "choice 0: K of layer 3 does not fit"


def test_logits_of_a_text_that_overflows() -> None:
    engine, _ = make_engine()

    def overflow(batch: Any) -> Any:
        raise NumericsError("K of layer 3 does not fit")

    engine._run = overflow
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

    engine._run = fail
    for _ in range(2):
        with pytest.raises(RuntimeError, match="a bug"):
            engine.step()
        engine.scheduler.check()
    engine._run = model
    outputs, _ = drive(engine)
    assert outputs["a"] == alone(item)


# What is refused


@pytest.mark.parametrize(
    ("prompt", "params", "error", "message"),
    [
        (b"", {}, RequestError, "the prompt has no tokens"),
        ([258], {}, RequestError, "the prompt: 258 is no token id; expected integers from 0 to 257"),
        ([-1], {}, RequestError, "-1 is no token id"),
        ([True], {}, RequestError, "True is no token id"),
        ([10**5000], {}, RequestError, "too long to print"),
        (b"a", {"stop_token_ids": [258]}, RequestError, "stop_token_ids: 258 is no token id"),
        (b"a", {"logit_bias": {300: 1}}, RequestError, "logit_bias: 300 is no token id"),
        (bytes(64), {}, CapacityError, "the prompt has 64 tokens, and the context of 64 must hold at least one more"),
        (bytes(70), {"max_tokens": 1}, CapacityError, "the prompt has 70 tokens, and the context of 64"),
        (bytes(60), {"max_tokens": 5}, CapacityError, "max_tokens=5 after a prompt of 60 tokens: .* 64 leaves 4"),
        (bytes(60), {"min_tokens": 5}, CapacityError, "min_tokens=5 after a prompt of 60 tokens"),
    ],
)
def test_refused_before_any_work(prompt: Any, params: Any, error: type[Exception], message: str) -> None:
    engine, _ = make_engine()
    with pytest.raises(error, match=message):
        engine.add_request(request("a", prompt, **params))
    assert not engine.has_work and engine.abort("a") is None


def test_a_prompt_that_fills_the_context_but_for_one_token() -> None:
    engine, _ = make_engine()
    (choice,) = run(engine, request("a", bytes(63), ignore_eos=True))["a"].outputs
    assert len(choice.token_ids) == 1 and choice.finish_reason == "length"


def test_within_the_context_but_larger_than_the_cache() -> None:
    engine, _ = make_engine(num_blocks=8)
    with pytest.raises(CapacityError, match=r"grow to 63 tokens.*holds 32 \(8 blocks of 4\)"):
        engine.add_request(request("a", bytes(40)))
    assert run(engine, request("a", bytes(20), max_tokens=13, ignore_eos=True))["a"].finished


def test_the_scheduler_knows_how_long_a_sequence_may_become() -> None:
    engine, _ = make_engine()
    engine.add_request(request("a", bytes(20), max_tokens=13))
    assert engine.scheduler._waiting[0].max_len == 32, "the last token never enters the cache"


def test_a_request_id_is_used_once_at_a_time() -> None:
    engine, _ = make_engine()
    engine.add_request(request("a", b"abc", max_tokens=2))
    with pytest.raises(RequestError, match="'a' is already running"):
        engine.add_request(request("a", b"abc"))
    drive(engine)
    assert run(engine, request("a", b"abc", max_tokens=2))["a"].finished


# Aborting


@pytest.mark.parametrize("num_steps", [0, 1, 3, 6])
def test_abort_frees_everything_at_once(num_steps: int) -> None:
    """While it waits, in the middle of the prompt, and while it writes."""
    engine, _ = make_engine(max_num_batched_tokens=8)
    other = request("b", b"xyz", seed=2, **SAMPLED)
    engine.add_request(request("a", bytes(20), n=3, ignore_eos=True))
    engine.add_request(other)
    for _ in range(num_steps):
        engine.step()
    update = engine.abort("a")
    assert update is not None and update.output is not None and update.output.finished
    assert [choice.finish_reason for choice in update.output.outputs] == ["abort"] * 3
    assert [chunk.finish_reason for chunk in update.chunks] == ["abort"] * 3
    engine.scheduler.check()
    assert engine.abort("a") is None
    outputs, _ = drive(engine)
    assert outputs["b"] == alone(other)


def test_abort_keeps_choices_that_ended_before() -> None:
    engine, _ = make_engine()
    engine.add_request(request("a", b"abc", n=8, seed=1, stop_token_ids=list(range(128)), max_tokens=30))
    for _ in range(2):
        engine.step()
    update = engine.abort("a")
    assert update is not None and update.output is not None
    assert {choice.finish_reason for choice in update.output.outputs} == {"stop", "abort"}


def test_an_engine_at_rest_does_nothing() -> None:
    engine: Engine
    engine, model = make_engine()
    assert engine.step() == [] and model.batches == []
