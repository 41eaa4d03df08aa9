"""An answer goes on with a begun one, in every protocol: the same prompt, and what follows alone."""

import json
from typing import Any

import pytest

from karat import LLM, SamplingParams, StructuredOutputs
from karat.server.fields import CHAT, MESSAGES, RESPONSES
from tests.server.conftest import Running
from tests.server.test_lenient import text_of
from tests.server.tool_cases import call, chat_body
from tests.support.scripted import script

USER = {"role": "user", "content": "Tell me a story."}
BEGUN = {"role": "assistant", "content": "Once upon a time, there was a dragon who"}
ON: dict[str, Any] = {"seed": 3, "temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1}
SPELLED: dict[str, tuple[str, dict[str, Any]]] = {
    "vLLM's": (CHAT, {"messages": [USER, BEGUN], "continue_final_message": True}),
    "both": (CHAT, {"messages": [USER, BEGUN], "continue_final_message": True, "add_generation_prompt": False}),
    "Mistral's": (CHAT, {"messages": [USER, BEGUN | {"prefix": True}]}),
    "Qwen's": (CHAT, {"messages": [USER, BEGUN | {"partial": True}]}),
    "messages": (MESSAGES, {"messages": [USER, BEGUN]}),
    "blocks": (MESSAGES, {"messages": [USER, BEGUN | {"content": [{"type": "text", "text": BEGUN["content"]}]}]}),
    "responses": (RESPONSES, {"input": [USER, BEGUN | {"status": "incomplete"}]}),
}


def test_every_spelling_gives_the_answer_of_llm(server: Running) -> None:
    llm = LLM()
    options: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}
    prompt = llm.chat_prompt([USER, BEGUN], **options)
    assert prompt.text.endswith(BEGUN["content"])
    (expected,) = llm.chat([USER, BEGUN], SamplingParams(max_tokens=12, **ON), **options)
    assert tuple(expected.prompt_token_ids) == prompt.token_ids and expected.outputs[0].text
    for name, (route, given) in SPELLED.items():
        body = given | ON | {"max_output_tokens" if route == RESPONSES else "max_tokens": 12}
        answer = server.ask(route, body)
        assert answer.status == 200, (name, answer.content)
        assert text_of(answer.json) == expected.outputs[0].text, name
        if route == CHAT:
            asked = {key: value for key, value in given.items() if key != "tools"}
            for other in ("/render", "/tokenize"):
                made = server.ask(other, asked).json
                assert made.get("token_ids", made.get("tokens")) == list(prompt.token_ids)


@pytest.mark.parametrize(
    ("route", "given", "param"),
    [
        (CHAT, {"messages": [USER], "continue_final_message": True}, "messages[0].role"),
        (CHAT, {"messages": [USER | {"prefix": True}]}, "messages[0].role"),
        (
            CHAT,
            {"messages": [USER, BEGUN], "continue_final_message": True, "add_generation_prompt": True},
            "add_generation_prompt",
        ),
        (
            MESSAGES,
            {
                "messages": [
                    USER,
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}]},
                ]
            },
            "messages[1] has calls",
        ),
    ],
)
def test_what_cannot_go_on_is_refused(server: Running, route: str, given: dict[str, Any], param: str) -> None:
    answer = server.ask(route, given | {"max_tokens": 2})
    assert answer.status == 400 and param in answer.content.decode(), answer.content


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_that_was_begun_goes_on(scripted: Running, stream: bool) -> None:
    turns = [
        {"role": "user", "content": script("Hm.</think>\nYes.")},
        {"role": "assistant", "content": "<think>\nWell,"},
    ]
    answer = scripted.ask(CHAT, {"messages": turns, "continue_final_message": True, "stream": stream})
    if stream:
        deltas = [event["choices"][0]["delta"] for event in answer.events]
        told = ["".join(delta.get(name) or "" for delta in deltas) for name in ("reasoning_content", "content")]
    else:
        told = [answer.json["choices"][0]["message"][name] for name in ("reasoning_content", "content")]
    assert told == ["Hm.", "Yes."]


WORDS: dict[str, Any] = {"properties": {"z": {"enum": ["cat", "dog"]}}, "required": ["z"]}
WORDS |= {"type": "object", "additionalProperties": False}
FORMS: dict[str, dict[str, Any]] = {
    CHAT: {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": WORDS}}},
    RESPONSES: {"text": {"format": {"type": "json_schema", "name": "a", "schema": WORDS}}},
    MESSAGES: {"output_config": {"format": {"type": "json_schema", "schema": WORDS}}},
}


@pytest.mark.parametrize(("name", "route"), [("vLLM's", CHAT), ("messages", MESSAGES), ("responses", RESPONSES)])
@pytest.mark.parametrize("begun", ['{"z":', '{ "z": "', '{"z": "dog', "Here it is: "])
def test_a_form_is_of_the_beginning_and_the_answer_together(server: Running, name: str, route: str, begun: str) -> None:
    """Of the answer alone, where the beginning is none of the form."""
    _, given = SPELLED[name]
    turns = [USER, given.get("input", given.get("messages"))[1] | {"content": begun}]
    length = "max_output_tokens" if route == RESPONSES else "max_tokens"
    body = given | {"input" if route == RESPONSES else "messages": turns, length: 80, "temperature": 0} | FORMS[route]
    answer = server.ask(route, body)
    assert answer.status == 200, answer.content
    text = text_of(answer.json)
    whole = json.loads(text if begun.startswith("Here") else begun + text)
    assert whole in ({"z": "cat"}, {"z": "dog"}) and ("dog" not in begun or whole == {"z": "dog"})


def test_a_call_that_must_come_is_the_answers_own(scripted: Running) -> None:
    """Also after a message in which one is begun, which is not read. No other test has this script: the scripted model
    would begin it anew behind the same text."""
    said = script(call(arguments='{"city": "Bergen"}'))
    turns = [{"role": "user", "content": said}, {"role": "assistant", "content": '<tool_call>\n{"name":'}]
    body = chat_body("") | {"messages": turns, "continue_final_message": True, "tool_choice": "required"}
    (choice,) = scripted.ask(CHAT, body).json["choices"]
    assert [each["function"]["name"] for each in choice["message"]["tool_calls"]] == ["get_weather"]


def test_a_receipt_of_such_an_answer_is_verified() -> None:
    llm = LLM()
    messages = [USER, {"role": "assistant", "content": '{"z":'}]
    params = SamplingParams(max_tokens=80, temperature=0, structured_outputs=StructuredOutputs(json=WORDS))
    made = llm.chat(messages, params, add_generation_prompt=False, continue_final_message=True, receipt=True)
    (choice,) = made[0].outputs
    assert json.loads('{"z":' + choice.text)["z"] in ("cat", "dog")
    assert choice.receipt is not None and llm.verify(choice.receipt).kind == "identical"


def test_an_answer_that_was_cut_goes_on_to_the_same_end(server: Running) -> None:
    """Greedy, and where the cut is between the tokens that the text has by itself."""
    body = {"temperature": 0, "input": [USER]}
    whole = text_of(server.ask(RESPONSES, body | {"max_output_tokens": 24}).json)
    made = server.ask(RESPONSES, body | {"max_output_tokens": 12}).json
    assert made["status"] == made["output"][0]["status"] == "incomplete"
    rest = server.ask(RESPONSES, body | {"input": [USER, *made["output"]], "max_output_tokens": 12}).json
    assert text_of(made) + text_of(rest) == whole
