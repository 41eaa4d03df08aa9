"""Records what real clients send, on loopback and with a dummy key, into tests/server/requests.

Use: python -m tools.record_requests

Of a request stay the names of fields, their types and their structure (tools/anonymiser.py). Needs
requirements/clients.txt; livekit-plugins-openai is recorded where it is installed.
"""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tools.anonymiser import Anonymiser

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "server" / "requests"
TURNS = [("system", "A system message"), ("human", "A message"), ("ai", "An answer"), ("human", "Another")]
MESSAGES: Any = [{"role": "system", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}]}]


class Recorder(HTTPServer):
    """Keeps requests, as route and body, and answers each with an error, which ends the client's call."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[tuple[str, Any]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def body_of(self, act: Callable[[str], object]) -> Any:
        """What `act`, which gets the address, sends."""
        self.requests.clear()
        try:
            act(f"{self.url}/v1")
        except Exception:  # noqa: BLE001 - the recorder's own error, in each client's own class
            return Anonymiser().of(self.requests[0][1])
        raise AssertionError("no request came")


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Recorder)
        self.server.requests.append((self.path, json.loads(self.rfile.read(int(self.headers["content-length"])))))
        self.send_error(400)

    def do_GET(self) -> None:
        """A list of models, without one: what some clients ask for before they send anything."""
        answer = b'{"object": "list", "data": []}'
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


def record() -> dict[str, dict[str, Any]]:
    """Name of a file to what it holds."""
    import langchain_openai
    import openai

    recorder = Recorder()

    def sdk(url: str, **given: Any) -> object:
        client = openai.OpenAI(base_url=url, api_key="dummy", max_retries=0)
        return client.chat.completions.create(model="a", messages=MESSAGES, **given)

    def chain(url: str, **given: Any) -> Any:
        return langchain_openai.ChatOpenAI(base_url=url, api_key="dummy", model="a", max_retries=0, **given)

    every: Any = {
        "user": "a",
        "metadata": {"a": "b"},
        "store": False,
        "service_tier": "auto",
        "safety_identifier": "a",
        "prompt_cache_key": "a",
        "temperature": 1,
        "max_completion_tokens": 4,
        "seed": 1,
        "stop": ["a"],
        "logit_bias": {"5": 1},
        "logprobs": True,
        "top_logprobs": 1,
        "n": 2,
    }
    sdk_name, chain_name = f"openai {version('openai')}", f"langchain-openai {version('langchain-openai')}"
    calls: dict[str, tuple[str, Callable[[str], object]]] = {
        "openai": (f"{sdk_name}, chat.completions.create", sdk),
        "openai-fields": (f"{sdk_name}, chat.completions.create, many fields", lambda url: sdk(url, **every)),
        "openai-stream": (f"{sdk_name}, chat.completions.create, stream=True", lambda url: sdk(url, stream=True)),
        "langchain": (f"{chain_name}, ChatOpenAI.invoke", lambda url: chain(url).invoke(TURNS)),
        "langchain-stream": (
            f"{chain_name}, ChatOpenAI.stream",
            lambda url: list(chain(url, max_tokens=4, temperature=0, stream_usage=True).stream(TURNS)),
        ),
    }
    if find_spec("livekit") is not None and find_spec("livekit.plugins.openai") is not None:
        origin = f"livekit-plugins-openai {version('livekit-plugins-openai')}, LLM.chat"
        calls["livekit"] = (origin, _livekit)
    return {
        name: {"from": f"recorded: {origin}", "body": recorder.body_of(act)} for name, (origin, act) in calls.items()
    }


def _livekit(url: str) -> None:
    """With a tool, and every option that its plugin has a name for and Karat takes."""
    import asyncio

    from livekit.agents import APIConnectOptions, function_tool, llm
    from livekit.plugins import openai

    @function_tool
    async def weather(city: str) -> str:
        """A tool."""
        return city

    async def ask() -> None:
        options: Any = {"user": "a", "store": False, "metadata": {"a": "b"}, "parallel_tool_calls": True}
        options |= {"prompt_cache_key": "a", "safety_identifier": "a", "max_completion_tokens": 4, "temperature": 0.8}
        model = openai.LLM(model="a", api_key="dummy", base_url=url, tool_choice="auto", **options)
        context = llm.ChatContext.empty()
        for role in ("system", "user"):
            context.add_message(role=role, content="a")
        async with model.chat(chat_ctx=context, tools=[weather], conn_options=APIConnectOptions(max_retry=0)) as stream:
            async for _ in stream:
                pass

    asyncio.run(ask())


def main() -> None:
    for name, recorded in record().items():
        text = json.dumps(recorded, indent=2, ensure_ascii=False) + "\n"
        (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
