"""Clients that people use, and answers held to the types of the openai package, strictly.

Covers: karat.server.openai.formats.
"""

import asyncio
from typing import Any

import pytest

from tests.server.conftest import Running

openai = pytest.importorskip("openai", reason="the openai package is not installed (requirements/clients.txt)")

MESSAGES: Any = [{"role": "user", "content": "Tell me a story about a fox."}]


@pytest.fixture
def client(server: Running) -> Any:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="dummy", max_retries=0)


def test_chat_of_the_sdk(client: Any) -> None:
    given: Any = {"model": "karat-embedded", "messages": MESSAGES, "max_tokens": 64, "stop": ["."], "seed": 1}
    made = client.chat.completions.create(n=2, **given)
    assert [choice.index for choice in made.choices] == [0, 1] and made.usage.completion_tokens > 2
    assert made.choices[0].finish_reason == "stop" and made.choices[0].message.content
    with client.chat.completions.stream(**given) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.content == made.choices[0].message.content


def test_parse_of_the_sdk(client: Any) -> None:
    import pydantic

    class Story(pydantic.BaseModel):
        title: str = pydantic.Field(max_length=12)
        pages: int = pydantic.Field(ge=1, le=20)

    given: dict[str, Any] = {"model": "karat-embedded", "messages": MESSAGES, "temperature": 1.5}
    made = client.chat.completions.parse(**given, seed=0, max_tokens=64, stop=["."])
    assert made.choices[0].message.content and made.choices[0].message.parsed is None
    for seed in range(3):
        made = client.chat.completions.parse(**given, seed=seed, response_format=Story)
        assert 1 <= made.choices[0].message.parsed.pages <= 20 and made.choices[0].finish_reason == "stop"
        with client.chat.completions.stream(**given, seed=seed, response_format=Story) as stream:
            assert stream.get_final_completion().choices[0].message.parsed == made.choices[0].message.parsed


def test_forms_of_answers(client: Any) -> None:
    given: dict[str, Any] = {"model": "karat-embedded", "messages": MESSAGES, "max_tokens": 60}

    def text(**fields: Any) -> str:
        return client.chat.completions.create(**given, extra_body=fields).choices[0].message.content

    assert text(structured_outputs={"choice": ["red", "blue"]}) in ("red", "blue")
    assert text(structured_outputs={"regex": "[0-9]{3}"}).isdigit()
    assert text(response_format={"type": "json_object"}).startswith("{")
    assert text(response_format={"type": "text"})
    refused = {
        "not": {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"not": {}}}}},
        "json_schema": {"response_format": {"type": "json_schema"}},
        "expected type text": {"response_format": {"type": "xml"}},
        "give one": {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
        "unclosed group": {"structured_outputs": {"regex": "("}},
        "guided_json": {"guided_json": {}, "structured_outputs": {"regex": "a"}},
    }
    for named, fields in refused.items():
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError, match=named):
                client.chat.completions.create(**given, stream=stream, extra_body=fields)


def test_completions_and_models_of_the_sdk(client: Any) -> None:
    made = client.completions.create(
        model="karat-embedded", prompt=["Once", "The"], max_tokens=4, logprobs=2, echo=True
    )
    assert made.choices[1].text.startswith("The") and made.choices[1].logprobs.tokens[0] == "The"
    parts = client.completions.create(model="karat-embedded", prompt="Once", max_tokens=4, stream=True)
    assert "".join(part.choices[0].text for part in parts)
    assert [model.id for model in client.models.list()] == ["karat-embedded"]
    assert client.models.retrieve("karat-embedded").owned_by == "karat"


