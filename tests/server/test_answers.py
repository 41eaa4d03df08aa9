"""Answers of the routes, asked over HTTP: what is asked for is done, and equals what LLM does.

Covers: karat.server.answering, karat.server.answers.subject, karat.server.answers.tally, karat.server.app,
karat.server.asking.asked, karat.server.asking.sampling, karat.server.asking.structures, karat.server.asking.variables,
karat.server.openai.answers, karat.server.openai.events, karat.server.openai.logprobs, karat.server.openai.protocols,
karat.server.protocol, karat.server.protocols, karat.server.responses, karat.server.sse.
"""

from typing import Any

import pytest

from karat import LLM, SamplingParams
from tests.server.conftest import Running


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM()


def test_a_chat_has_the_tokens_of_llm(server: Running, llm: LLM) -> None:
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "A story about a fox."}]
    params = SamplingParams(temperature=0.9, top_p=0.9, seed=7, max_tokens=24)
    (expected,) = llm.chat(messages, params)
    body = {"messages": messages, "temperature": 0.9, "top_p": 0.9, "seed": 7, "max_completion_tokens": 24}
    answer = server.ask("/v1/chat/completions", body | {"return_token_ids": True})
    assert answer.status == 200, answer.content
    made = answer.json
    assert made["choices"][0]["message"]["content"] == expected.outputs[0].text
    assert made["choices"][0]["token_ids"] == list(expected.outputs[0].token_ids)
    assert made["prompt_token_ids"] == list(expected.prompt_token_ids)
    assert made["karat"]["seed"] == 7 and answer.headers["karat-seed"] == "7"
    usage = made["usage"]
    assert usage["prompt_tokens"] == len(expected.prompt_token_ids) and usage["completion_tokens"] == 24
    assert usage["total_tokens"] == usage["prompt_tokens"] + 24
    streamed = server.ask("/v1/chat/completions", body | {"stream": True}).events
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in streamed) == expected.outputs[0].text
    assert streamed[-1]["choices"][0]["finish_reason"] == "length" and streamed[-1]["karat"]["seed"] == 7


def test_the_seed_of_an_answer_gives_it_again(server: Running) -> None:
    first = server.chat(max_tokens=16, temperature=1).json
    again = server.chat(max_tokens=16, temperature=1, seed=first["karat"]["seed"]).json
    assert again["choices"] == first["choices"]
    other = server.chat(max_tokens=16, temperature=1).json
    assert other["karat"] != first["karat"]


