"""ChatPrompt: a conversation as the model receives it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation, rendered once and with one clock, so that the counted tokens are the answered ones.

    `text` shows a control token and the same letters typed as text alike; `token_ids` differ.
    """

    text: str
    token_ids: tuple[int, ...]
