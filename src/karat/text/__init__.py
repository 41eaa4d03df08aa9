"""Text: tokenizers, chat templates, streaming detokenisation, and stop strings."""

from karat.text.chat_prompt import ChatPrompt
from karat.text.detokenizer import IncrementalDetokenizer
from karat.text.stop import StopMatcher, StopResult
from karat.text.tokenizer import Tokenizer

__all__ = ["ChatPrompt", "IncrementalDetokenizer", "StopMatcher", "StopResult", "Tokenizer"]
