"""What cannot change an answer is taken and named, and null, neutral and foreign spellings mean what they mean.

Covers: karat.server.answers.preparing, karat.server.asking.tools, karat.server.asking.conversation.
"""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from karat import LLM, SamplingParams
from karat.server.bodies import judge
from karat.server.errors import ApiError
from karat.server.fields import CHAT, MESSAGES, RESPONSES, TEXT, fields_of
from tests.server.conftest import Running
from tests.server.tool_cases import BODIES, NAMES

USER = {"role": "user", "content": "Hi"}
PLAIN: dict[str, Any] = {
    CHAT: {"messages": [USER], "max_tokens": 2, "seed": 1},
    TEXT: {"prompt": "Hi", "max_tokens": 2, "seed": 1},
    RESPONSES: {"input": "Hi", "max_output_tokens": 2, "seed": 1},
    MESSAGES: {"messages": [USER], "max_tokens": 2, "seed": 1},
}
EVERY = tuple(PLAIN)


def text_of(body: Any) -> str:
    if "choices" in body:
        choice = body["choices"][0]
        return str(choice["message"]["content"] if "message" in choice else choice["text"])
    return str((body["content"] if "content" in body else body["output"][0]["content"])[0]["text"])


def asked(server: Running, route: str, **given: Any) -> tuple[str, list[str]]:
    """The text of the answer, and what is named as without effect."""
    answer = server.ask(route, PLAIN[route] | given)
    assert answer.status == 200, (route, given, answer.content)
    return text_of(answer.json), [name for name in answer.headers.get("karat-without-effect", "").split(", ") if name]


@pytest.mark.parametrize("route", EVERY)
@pytest.mark.parametrize(
    "given",
    [
        {"top_p": 0, "temperature": 0},
        {"top_p": 0.0, "temperature": 3},
        {"top_k": 1.0, "temperature": 3},
        {"no_such_field": None},
        {"temperature": 0, "repeat_penalty": 1.0},
        {"temperature": 0, "repeat_penalty": 1, "repetition_penalty": 1.0},
    ],
    ids=str,
)
def test_what_means_the_greedy_answer_gives_it(server: Running, route: str, given: dict[str, Any]) -> None:
    assert asked(server, route, **given) == asked(server, route, temperature=0)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(EVERY), st.data())
def test_null_is_no_field(server: Running, route: str, data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(fields_of(route))), unique=True))
    nulls = {name: None for name in [*names, "x"] if name not in PLAIN[route] | {"temperature": 0}}
    assert asked(server, route, **nulls, temperature=0) == asked(server, route, temperature=0)


@pytest.mark.parametrize(
    ("route", "name"),
    [(CHAT, "max_tokens"), (CHAT, "max_completion_tokens"), (TEXT, "max_tokens"), (RESPONSES, "max_output_tokens")],
)
def test_a_length_of_minus_one_is_none_and_of_zero_is_refused(server: Running, route: str, name: str) -> None:
    body = {key: value for key, value in PLAIN[route].items() if "max" not in key} | {"temperature": 0, "stop": ["."]}
    assert text_of(server.ask(route, body | {name: -1}).json) == text_of(server.ask(route, body).json)
    answer = server.ask(route, body | {name: 0})
    assert answer.status == 400 and answer.json["error"]["param"] == name


@pytest.mark.parametrize(
    ("route", "alias", "name"),
    [
        (CHAT, "n_predict", "max_tokens"),
        (TEXT, "max_new_tokens", "max_tokens"),
        (RESPONSES, "max_tokens", "max_output_tokens"),
        (MESSAGES, "max_tokens_to_sample", "max_tokens"),
        (MESSAGES, "stop", "stop_sequences"),
        (CHAT, "repeat_penalty", "repetition_penalty"),
    ],
)
def test_another_spelling_is_the_field_and_contradictions_are_refused(
    server: Running, route: str, alias: str, name: str
) -> None:
    value: Any = {"stop": ["e"], "repeat_penalty": 3}.get(alias, 3)
    body = {key: item for key, item in PLAIN[route].items() if key != name} | {"temperature": 0}
    one, other = server.ask(route, body | {alias: value}), server.ask(route, body | {name: value})
    assert one.status == 200 and text_of(one.json) == text_of(other.json)
    assert server.ask(route, body | {alias: value, name: value}).status == 200
    different = ["x"] if alias == "stop" else 2
    answer = server.ask(route, body | {alias: value, name: different})
    assert answer.status == 400 and alias in answer.json["error"]["message"]


