"""The inner form of requests, which every protocol is converted to: prompts and parameters."""

import secrets
from dataclasses import dataclass

from karat.engine.intake import Prompt
from karat.engine.verifying import ReceiptWish
from karat.request import Resume, SamplingParams
from karat.text.chat_prompt import ChatPrompt

MAX_DRAWN_SEED = 2**53  # every JSON reader keeps integers below it


@dataclass(frozen=True, slots=True)
class Ask:
    """One prompt for the engine, as token ids or a rendered conversation, with all defaults resolved."""

    prompt: tuple[int, ...] | ChatPrompt
    params: SamplingParams
    text: str | None = None  # that the token ids are of

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.prompt.token_ids if isinstance(self.prompt, ChatPrompt) else self.prompt

    @property
    def as_given(self) -> Prompt:
        """The prompt for the engine."""
        if self.text is None or isinstance(self.prompt, ChatPrompt):
            return self.prompt
        return {"prompt_token_ids": self.prompt, "prompt": self.text}


@dataclass(frozen=True, slots=True)
class Work:
    """The prompts of one HTTP request, with their common seed, priority and salt."""

    asks: tuple[Ask, ...]
    seed: int
    priority: int = 0
    salt: str | None = None
    receipt: ReceiptWish = False
    resume: Resume | None = None


def drawn_seed() -> int:
    """A seed from the system's randomness."""
    return secrets.randbelow(MAX_DRAWN_SEED)
