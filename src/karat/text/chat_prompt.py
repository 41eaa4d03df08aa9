"""ChatPrompt: a conversation as the model receives it."""

from dataclasses import dataclass

INSTRUCTING = ("system", "developer")  # roles of instructions
# Keys for the reasoning before an answer. Templates read the first; gpt-oss reads the second; older servers send the
# third.
REASONING = ("reasoning_content", "thinking", "reasoning")


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation, rendered once and with one clock, so that the counted tokens are the answered ones.

    `text` shows a control token and the same letters typed as text alike; `token_ids` differ. `begun` is the text of
    the message that the answer goes on with, if it does. `cache_point` is the number of tokens that the conversation's
    next prompt will begin with, too (karat.text.cache_point); None: it was not asked for, or is not known.
    """

    text: str
    token_ids: tuple[int, ...]
    begun: str | None = None
    cache_point: int | None = None