NUMBERS: Any = st.sampled_from([0, 1, 2, 4, -1, 0.5, 1.5, None]) | st.integers(1, 9).map(float)
WANTED: dict[str, Any] = {
    "logit_bias": st.sampled_from([{"5": 1}, {"5": 2.0, "6": -1}, [[5, 1], [6.0, 2]], [], {}, None]),
    "bad_words_ids": st.sampled_from([[[1, 2.0]], [], None]),
    "bad_words": st.sampled_from([["a"], [], None]),
    "dry_sequence_breakers": st.sampled_from([["a"], [], None]),
    "structured_outputs": st.sampled_from([{"regex": "a", "whitespace_pattern": None}, {"json": {}}, None]),
    "stop": st.sampled_from(["a", ["a", "b"], [], None]),
    **dict.fromkeys(("stop_token_ids", "allowed_token_ids"), st.sampled_from([[5, 6.0], [7], None])),
    **dict.fromkeys(
        ("explain", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens"),
        st.sampled_from([True, False, None]),
    ),
}
SAMPLED = sorted({(route, field.name) for route in EVERY for field in fields_of(route).values() if field.samples})


@given(st.sampled_from(SAMPLED), st.data())
def test_what_requests_may_say_sampling_params_take(place: tuple[str, str], data: st.DataObject) -> None:
    """And it means the same: in the spelling of a request, and as the server reads it."""
    route, name = place
    value = data.draw(WANTED.get(name, NUMBERS))
    try:
        values = judge({name: value}, {name: fields_of(route)[name]}).values
    except ApiError:
        return
    if value == 0 and name == "max_tokens":
        return  # of an echo alone
    assert SamplingParams(**{name: value}) == SamplingParams(**values)


def test_a_seed_of_minus_one_is_drawn(server: Running) -> None:
    seeds = {server.ask(route, PLAIN[route] | {"seed": -1}).headers["karat-seed"] for route in EVERY for _ in range(2)}
    assert len(seeds) == 2 * len(EVERY) and all(int(seed) >= 0 for seed in seeds)
    assert SamplingParams(seed=-1).seed is None


def test_top_p_of_zero_is_the_likeliest_token_in_python() -> None:
    llm = LLM()
    greedy, narrow = SamplingParams(temperature=0, max_tokens=8), SamplingParams(temperature=2, top_p=0, max_tokens=8)
    (one,), (other,) = llm.generate(["Once"], greedy), llm.generate(["Once"], narrow)
    assert one.outputs[0].token_ids == other.outputs[0].token_ids


EFFORTS: list[tuple[str, dict[str, Any], list[str]]] = [
    (CHAT, {"reasoning_effort": "low"}, ["reasoning_effort"]),
    (CHAT, {"reasoning": {"effort": "high"}}, ["reasoning.effort"]),
    (CHAT, {"reasoning": {"enabled": True, "max_tokens": 9}}, ["reasoning.max_tokens", "reasoning.enabled"]),
    (CHAT, {"thinking": {"type": "enabled"}}, ["thinking"]),
    (CHAT, {"enable_thinking": True}, ["enable_thinking"]),
    (CHAT, {"enable_thinking": False, "thinking": {"type": "disabled"}, "reasoning_effort": "none"}, []),
    (CHAT, {"verbosity": "low"}, ["verbosity"]),
    (RESPONSES, {"reasoning": {"effort": "xhigh"}}, ["reasoning.effort"]),
    (RESPONSES, {"text": {"verbosity": "low"}}, ["text.verbosity"]),
    (RESPONSES, {"enable_thinking": True}, ["enable_thinking"]),
    (MESSAGES, {"output_config": {"effort": "max"}}, ["output_config.effort"]),
    (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, ["thinking.budget_tokens", "thinking"]),
    (CHAT, {"prompt_cache_retention": "1h"}, ["prompt_cache_retention"]),
]


@pytest.mark.parametrize(("route", "given", "names"), EFFORTS, ids=str)
def test_what_the_model_cannot_follow_is_named(
    server: Running, route: str, given: dict[str, Any], names: list[str]
) -> None:
    text, named = asked(server, route, temperature=0, **given)
    assert (text, sorted(named)) == (asked(server, route, temperature=0)[0], sorted(names))


@pytest.mark.parametrize("route", [CHAT, RESPONSES, MESSAGES])
def test_enable_thinking_is_followed_where_the_template_has_it(scripted: Running, route: str) -> None:
    on = scripted.ask(route, BODIES[route]("Hm.</think>\nYes.") | {"enable_thinking": True})
    off = scripted.ask(route, BODIES[route]("Hm.</think>\nYes.") | {"enable_thinking": False})
    assert "</think>" not in on.content.decode() and "</think>" in off.content.decode()
    assert "karat-without-effect" not in on.headers and "karat-without-effect" not in off.headers


NULLS: list[tuple[str, dict[str, Any]]] = [
    *((route, {"structured_outputs": {"regex": "a", "whitespace_pattern": None}}) for route in EVERY),
    *((route, {"structured_outputs": form}) for route in EVERY for form in ({}, {"json": None})),
    *((route, {"stop": stop}) for route in (CHAT, TEXT, RESPONSES) for stop in ("", [""])),
    (MESSAGES, {"stop_sequences": ["", ""]}),
    *((route, {"thinking": thinking}) for route in (CHAT, MESSAGES) for thinking in ({}, {"type": None})),
    *((MESSAGES, {"system": system}) for system in ("", [], [{"type": "text", "text": None}])),
    (MESSAGES, {"tool_choice": {"type": "none", "name": None, "disable_parallel_tool_use": None}}),
    *((route, {"tool_choice": {"type": kind}}) for route in (CHAT, RESPONSES) for kind in ("auto", "none")),
    (RESPONSES, {"input": [{"type": None, "role": "user", "content": "Hi", "status": None}]}),
]
LAST = {
    CHAT: {"type": "function", "function": {"name": "clock"}, "custom": None},
    RESPONSES: {"type": "function", "name": "clock", "namespace": None, "x": None},
    MESSAGES: {"type": "tool", "name": "clock", "disable_parallel_tool_use": None},
}


@pytest.mark.parametrize(("route", "given"), NULLS, ids=str)
def test_null_keys_are_none(server: Running, route: str, given: dict[str, Any]) -> None:
    text, named = asked(server, route, **given)
    assert named == []
    if "regex" not in str(given):
        assert text == asked(server, route)[0]


@pytest.mark.parametrize("name", ["previous_response_id", "conversation"])
def test_an_empty_id_is_none(server: Running, name: str) -> None:
    assert asked(server, RESPONSES, **{name: ""}) == (asked(server, RESPONSES)[0], [name])
    assert server.ask(RESPONSES, PLAIN[RESPONSES] | {name: "a"}).json["error"]["param"] == name


def test_variables_that_the_template_does_not_read_are_named(server: Running) -> None:
    given = {"chat_template_kwargs": {"enable_thinking": True, "no_such": 1}}
    for route in (CHAT, RESPONSES, MESSAGES):
        text, named = asked(server, route, temperature=0, **given)
        assert named == ["chat_template_kwargs.enable_thinking", "chat_template_kwargs.no_such"]
        assert text == asked(server, route, temperature=0)[0]


@pytest.mark.parametrize("route", LAST)
def test_null_keys_of_a_choice_are_none(scripted: Running, route: str) -> None:
    answer = scripted.ask(route, BODIES[route]("Hello.", tool_choice=LAST[route]))
    assert answer.status == 200 and "clock" in answer.content.decode(), answer.content


@pytest.mark.parametrize("name", ["max_tokens", "max_tokens_to_sample"])
def test_a_message_as_long_as_there_is_room(server: Running, name: str) -> None:
    body = {"messages": [USER], "temperature": 0, "stop_sequences": ["."]}
    assert text_of(server.ask(MESSAGES, body | {name: -1}).json) == text_of(
        server.ask(MESSAGES, body | {name: 300}).json
    )
    assert server.ask(MESSAGES, body | {name: 0}).status == 400 and server.ask(MESSAGES, body).status == 400


CALL = {
    "id": "a",
    "type": None,
    "function": {"name": "clock", "arguments": {"zone": 1}},
    "extra_content": {"x": 1},
}
TURNS: list[tuple[str, list[dict[str, Any]], list[str]]] = [
    (CHAT, [{"role": "assistant", "content": None}, USER], []),
    (CHAT, [{"role": "assistant", "content": []}, USER], []),
    (CHAT, [{"role": "assistant"}, USER], []),
    (CHAT, [{"role": "system", "content": None}, {"role": "user", "content": None}, USER], []),
    (CHAT, [{"role": "user", "content": [{"type": "text", "text": None}, None, {"type": "text", "text": "a"}]}], []),
    (CHAT, [{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, USER], []),
    (RESPONSES, [{"role": "user", "content": None}, USER], []),
    (RESPONSES, [{"role": "user", "content": [{"type": "input_text", "text": None}, None]}, USER], []),
    (RESPONSES, [{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, USER], []),
    (MESSAGES, [{"role": "user", "content": None}, {"role": "user", "content": [{"type": "text", "text": None}]}], []),
    (CHAT, [{"role": "assistant", "refusal": "No.", "tool_calls": None, "function_call": None}, USER], []),
    (
        CHAT,
        [{"role": "assistant", "content": "a", "reasoning_details": [{"x": 1}], "provider_specific_fields": {"a": 1}}],
        ["messages.provider_specific_fields", "messages.reasoning_details"],
    ),
    (CHAT, [{"role": "user", "content": "a", "cache_control": {"type": "ephemeral"}}], ["messages.cache_control"]),
    (MESSAGES, [{"role": "assistant", "content": []}, USER], []),
    (MESSAGES, [{"role": "assistant", "content": [], "id": "a", "model": "b", "x": None}, USER], ["messages.model"]),
    (
        MESSAGES,
        [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "a"}]}, USER],
        ["messages.redacted_thinking"],
    ),
    (
        MESSAGES,
        [{"role": "assistant", "content": [{"type": "text", "text": "a", "citations": [{"x": 1}]}]}, USER],
        ["messages.citations"],
    ),
    (
        MESSAGES,
        [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "b"}]}, USER],
        ["messages.redacted_thinking"],
    ),
    (RESPONSES, [{"role": "assistant", "content": []}, USER], []),
    (
        RESPONSES,
        [{"type": "reasoning", "summary": [], "encrypted_content": "a"}, {"role": "assistant", "content": "b"}, USER],
        ["input.encrypted_content"],
    ),
]


