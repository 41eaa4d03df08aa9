"""Tools for callers of LLM, on scripted models: the marks of calls are text, or special tokens."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from karat import LLM, AsyncLLM, SamplingParams
from karat.errors import RequestError, UsageError
from karat.text.tools.events import ParsedAnswer, ToolCall
from tests.engine.tiny import write_model
from tests.support.scripted import Scripted, script, write_scripted
from tests.text.tools.models import HERMES

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
                "required": ["days"],
                "additionalProperties": False,
            },
        },
    },
    {"name": "clock"},
]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"days": 3}}\n</tool_call>'
MARKS = ("<tool_call>", "</tool_call>", "<think>", "</think>")


@pytest.fixture(scope="module", params=["text", "special"])
def llm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    special = MARKS if request.param == "special" else ()
    folder = write_scripted(tmp_path_factory.mktemp("scripted"), HERMES, special=special)
    with LLM(folder, max_model_len=4096) as made:
        Scripted(made)
        yield made


def said(text: str) -> Any:
    return [{"role": "user", "content": script(text)}]


def test_answers_are_taken_apart(llm: LLM) -> None:
    text = f"<think>Hm.</think>\n\nLet me see.\n{CALL}"
    expected = ParsedAnswer("Let me see.", "Hm.", (ToolCall("get_weather", '{"days": 3}'),))
    outputs = llm.chat([said(text), said("Hello.")], SamplingParams(temperature=0), tools=TOOLS)
    assert [llm.parse_chat(output, TOOLS) for output in outputs] == [[expected], [ParsedAnswer("Hello.", "", ())]]
    (without,) = llm.parse_chat(outputs[0])
    assert without.reasoning == "Hm." and CALL in without.text and without.calls == ()
    variables = {"enable_thinking": True}
    (opened,) = llm.chat(said("Hm.</think>Yes."), chat_template_kwargs=variables)
    assert llm.parse_chat(opened) == [ParsedAnswer("Yes.", "Hm.", ())]
    cut = llm.chat(said(text), SamplingParams(temperature=0, max_tokens=2))
    assert llm.parse_chat(cut[0], TOOLS)[0].calls == ()


@pytest.mark.parametrize("text", ["No.", CALL.replace("3", "30"), f"{CALL}\n{CALL}"])
def test_calls_that_must_come(llm: LLM, text: str) -> None:
    prompt = llm.chat_prompt(said(text), tools=TOOLS)
    for choice in ("required", "get_weather", "clock"):
        params = llm.tool_params(prompt, TOOLS, SamplingParams(temperature=0), tool_choice=choice)
        (answer,) = llm.parse_chat(llm.generate(prompt, params)[0], TOOLS)
        assert answer.text == "" and answer.calls
        assert choice == "required" or {call.name for call in answer.calls} == {choice}
        for call in answer.calls:
            assert call.name == "clock" or 1 <= json.loads(call.arguments)["days"] <= 9
    single = llm.tool_params(prompt, TOOLS, parallel_tool_calls=False)
    assert len(llm.parse_chat(llm.generate(prompt, single)[0], TOOLS)[0].calls) == 1


def test_calls_that_may_come_keep_to_their_schema_if_their_tool_is_strict(llm: LLM) -> None:
    strict = [{**TOOLS[0]["function"], "strict": True}, TOOLS[1]]
    for text, num in (("Hello.", 0), (CALL.replace("3", "0"), 1)):
        for tools, least in ((strict, 1), (TOOLS, 0)):
            prompt = llm.chat_prompt(said(text), tools=tools)
            params = llm.tool_params(prompt, tools, tool_choice="auto")
            assert (params.structured_outputs is None) == (tools is TOOLS)
            (answer,) = llm.parse_chat(llm.generate(prompt, params)[0], tools)
            assert len(answer.calls) == num
            assert all((json.loads(each.arguments)["days"] >= 1) == (least == 1) for each in answer.calls)


def test_an_answer_is_either_calls_or_of_a_form(llm: LLM) -> None:
    form = SamplingParams(temperature=0, structured_outputs={"regex": '(a|<tool_call>|[{"} :,a-z])*'})
    inner = '{"a": "<tool_call>{"name": "clock", "arguments": {}}"'
    if "<tool_call>" in llm.tokenizer.added_tokens.values():
        inner = '{"a": "b"}'  # the mark is a token, and no form has it as text
    for text, expected in ((inner, ParsedAnswer(inner, "", ())), (CALL, ToolCall("get_weather", '{"days": 3}'))):
        prompt = llm.chat_prompt(said(text), tools=TOOLS)
        output = llm.generate(prompt, llm.tool_params(prompt, TOOLS, form, tool_choice="auto"))[0]
        (answer,) = llm.parse_chat(output, TOOLS, calls_alone=True)
        assert expected in (answer, *answer.calls)
    prompt = llm.chat_prompt(said("x"), tools=TOOLS)
    assert llm.tool_params(prompt, TOOLS, form, tool_choice="clock") == llm.tool_params(
        prompt, TOOLS, SamplingParams(temperature=0), tool_choice="clock"
    ), "a call that must come has no other form"


def test_a_tool_that_is_named_is_called_once(llm: LLM) -> None:
    prompt = llm.chat_prompt(said(f"{CALL}\n{CALL}"), tools=TOOLS)
    for choice, num in (("required", 2), ("get_weather", 1)):
        params = llm.tool_params(prompt, TOOLS, SamplingParams(temperature=0), tool_choice=choice)
        assert len(llm.parse_chat(llm.generate(prompt, params)[0], TOOLS)[0].calls) == num


def test_what_is_refused(llm: LLM, tmp_path: Path) -> None:
    prompt = llm.chat_prompt(said("Hello."), tools=TOOLS)
    for wrong, words in (
        ({"tools": [{"type": "web_search"}]}, "a tool="),
        ({"tools": ["clock"]}, "a tool="),
        ({"tools": TOOLS, "tool_choice": "other"}, "tool_choice names 'other'"),
        ({"tools": []}, "there are no tools"),
        ({"tools": [], "tool_choice": "auto"}, "with no tools"),
    ):
        with pytest.raises(RequestError, match=words):
            llm.tool_params(prompt, **wrong)
    with LLM(write_model(tmp_path)) as other, pytest.raises(UsageError, match="chat template"):
        other.tool_params(other.chat_prompt([{"role": "user", "content": "a"}]), TOOLS)


def test_tools_that_the_template_has_no_place_for_are_refused(tmp_path: Path) -> None:
    messages, words = [{"role": "user", "content": "a"}], "the model's chat template has no place for tools"
    with LLM(write_model(tmp_path)) as llm:
        for ask in (llm.chat, llm.chat_prompt, llm.stream_chat):
            with pytest.raises(UsageError, match=words) as refused:
                ask(messages, tools=TOOLS)
            assert refused.value.param == "tools"
            with pytest.raises(UsageError, match=words):
                ask(messages, tools=TOOLS, tool_choice="clock")
        prompt = llm.chat_prompt(messages, tools=TOOLS, tool_choice="none")
        assert prompt == llm.chat_prompt(messages, tools=[]) == llm.chat_prompt(messages)
        greedy = SamplingParams(temperature=0)
        assert llm.tool_params(prompt, TOOLS, greedy, tool_choice="none") == greedy


def test_tools_of_an_async_llm_are_decided_alike(tmp_path: Path) -> None:
    async def ask() -> None:
        async with await AsyncLLM.open(write_model(tmp_path), threads=1) as other:
            for asking in (other.chat, other.render):
                with pytest.raises(UsageError, match="no place for tools"):
                    await asking(said("a"), tools=TOOLS)
            assert await other.render(said("a"), tools=TOOLS, tool_choice="none") == await other.render(said("a"))

    asyncio.run(ask())


def test_the_model_is_shown_the_tools_of_the_choice(llm: LLM) -> None:
    for choice, seen in (("auto", TOOLS), ("required", TOOLS), ("clock", TOOLS[1:]), ("none", None)):
        prompt = llm.chat_prompt(said("a"), tools=TOOLS, tool_choice=choice)
        assert prompt == llm.chat_prompt(said("a"), tools=seen)
        (output,) = llm.chat(said("a"), SamplingParams(max_tokens=1), tools=TOOLS, tool_choice=choice)
        assert output.prompt == prompt.text
    with pytest.raises(RequestError, match="tool_choice names 'other'"):
        llm.chat_prompt(said("a"), tools=TOOLS, tool_choice="other")
    with pytest.raises(RequestError, match="there are no tools"):
        llm.chat_prompt(said("a"), tool_choice="required")


def test_calls_and_results_go_back(llm: LLM) -> None:
    function = {"name": "clock", "arguments": '{"zone": "a"}'}
    turns = [
        *said("Hello."),
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "1", "content": "noon"},
    ]
    text = llm.chat_prompt(turns, tools=TOOLS).text
    assert '{"name": "clock", "arguments": {"zone": "a"}}' in text and "noon" in text
