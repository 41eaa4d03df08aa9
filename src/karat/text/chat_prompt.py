"""A conversation as a model gets it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation that was rendered, once and by one clock: what is counted is what is answered.

    `text` shows a control token and the same letters as text alike; `token_ids` tell them apart.
    """

    text: str
    token_ids: tuple[int, ...]
