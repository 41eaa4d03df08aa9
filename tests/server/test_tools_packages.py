"""Tools and reasoning in every protocol, by the packages of OpenAI, Anthropic and langchain, and by their types."""

from typing import Any

import pytest

from karat.server.fields import CHAT, MESSAGES, RESPONSES
from tests.server.anthropic.test_messages import events_of as message_events
from tests.server.conftest import Running
from tests.server.openai.test_responses import events_of as response_events
from tests.server.tool_cases import SAID, call, chat_body, message_body, response_body
from tests.support.scripted import script

SAYS = {case: said[0] for case, said in SAID.items()} | {"broken": call(arguments='{"city": "a\n"}') + " Sorry."}
EVERY = pytest.mark.parametrize("case", SAYS)


class TestPackages:
    """The packages of the protocols, and their types, strictly."""

    @pytest.mark.drawn(3)
    @EVERY
    def test_strictly_of_the_types_of_chats(self, scripted: Running, case: str) -> None:
        chat = pytest.importorskip("openai.types.chat", reason="the openai package is not installed")
        body = chat_body(SAYS[case])
        chat.ChatCompletion.model_validate_json(scripted.ask(CHAT, body).content, strict=True)
        for event in scripted.ask(CHAT, body | {"stream": True}).events:
            chat.ChatCompletionChunk.model_validate(event, strict=True)

    @pytest.mark.drawn(3)
    @EVERY
    def test_strictly_of_the_types_of_responses(self, scripted: Running, case: str) -> None:
        types = pytest.importorskip("openai.types.responses", reason="the openai package is not installed")
        pydantic = pytest.importorskip("pydantic")
        body = response_body(SAYS[case], tool_choice="auto", parallel_tool_calls=True)
        types.Response.model_validate_json(scripted.ask(RESPONSES, body).content, strict=True)
        event_type = pydantic.TypeAdapter(types.ResponseStreamEvent)
        for event in response_events(scripted.ask(RESPONSES, body | {"stream": True})):
            event_type.validate_python(event, strict=True)

    @pytest.mark.drawn(3)
    @EVERY
    def test_strictly_of_the_types_of_messages(self, scripted: Running, case: str) -> None:
        types = pytest.importorskip("anthropic.types", reason="the anthropic package is not installed")
        pydantic = pytest.importorskip("pydantic")
        body = message_body(SAYS[case])
        types.Message.model_validate_json(scripted.ask(MESSAGES, body).content, strict=True)
        event_type = pydantic.TypeAdapter(types.RawMessageStreamEvent)
        for event in message_events(scripted.ask(MESSAGES, body | {"stream": True})):
            if event["type"] != "ping":
                event_type.validate_python(event, strict=True)

    def test_openai_chats(self, scripted: Running) -> None:
        openai = pytest.importorskip("openai", reason="the openai package is not installed")
        pydantic = pytest.importorskip("pydantic")
        client = openai.OpenAI(base_url=f"{scripted.url}/v1", api_key="dummy", max_retries=0)

        class GetWeather(pydantic.BaseModel):
            city: str
            days: int

        tools = [openai.pydantic_function_tool(GetWeather, name="get_weather")]
        messages: list[Any] = [{"role": "user", "content": script(SAID["call"][0])}]
        given: Any = {"model": "scripted", "messages": messages, "tools": tools}
        made = client.chat.completions.parse(**given).choices[0].message
        assert made.tool_calls[0].function.parsed_arguments == GetWeather(city="Oslo", days=2)
        with client.chat.completions.stream(**given) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_completion().choices[0].message
        assert "tool_calls.function.arguments.done" in kinds
        assert final.tool_calls[0].function.parsed_arguments == GetWeather(city="Oslo", days=2)
        for answer in (made, final):
            result = {"role": "tool", "tool_call_id": answer.tool_calls[0].id, "content": "Rain."}
            ask = {"role": "user", "content": script("It rains.")}
            again = client.chat.completions.create(**given | {"messages": [*messages, answer, result, ask]})
            assert again.choices[0].message.content == "It rains."

    def test_openai_responses(self, scripted: Running) -> None:
        openai = pytest.importorskip("openai", reason="the openai package is not installed")
        client = openai.OpenAI(base_url=f"{scripted.url}/v1", api_key="dummy", max_retries=0)
        body = response_body(SAID["all"][0], model="scripted")
        made = client.responses.create(**body)
        with client.responses.stream(**body) as stream:
            for _ in stream:
                pass
            final = stream.get_final_response()
        for answer in (made, final):
            thought, said, *made_calls = answer.output
            assert thought.content[0].text and said.content[0].text == "Let me see."
            assert [each.name for each in made_calls] == ["get_weather", "clock"]
            outputs = [{"type": "function_call_output", "call_id": each.call_id, "output": "1"} for each in made_calls]
            turns = [{"role": "user", "content": "Hello"}, *(item.to_dict() for item in answer.output), *outputs]
            again = client.responses.create(**body | {"input": [*turns, {"role": "user", "content": script("Sun.")}]})
            assert again.output_text == "Sun."

    def test_anthropic(self, scripted: Running) -> None:
        anthropic = pytest.importorskip("anthropic", reason="the anthropic package is not installed")
        client = anthropic.Anthropic(base_url=scripted.url, api_key="dummy", max_retries=0)
        body = message_body(SAID["all"][0], model="scripted")
        made = client.messages.create(**body)
        with client.messages.stream(**body) as stream:
            for _ in stream:
                pass
            final = stream.get_final_message()
        for answer in (made, final):
            thought, said, *uses = answer.content
            assert thought.thinking and said.text == "Let me see." and answer.stop_reason == "tool_use"
            assert [(use.name, use.input) for use in uses] == [
                ("get_weather", {"city": "Oslo", "days": 2}),
                ("clock", {}),
            ]
            results = [{"type": "tool_result", "tool_use_id": use.id, "content": "Rain."} for use in uses]
            turns = [
                *body["messages"],
                {"role": "assistant", "content": answer.content},
                {"role": "user", "content": [*results, {"type": "text", "text": script("It rains.")}]},
            ]
            assert client.messages.create(**body | {"messages": turns}).content[0].text == "It rains."

    def test_langchain(self, scripted: Running) -> None:
        langchain = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
        model = langchain.ChatOpenAI(
            base_url=f"{scripted.url}/v1", api_key="dummy", model="scripted", max_retries=0, temperature=0
        )

        def get_weather(city: str, days: int) -> str:
            """The weather in a city for some days."""
            return f"{days} days of rain in {city}."

        said = script(SAID["call"][0])
        expected = [("get_weather", {"city": "Oslo", "days": 2})]
        for choice in (None, "any", "get_weather"):
            bound = model.bind_tools([get_weather], tool_choice=choice)
            made = bound.invoke(said)
            assert [(each["name"], each["args"]) for each in made.tool_calls] == expected
            whole = None
            for part in bound.stream(said):
                whole = part if whole is None else whole + part
            assert whole is not None
            assert [(each["name"], each["args"]) for each in whole.tool_calls] == expected
