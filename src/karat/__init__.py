"""Karat: an inference engine for language models whose answers can be trusted."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from karat.config import NUMERIC_CONTRACT, VERSION
from karat.errors import KaratError
from karat.explanation import Alternative, Explanation, Kept
from karat.request import SamplingParams, StructuredOutputs

if TYPE_CHECKING:
    from karat.engine.async_llm import AsyncLLM
    from karat.engine.llm import LLM
    from karat.engine.requests.request_updates import PromptProgress, RequestUpdate
    from karat.engine.stats import EngineStats
    from karat.outputs import CompletionOutput, Logprob, RequestOutput, StreamChunk, TokenLogprobs
    from karat.text.chat_prompt import ChatPrompt
    from karat.text.tools.events import ParsedAnswer, ToolCall

__version__ = VERSION

# Imported when they are first asked for: NumPy and the tokenizer take a while, and not every command runs.
_LAZY = {
    "LLM": "karat.engine.llm",
    "AsyncLLM": "karat.engine.async_llm",
    "ChatPrompt": "karat.text.chat_prompt",
    "ParsedAnswer": "karat.text.tools.events",
    "ToolCall": "karat.text.tools.events",
    "EngineStats": "karat.engine.stats",
    "PromptProgress": "karat.engine.requests.request_updates",
    "RequestUpdate": "karat.engine.requests.request_updates",
    **dict.fromkeys(("CompletionOutput", "Logprob", "RequestOutput", "StreamChunk", "TokenLogprobs"), "karat.outputs"),
}

__all__ = [
    "LLM",
    "NUMERIC_CONTRACT",
    "Alternative",
    "AsyncLLM",
    "ChatPrompt",
    "CompletionOutput",
    "EngineStats",
    "Explanation",
    "KaratError",
    "Kept",
    "Logprob",
    "ParsedAnswer",
    "PromptProgress",
    "RequestOutput",
    "RequestUpdate",
    "SamplingParams",
    "StreamChunk",
    "StructuredOutputs",
    "TokenLogprobs",
    "ToolCall",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, those among them that are not imported yet."""
    return sorted(__all__)
