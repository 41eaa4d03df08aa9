"""What clients are asked, each by a few lines as its users write them: python -m tools.client_asks NAME URL MODEL.

NAME is CLIENT:WHAT, as in `ASKS`. The client has to be installed in this interpreter's environment.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Any

QUESTION = "What is the weather in Paris?"
CITY: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "description": "a", "parameters": CITY}}
TURNS = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]


def weather(city: str, days: int = 1) -> str:
    """The weather of a city.

    Args:
        city: its name
        days: how many
    """
    return "sunny"


def city_class() -> Any:
    from pydantic import BaseModel, Field

    class City(BaseModel):
        """A city."""

        name: str = Field(max_length=5)
        people: int = Field(ge=0)

    return City


def pydantic_ai(what: str, url: str, model: str) -> None:
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    protocol, _, way = what.partition("-")
    openai = OpenAIProvider(api_key="dummy", base_url=f"{url}/v1")
    made: Any = {
        "chat": lambda: OpenAIChatModel(model, provider=openai),
        "responses": lambda: OpenAIResponsesModel(model, provider=openai),
        "messages": lambda: AnthropicModel(model, provider=AnthropicProvider(api_key="dummy", base_url=url)),
    }[protocol]()
    kind: Any = {"output": city_class(), "native": NativeOutput(city_class())}.get(way, str)
    agent: Any = Agent(made, system_prompt="Be brief.", model_settings={"max_tokens": 60}, output_type=kind, retries=0)
    if way == "tools":
        agent.tool_plain(weather)

    async def stream() -> None:
        async with agent.run_stream(QUESTION) as answer:
            async for _ in answer.stream_text():
                pass

    if way == "stream":
        asyncio.run(stream())
    else:
        agent.run_sync(QUESTION)


def instructor(what: str, url: str, model: str) -> None:
    import instructor as package

    asked: Any = {"model": model, "max_tokens": 60, "max_retries": 0, "response_model": city_class()}
    if what == "messages":
        import anthropic

        inner = anthropic.Anthropic(api_key="dummy", base_url=url, max_retries=0)
        client: Any = package.from_anthropic(inner, mode=package.Mode.ANTHROPIC_TOOLS)
        client.messages.create(messages=TURNS[1:], **asked)
        return
    import openai

    modes = {"tools": "TOOLS", "json": "JSON", "schema": "JSON_SCHEMA", "strict": "TOOLS_STRICT", "markdown": "MD_JSON"}
    plain = openai.OpenAI(api_key="dummy", base_url=f"{url}/v1", max_retries=0)
    client = package.from_openai(plain, mode=getattr(package.Mode, modes[what]))
    client.chat.completions.create(messages=TURNS, **asked)


def litellm(what: str, url: str, model: str) -> None:
    import litellm as package

    asked: Any = {"messages": TURNS, "max_tokens": 20, "num_retries": 0}
    chat: Any = {"model": f"hosted_vllm/{model}", "api_base": f"{url}/v1", **asked}
    match what:
        case "chat":
            given = {"model": f"openai/{model}", "tools": [TOOL], "parallel_tool_calls": True}
            package.completion(**chat | given)
        case "effort":
            package.completion(**chat, reasoning_effort="low")
        case "stream":
            for _ in package.completion(**chat, stream=True, stream_options={"include_usage": True}):
                pass
        case "messages":
            package.completion(**chat | {"model": f"anthropic/{model}", "api_base": url, "tools": [TOOL]})
        case "responses":
            package.responses(model=f"openai/{model}", api_base=f"{url}/v1", input=QUESTION, max_output_tokens=20)
        case "text":
            name = f"text-completion-openai/{model}"
            package.text_completion(model=name, api_base=f"{url}/v1", prompt="a", max_tokens=4)
        case "bridge":  # a request of Anthropic's protocol, sent on by OpenAI's
            asked["messages"] = TURNS[1:]
            asyncio.run(package.anthropic.messages.acreate(model=f"openai/{model}", api_base=f"{url}/v1", **asked))


def openai_agents(what: str, url: str, model: str) -> None:
    import agents
    from openai import AsyncOpenAI

    protocol, _, way = what.partition("-")
    client = AsyncOpenAI(api_key="dummy", base_url=f"{url}/v1", max_retries=0)
    kind = agents.OpenAIChatCompletionsModel if protocol == "chat" else agents.OpenAIResponsesModel
    made: Any = kind(model=model, openai_client=client)
    agents.set_tracing_disabled(True)
    agent: Any = agents.Agent(
        name="a",
        instructions="Be brief.",
        model=made,
        tools=[agents.function_tool(weather)],
        model_settings=agents.ModelSettings(max_tokens=60),
        output_type=city_class() if way == "typed" else None,
        handoffs=[agents.Agent(name="b", instructions="b", model=made)] if way == "handoff" else [],
    )

    async def stream() -> None:
        async for _ in agents.Runner.run_streamed(agent, QUESTION, max_turns=2).stream_events():
            pass

    if way == "stream":
        asyncio.run(stream())
    else:
        agents.Runner.run_sync(agent, QUESTION, max_turns=2)


def semantic_kernel(what: str, url: str, model: str) -> None:
    from openai import AsyncOpenAI
    from semantic_kernel import Kernel
    from semantic_kernel.connectors.ai import FunctionChoiceBehavior, open_ai
    from semantic_kernel.contents import ChatHistory
    from semantic_kernel.functions import kernel_function

    class Plugin:
        @kernel_function(description="The weather")
        def weather(self, city: str) -> str:
            return "sunny"

    async def ask() -> None:
        client = AsyncOpenAI(api_key="dummy", base_url=f"{url}/v1", max_retries=0)
        kernel, service = Kernel(), open_ai.OpenAIChatCompletion(ai_model_id=model, async_client=client)
        kernel.add_service(service)
        kernel.add_plugin(Plugin(), "plugin")
        options: Any = open_ai.OpenAIChatPromptExecutionSettings(max_tokens=30)
        if what == "tools":
            options.function_choice_behavior = FunctionChoiceBehavior.Auto()
        history = ChatHistory(system_message="Be brief.")
        history.add_user_message(QUESTION)
        if what == "stream":
            async for _ in service.get_streaming_chat_message_content(history, options):
                pass
        else:
            await service.get_chat_message_content(history, options, kernel=kernel)

    asyncio.run(ask())


def langchain(what: str, url: str, model: str) -> None:
    turns = [("system", "Be brief."), ("human", QUESTION)]
    if what == "messages":
        from langchain_anthropic import ChatAnthropic

        other: Any = ChatAnthropic
        other(model=model, base_url=url, api_key="dummy", max_tokens=20, max_retries=0).invoke(turns)
        return
    from langchain_openai import ChatOpenAI

    options: Any = {"model": model, "base_url": f"{url}/v1", "api_key": "dummy", "max_retries": 0, "max_tokens": 60}
    chat = ChatOpenAI(**options, use_responses_api=what == "responses")
    match what:
        case "agent":
            from langgraph.prebuilt import create_react_agent

            create_react_agent(chat, [weather]).invoke({"messages": turns}, {"recursion_limit": 4})
        case "responses":
            chat.invoke(turns)
        case _:
            methods = {"schema": "json_schema", "tools": "function_calling", "json": "json_mode"}
            chat.with_structured_output(city_class(), method=methods[what]).invoke(f"{QUESTION} JSON")


def haystack(what: str, url: str, model: str) -> None:
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.dataclasses import ChatMessage
    from haystack.tools import Tool
    from haystack.utils import Secret

    generator: Any = OpenAIChatGenerator(
        api_key=Secret.from_token("dummy"),
        model=model,
        api_base_url=f"{url}/v1",
        generation_kwargs={"max_tokens": 20},
        max_retries=0,
        tools=[Tool(name="weather", description="a", parameters=CITY, function=weather)] if what == "tools" else None,
        streaming_callback=(lambda chunk: None) if what == "stream" else None,
    )
    generator.run([ChatMessage.from_system("Be brief."), ChatMessage.from_user(QUESTION)])


def dspy(what: str, url: str, model: str) -> None:
    import dspy as package

    lm = package.LM(f"openai/{model}", api_base=f"{url}/v1", api_key="dummy", max_tokens=60, num_retries=0, cache=False)
    package.configure(lm=lm, adapter=package.JSONAdapter() if what == "json" else None)
    package.Predict("question -> answer")(question=QUESTION)


def smolagents(what: str, url: str, model: str) -> None:
    import smolagents as package

    options: Any = {"api_base": f"{url}/v1", "api_key": "dummy", "max_tokens": 60, "client_kwargs": {"max_retries": 0}}
    made = package.OpenAIServerModel(model_id=model, **options)
    kind = package.ToolCallingAgent if what == "tools" else package.CodeAgent
    kind(tools=[package.tool(weather)], model=made, max_steps=1).run(QUESTION)


def llama_index(what: str, url: str, model: str) -> None:
    from llama_index.core.llms import ChatMessage
    from llama_index.llms.openai_like import OpenAILike

    options: Any = {"api_base": f"{url}/v1", "api_key": "dummy", "max_tokens": 20, "max_retries": 0}
    made = OpenAILike(model=model, is_chat_model=what != "text", context_window=2048, **options)
    turns = [ChatMessage(role="user", content=QUESTION)]
    match what:
        case "text":
            made.complete("a")
        case "stream":
            list(made.stream_chat(turns))
        case "chat":
            made.chat(turns)


def agno(what: str, url: str, model: str) -> None:
    from agno.agent import Agent
    from agno.models.openai.like import OpenAILike

    made = OpenAILike(id=model, api_key="dummy", base_url=f"{url}/v1", max_tokens=40)
    Agent(model=made, tools=[weather], telemetry=False).run(QUESTION, stream=False)


# Client: its package, how it is asked, and for what.
ASKS: dict[str, tuple[str, Callable[[str, str, str], None], str]] = {
    "pydantic-ai": (
        "pydantic-ai-slim",
        pydantic_ai,
        "chat chat-tools chat-output chat-native chat-stream responses responses-tools messages messages-tools",
    ),
    "instructor": ("instructor", instructor, "tools json schema strict markdown messages"),
    "litellm": ("litellm", litellm, "chat effort stream messages responses text bridge"),
    "openai-agents": (
        "openai-agents",
        openai_agents,
        "chat chat-typed chat-handoff responses responses-typed responses-stream",
    ),
    "semantic-kernel": ("semantic-kernel", semantic_kernel, "chat tools stream"),
    "langchain": ("langchain-openai", langchain, "schema tools json responses messages agent"),
    "haystack": ("haystack-ai", haystack, "tools stream"),
    "dspy": ("dspy", dspy, "chat json"),
    "smolagents": ("smolagents", smolagents, "tools code"),
    "llama-index": ("llama-index-llms-openai-like", llama_index, "chat text stream"),
    "agno": ("agno", agno, "chat"),
}


def main() -> None:
    name, url, model = sys.argv[1:]
    os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENAI_API_KEY": "dummy", "ANTHROPIC_API_KEY": "dummy"}
    client, _, what = name.partition(":")
    ASKS[client][1](what, url, model)


if __name__ == "__main__":
    main()
