"""Karat: an inference engine for language models whose answers can be trusted."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from karat.errors import KaratError
from karat.request import CompletionOutput, Logprob, RequestOutput, SamplingParams, StreamChunk

if TYPE_CHECKING:
    from karat.engine.llm import LLM

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "CompletionOutput",
    "KaratError",
    "Logprob",
    "RequestOutput",
    "SamplingParams",
    "StreamChunk",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """LLM is imported when it is first asked for: NumPy and the tokenizer take a while, and not every command runs."""
    if name == "LLM":
        return import_module("karat.engine.llm").LLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, LLM among them before it is imported."""
    return sorted(__all__)
