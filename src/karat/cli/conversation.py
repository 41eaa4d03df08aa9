"""The state of a chat, without any input or output: who said what, and how answers are sampled."""

import json
from dataclasses import fields
from typing import Any

from karat.errors import UsageError
from karat.request import SamplingParams

# One answer at a time, and shown as text: these have no place in a chat.
_NOT_IN_CHAT = ("n", "logprobs", "prompt_logprobs")
SETTINGS = tuple(field.name for field in fields(SamplingParams) if field.name not in _NOT_IN_CHAT)


class Conversation:
    """Messages that took part so far, and the sampling parameters that the user set.

    A user's message is in it only together with its answer: what was not answered was not said.
    """

    def __init__(self, system: str | None, settings: dict[str, Any]) -> None:
        self.system = system
        self.settings = settings
        self._turns: list[tuple[str, str]] = []

    @property
    def num_turns(self) -> int:
        return len(self._turns)

    def messages(self, user: str | None = None) -> list[dict[str, str]]:
        """All that a model is given, `user` being what it should answer."""
        told = [] if self.system is None else [{"role": "system", "content": self.system}]
        for question, answer in self._turns:
            told += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        return told if user is None else [*told, {"role": "user", "content": user}]

    def add(self, user: str, answer: str) -> None:
        self._turns.append((user, answer))

    def clear(self) -> None:
        """Forgets what was said; the system message and the settings stay."""
        self._turns.clear()

    def take_back(self) -> tuple[str, str]:
        """Removes the last message with its answer, and returns them. UsageError if there is none."""
        if not self._turns:
            raise UsageError("nothing was answered yet")
        return self._turns.pop()

    def set(self, name: str, text: str) -> None:
        """Sets a sampling parameter, or with `default` gives it back to the model. UsageError, RequestError."""
        name = name.replace("-", "_")
        if name not in SETTINGS:
            raise UsageError(f"/set {name}: no such parameter; there are {', '.join(SETTINGS)}")
        changed = {key: value for key, value in self.settings.items() if key != name}
        if text != "default":
            changed[name] = _value(name, text)
        SamplingParams(**changed)
        self.settings = changed


def _value(name: str, text: str) -> Any:
    """`text` as JSON if it is that, else as it stands: 0.5, true, ["a", "b"], and a stop string without quotes."""
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if name == "stop" and not isinstance(value, str | list):
        value = text
    if name == "logit_bias" and isinstance(value, dict):
        value = {int(key) if key.isdecimal() else key: bias for key, bias in value.items()}
    return value
