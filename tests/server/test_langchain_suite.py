"""langchain-tests' integration suite, with forced tool choice, by langchain's client of the OpenAI protocol.

The scripted model answers what the suite asks for by words: where a tool may be called, with the call of `SAID`.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.server.conftest import Running
from tests.support.scripted import script

langchain_openai = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
suite = pytest.importorskip("langchain_tests.integration_tests", reason="langchain-tests is not installed")


def call(name: str, **arguments: Any) -> str:
    said = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{said}\n</tool_call>"


# Words of the suite's question -> what is said to it.
SAID = {
    "value of magic_function(3)": call("magic_function", input=3),
    "Pirate greeting": call("greeting_generator", answer_style="pirate"),
    "San Francisco": call("get_weather", location="San Francisco, CA"),
    "你好啊集团": call("unicode_customer", customer_name="你好啊集团", description="x"),
    "こんにちは": call("unicode_customer", customer_name="こんにちは株式会社", description="x"),
    "Return the result as a JSON": '{"setup": "Why?", "punchline": "Because."}',
}


class Asking(langchain_openai.ChatOpenAI):  # type: ignore[misc]
    """langchain's client as it is; the last message says to the scripted model what it is to say."""

    def _get_request_payload(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        payload: dict[str, Any] = super()._get_request_payload(*args, **kwargs)
        last = (payload.get("messages") or [{}])[-1]
        if last.get("role") == "user" and isinstance(last["content"], str):
            last["content"] += "".join(script(said) for words, said in SAID.items() if words in last["content"])
        return payload


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", autouse=True)
async def one_loop(anyio_backend: str) -> AsyncIterator[None]:
    """One event loop for all: langchain keeps the connections of its clients."""
    yield  # noqa: PT022 - as long as this lasts


@pytest.mark.anyio
class TestOpenAI(suite.ChatModelIntegrationTests):  # type: ignore[misc]
    """Skipped by the suite itself: pictures, sound and PDF, which no model of Karat's reads; messages of Anthropic's
    form, which ChatOpenAI sends to nobody; the recorded exchange of a benchmark."""

    chat_model_class = Asking
    has_tool_choice = True
    supports_json_mode = True
    model_override_value = "scripted"

    @pytest.fixture(autouse=True)
    def ask(self, scripted: Running) -> None:
        type(self).url = scripted.url

    @property
    def chat_model_params(self) -> dict[str, Any]:
        given = {"base_url": f"{self.url}/v1", "api_key": "dummy", "model": "also-scripted", "max_retries": 0}
        return given | {"temperature": 0, "max_tokens": 200, "stream_usage": True, "timeout": 60}

    @pytest.fixture
    def model(self, request: pytest.FixtureRequest, ask: None) -> Any:
        given = self.standard_chat_model_params | self.chat_model_params | getattr(request, "param", {})
        return self.chat_model_class(**given)

    @pytest.fixture
    def benchmark(self) -> None: ...

    @pytest.fixture
    def vcr(self) -> None: ...
