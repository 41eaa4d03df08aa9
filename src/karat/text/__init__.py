"""Text: tokens, chat templates, streaming text out of tokens, and stop strings."""

from karat.text.chat_template import ChatTemplate
from karat.text.detokenizer import IncrementalDetokenizer
from karat.text.stop import StopMatcher, StopResult
from karat.text.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "IncrementalDetokenizer", "StopMatcher", "StopResult", "Tokenizer"]