@pytest.mark.parametrize(("route", "turns", "names"), TURNS, ids=str)
def test_turns_that_clients_keep_are_taken(
    server: Running, route: str, turns: list[dict[str, Any]], names: list[str]
) -> None:
    field = "input" if route == RESPONSES else "messages"
    assert sorted(asked(server, route, **{field: [USER, *turns]})[1]) == names


def test_calls_and_results_of_other_servers_are_taken(scripted: Running) -> None:
    body = BODIES[CHAT]("Hello.")
    made = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    for content in ([], None, "noon"):
        result = {"role": "tool", "tool_call_id": "a", "content": content}
        answer = scripted.ask(CHAT, body | {"messages": [USER, made, result, *body["messages"]]})
        assert answer.status == 200 and answer.headers["karat-without-effect"] == "messages.extra_content"
    item = {"type": "function_call", "call_id": "a", "name": "clock", "arguments": "{}"}
    for output in ([], None, ""):
        result = {"type": "function_call_output", "call_id": "a", "output": output}
        asked_for = {"role": "user", "content": body["messages"][0]["content"]}
        assert scripted.ask(RESPONSES, BODIES[RESPONSES]("") | {"input": [USER, item, result, asked_for]}).status == 200


@pytest.mark.parametrize("route", [CHAT, RESPONSES, MESSAGES])
def test_keys_of_tools_of_other_servers_are_named(scripted: Running, route: str) -> None:
    body = BODIES[route]("Hello.")
    more = {"defer_loading": True, "input_examples": [{}], "allowed_callers": ["direct"], "x": None}
    body["tools"] = [tool | more for tool in body["tools"]]
    answer = scripted.ask(route, body)
    names = {f"tools.{name}" for name in more if name != "x"}
    assert answer.status == 200 and len(NAMES) == 2, answer.content
    assert set(answer.headers["karat-without-effect"].split(", ")) == names