def test_a_prompt_that_came_before_is_found_in_the_cache(server: Running) -> None:
    prompt = list(range(300, 380))
    assert server.text(prompt=prompt, max_tokens=1).json["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    answer = server.text(prompt=prompt, max_tokens=1).json
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 64
    assert answer["timings"]["cache_n"] == 64 and answer["timings"]["prompt_n"] == 16
    salted = server.text(prompt=prompt, max_tokens=1, cache_salt="a").json
    assert salted["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_choices_and_prompts_are_numbered_through(server: Running) -> None:
    made = server.text(prompt=[[7], [5, 6]], n=2, max_tokens=3, temperature=1, seed=1).json
    assert [choice["index"] for choice in made["choices"]] == [0, 1, 2, 3]
    alone = server.text(prompt=[5, 6], n=2, max_tokens=3, temperature=1, seed=1).json
    assert [c["text"] for c in made["choices"][2:]] == [c["text"] for c in alone["choices"]]
    streamed = server.text(prompt=[[7], [5, 6]], n=2, max_tokens=3, temperature=1, seed=1, stream=True).events
    texts = [""] * 4
    for event in streamed:
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == [choice["text"] for choice in made["choices"]]


def test_an_echo_with_logprobs_is_that_of_llm(server: Running, llm: LLM) -> None:
    prompt = "One day, a café opened"
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=2, prompt_logprobs=2)
    (expected,) = llm.generate(prompt, params)
    assert expected.prompt_logprobs is not None and expected.outputs[0].logprobs is not None
    ids = [*expected.prompt_token_ids, *expected.outputs[0].token_ids]
    found = [*expected.prompt_logprobs, *expected.outputs[0].logprobs]
    logprobs = [None if at is None else at[i].logprob for at, i in zip(found, ids, strict=True)]
    body: dict[str, Any] = {"prompt": prompt, "temperature": 0, "logprobs": 2, "echo": True}
    (choice,) = server.text(**body, max_tokens=4).json["choices"]
    assert choice["text"] == prompt + expected.outputs[0].text
    assert choice["logprobs"]["token_logprobs"] == logprobs and "prompt_logprobs" not in choice
    for token, offset in zip(choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"], strict=True):
        assert choice["text"][offset:].startswith(token.rstrip("\ufffd"))
    # the prompt alone, as loglikelihoods want it
    (alone,) = server.text(**body, max_tokens=0).json["choices"]
    assert alone["text"] == prompt and alone["logprobs"]["token_logprobs"] == logprobs[: len(expected.prompt_token_ids)]
    # and as events
    events = server.text(**body, max_tokens=4, stream=True).events
    streamed = [lp for e in events for c in e["choices"] if c["logprobs"] for lp in c["logprobs"]["token_logprobs"]]
    assert streamed == logprobs
    assert "".join(c["text"] for e in events for c in e["choices"]) == choice["text"]


def test_logprobs_of_a_chat(server: Running) -> None:
    (choice,) = server.chat(max_tokens=3, logprobs=True, top_logprobs=2, temperature=0).json["choices"]
    content = choice["logprobs"]["content"]
    assert choice["logprobs"]["refusal"] is None and len(content) == 3
    assert b"".join(bytes(token["bytes"]) for token in content).decode().strip() == choice["message"]["content"].strip()
    for token in content:
        assert len(token["top_logprobs"]) == 2 and token["top_logprobs"][0]["token"] == token["token"]
    (named,) = server.chat(max_tokens=1, logprobs=True, return_tokens_as_token_ids=True).json["choices"]
    assert named["logprobs"]["content"][0]["token"].startswith("token_id:")
    assert server.chat(max_tokens=1, prompt_logprobs=1).json["prompt_logprobs"][0] is None


def test_control_tokens_in_messages_are_text_and_in_prompts_are_tokens(server: Running, llm: LLM) -> None:
    special = next(iter(llm.tokenizer.special_ids))
    spelled = llm.tokenizer.id_to_token(special)
    hostile = [{"role": "user", "content": spelled * 3}]
    rendered = server.ask("/render", {"messages": hostile}).json
    plain = server.ask("/render", {"messages": [{"role": "user", "content": "x"}]}).json
    assert rendered["tokens"].count(special) == plain["tokens"].count(special)
    assert server.ask("/tokenize", {"prompt": spelled, "add_special_tokens": False}).json["tokens"] == [special]
    made = server.ask("/v1/chat/completions", {"messages": hostile, "max_tokens": 1, "return_token_ids": True}).json
    assert made["prompt_token_ids"] == rendered["tokens"]


def test_tokens_there_and_back(server: Running, llm: LLM) -> None:
    made = server.ask("/tokenize", {"prompt": "A café.", "return_token_strs": True}).json
    assert made["tokens"] == llm.tokenizer.encode("A café.") and made["count"] == len(made["tokens"])
    assert len(made["token_strs"]) == made["count"] and made["max_model_len"] == llm.max_model_len
    assert server.ask("/detokenize", {"tokens": made["tokens"]}).json == {"prompt": "A café.", "content": "A café."}
    shown = server.ask("/detokenize", {"tokens": [1, *made["tokens"]], "skip_special_tokens": False}).json["prompt"]
    assert shown.endswith("A café.") and len(shown) > len("A café.")
    assert server.ask("/detokenize", {"tokens": [10**9]}).status == 400
    assert server.ask("/tokenize", {"content": "A café."}).json["tokens"] == made["tokens"], "as llama.cpp has it"
    chat = {"messages": [{"role": "user", "content": "A café."}], "add_generation_prompt": False}
    assert server.ask("/tokenize", chat).json["tokens"] == server.ask("/render", chat).json["tokens"]
    for wrong in ({}, {**chat, "prompt": "a"}):
        assert server.ask("/tokenize", wrong).json["error"]["message"].startswith("expected one of prompt and messages")


def test_lengths_are_judged_before_any_work(server: Running, llm: LLM) -> None:
    room = llm.max_model_len
    for given in ({"prompt": [5] * room}, {"prompt": [5] * 10, "max_tokens": room}, {"prompt": "a " * 10 * room}):
        answer = server.text(**given)
        assert answer.status == 400 and answer.json["error"]["code"] == "context_length_exceeded", answer.content
        assert str(room) in answer.json["error"]["message"]


def test_stops_and_biases_are_obeyed(server: Running, llm: LLM) -> None:
    text = server.text(temperature=0, max_tokens=30).json["choices"][0]["text"]
    word = text.split()[3]
    (choice,) = server.text(temperature=0, max_tokens=30, stop=word).json["choices"]
    assert choice["text"] == text[: text.index(word)] and choice["finish_reason"] == "stop"
    assert choice["stop_reason"] == word
    for bias in ({"574": 100}, [[3, -1], [574, 100]]):
        answer = server.text(max_tokens=2, logit_bias=bias, return_token_ids=True, temperature=0)
        assert answer.json["choices"][0]["token_ids"] == [574, 574]


def test_progress_usage_and_timings_of_a_stream(server: Running) -> None:
    events = server.text(
        prompt=list(range(400, 460)),
        max_tokens=4,
        stream=True,
        return_progress=True,
        timings_per_token=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    ).events
    told = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    assert told[0]["processed"] == 0 and told[-1]["processed"] == told[-1]["total"] == 60
    assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] == 4
    with_text = [event for event in events if event["choices"]]
    assert [event["usage"]["completion_tokens"] for event in with_text] == [1, 2, 3, 4]
    assert all("timings" in event for event in with_text)


def test_a_length_that_nothing_could_reach_is_refused(server: Running, llm: LLM) -> None:
    end = next(iter(llm.end_token_ids))
    for given in ({"allowed_token_ids": [end]}, {"allowed_token_ids": [5, end], "stop_token_ids": [5]}):
        answer = server.text(max_tokens=3, min_tokens=1, **given)
        assert answer.status == 400 and answer.json["error"]["param"] == "min_tokens"
        assert server.text(max_tokens=3, **given).status == 200
    assert server.text(max_tokens=3, min_tokens=1, ignore_eos=True, allowed_token_ids=[end]).status == 200


def test_names_of_the_model(server: Running) -> None:
    (listed,) = server.ask("/v1/models").json["data"]
    assert listed["id"] == "karat-embedded"
    assert server.ask("/v1/models/karat-embedded").json == listed
    assert server.chat(model="karat-embedded", max_tokens=1).json["model"] == "karat-embedded"
    for name in ("", "karat-embedded.gguf"):  # as LM Studio's clients and llama.cpp's name it
        assert server.chat(model=name, max_tokens=1).json["model"] == "karat-embedded"
    missing = server.chat(model="gpt-4")
    assert missing.status == 404 and missing.json["error"]["code"] == "model_not_found"
    assert server.ask("/v1/models/gpt-4").status == 404


def test_small_routes(server: Running) -> None:
    assert server.ask("/health").json == {"status": "ok"}
    assert server.ask("/ready").json == {"status": "ready"}
    assert server.ask("/version").json["version"]
    assert server.ask("/openapi.json").json["openapi"] == "3.1.0"
    assert server.gauge("karat_kv_blocks") > 0
    for path, status in (("/nothing", 404), ("/v1/chat/completions", 405), ("/v1/models/nothing", 404)):
        answer = server.ask(path)
        assert answer.status == status and answer.json["error"]["message"]


def test_fields_without_effect_are_named(server: Running) -> None:
    answer = server.chat(max_tokens=1, user="PLACEHOLDER", store=False, service_tier="auto")
    assert answer.status == 200 and answer.headers["karat-without-effect"] == "user, store, service_tier"
    assert "karat-without-effect" not in server.chat(max_tokens=1).headers


def test_no_prompt_is_in_the_log(server: Running) -> None:
    secret = "xylophone-7319"
    server.text(prompt=secret, max_tokens=1)
    server.chat(messages=[{"role": "user", "content": secret, "mood": secret}])
    server.ask(f"/health?{secret}")
    server.until(lambda: "/health" in server.said[-1])
    assert secret not in "".join(server.said)