def test_the_asynchronous_sdk(server: Running) -> None:
    async def ask() -> tuple[str, Any]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="dummy", max_retries=0) as client:
            given: Any = {"model": "karat-embedded", "messages": MESSAGES, "max_tokens": 8, "temperature": 0}
            whole, stream = await asyncio.gather(
                client.chat.completions.create(**given),
                client.chat.completions.create(**given, stream=True, stream_options={"include_usage": True}),
            )
            text, usage = "", None
            async for event in stream:
                text += event.choices[0].delta.content or "" if event.choices else ""
                usage = event.usage or usage
            assert usage.completion_tokens == 8
            return text, whole

    text, whole = asyncio.run(ask())
    assert text == whole.choices[0].message.content


def test_errors_are_those_of_the_sdk(client: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="karat-embedded", messages=MESSAGES, temperature=101)
    assert caught.value.param == "temperature" and caught.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError):
        next(iter(client.completions.create(model="karat-embedded", prompt=[5] * 5000, stream=True)))


def test_langchain(server: Running) -> None:
    langchain = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    given: Any = {"base_url": f"{server.url}/v1", "api_key": "dummy", "model": "karat-embedded", "temperature": 0}
    model = langchain.ChatOpenAI(max_tokens=8, max_retries=0, **given)
    whole = model.invoke([("system", "Be kind."), ("human", "Tell me a story.")])
    assert whole.content and whole.usage_metadata["output_tokens"] == 8
    streamed = list(model.stream([("system", "Be kind."), ("human", "Tell me a story.")]))
    assert "".join(str(part.content) for part in streamed) == whole.content
    turns = [("human", "Hello"), ("ai", str(whole.content)), ("human", "Go on.")]
    assert asyncio.run(model.ainvoke(turns)).content
    assert langchain.OpenAI(max_tokens=4, max_retries=0, **given).invoke("Once upon a time")


CHATS: list[dict[str, Any]] = [
    {},
    {"n": 2, "logprobs": True, "top_logprobs": 2},
    {"stop": "a", "return_token_ids": True, "prompt_logprobs": 1},
]


@pytest.mark.parametrize("given", CHATS)
def test_chats_are_strictly_of_the_types(server: Running, given: dict[str, Any]) -> None:
    from openai.types.chat import ChatCompletion, ChatCompletionChunk

    answer = server.chat(max_tokens=6, seed=2, **given)
    made = answer.json
    ChatCompletion.model_validate_json(answer.content, strict=True)
    assert made.keys() >= {"id", "object", "created", "model", "choices", "usage", "service_tier", "system_fingerprint"}
    for choice in made["choices"]:
        assert choice.keys() >= {"index", "finish_reason", "logprobs", "message"}
        assert choice["message"].keys() >= {"role", "content", "refusal", "annotations"}
    options = {"include_usage": True}
    for event in server.chat(max_tokens=6, seed=2, stream=True, stream_options=options, **given).events:
        ChatCompletionChunk.model_validate(event, strict=True)
        assert event.keys() >= {"id", "object", "created", "model", "choices", "usage"}
        for choice in event["choices"]:
            assert choice.keys() >= {"index", "finish_reason", "logprobs", "delta"}


@pytest.mark.parametrize("given", [{}, {"n": 2, "logprobs": 2}, {"return_token_ids": True, "prompt_logprobs": 0}])
def test_completions_are_strictly_of_the_types(server: Running, given: dict[str, Any]) -> None:
    from openai.types import Completion

    answer = server.text(max_tokens=6, seed=2, **given)
    Completion.model_validate_json(answer.content, strict=True)
    for choice in answer.json["choices"]:
        assert choice.keys() >= {"index", "finish_reason", "logprobs", "text"}
    for event in server.text(max_tokens=6, seed=2, stream=True, **given).events:
        for choice in event["choices"]:
            assert choice.keys() >= {"index", "finish_reason", "logprobs", "text"}
            choice["finish_reason"] = choice["finish_reason"] or "stop"  # the package has no type for events
        Completion.model_validate(event, strict=True)


def test_models_are_strictly_of_the_types(server: Running) -> None:
    from openai.types import Model

    for model in server.ask("/v1/models").json["data"]:
        Model.model_validate(model, strict=True)