@pytest.mark.parametrize(
    ("route", "given", "param"),
    [
        (CHAT, {"max_tokens": 10**6}, "max_tokens"),
        (CHAT, {"max_tokens": None, "max_completion_tokens": 10**6}, "max_completion_tokens"),
        (RESPONSES, {"max_output_tokens": 10**6}, "max_output_tokens"),
        (CHAT, {"messages": [{"role": "user", "content": "a " * 9000}]}, "messages"),
        (RESPONSES, {"input": "a " * 9000}, "input"),
        (TEXT, {"prompt": "a " * 9000}, "prompt"),
        (TEXT, {"prompt": [5] * 9000}, "prompt"),
        (TEXT, {"prompt": [10**6]}, "prompt"),
        (TEXT, {"logit_bias": {"99999": 1}}, "logit_bias"),
        (
            RESPONSES,
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"pattern": "("}}}},
            "text.format",
        ),
        (CHAT, {"min_tokens": 3}, "min_tokens"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_errors_name_the_field_that_was_sent(server: Running, route: str, given: dict[str, Any], param: str) -> None:
    for stream in (False, True):
        answer = server.ask(route, PLAIN[route] | given | {"stream": stream})
        assert answer.status == 400 and answer.json["error"]["param"] == param, answer.content
    too_long = "max" in param or param in ("messages", "input")
    assert not too_long or answer.json["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("route", [CHAT, TEXT])
def test_forms_in_the_fields_of_llama_cpp_and_earlier_vllm(server: Running, route: str) -> None:
    base: dict[str, Any] = {"max_tokens": 12, "temperature": 0}
    base |= {"messages": [{"role": "user", "content": "a"}]} if route == CHAT else {"prompt": "a"}

    def text(**given: Any) -> str:
        (choice,) = server.ask(route, base | given).json["choices"]
        made: str = choice["message"]["content"] if route == CHAT else choice["text"]
        return made

    schema = {"enum": ["b"]}
    for asked in ({"json_schema": schema}, {"guided_json": schema}, {"guided_json": json.dumps(schema)}):
        assert text(**asked) == '"b"'
    for asked in ({"grammar": 'root ::= "b"'}, {"guided_grammar": 'start: "b"'}, {"guided_regex": "b"}):
        assert text(**asked) == "b"
    assert text(guided_choice=["b"], grammar="") == "b"
    both = server.ask(route, base | {"grammar": 'root ::= "b"', "guided_regex": "b"})
    assert both.status == 400 and "grammar and guided_regex" in both.json["error"]["message"].replace(
        "guided_regex and grammar", "grammar and guided_regex"
    )
    wrong = server.ask(route, base | {"grammar": "root ::= x"}).json["error"]
    assert wrong["param"] == "grammar" and wrong["message"].startswith("grammar: grammar, read as GBNF: ")


@pytest.mark.parametrize("route", [CHAT, TEXT])
def test_neutral_fields_of_llama_cpp(server: Running, route: str) -> None:
    neutral = {"id_slot": -1, "n_keep": 0, "penalize_nl": True, "n_indent": 0, "t_max_predict_ms": 0, "lora": []}
    neutral |= {"response_fields": [], "post_sampling_probs": False, "grammar_lazy": False, "chat_template_kwargs": {}}
    body = {"messages": [{"role": "user", "content": "a"}]} if route == CHAT else {"prompt": "a"}
    assert server.ask(route, body | neutral | {"max_tokens": 1}).status == 200
    assert server.ask(route, body | {"lora": [{"id": 0}]}).json["error"]["param"] == "lora"
