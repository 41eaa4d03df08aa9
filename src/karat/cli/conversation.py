"""The state of a chat, without input or output: the messages, and how answers are sampled."""

import json
from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, Self

from karat.errors import UsageError
from karat.request import SamplingParams, shown

# A chat gives one answer at a time, as text: these have no place in it.
_NOT_IN_CHAT = ("n", "logprobs", "prompt_logprobs", "explain")
SETTINGS = tuple(field.name for field in fields(SamplingParams) if field.name not in _NOT_IN_CHAT)


class Conversation:
    """The messages so far, and the sampling parameters that the user set.

    A user's message is here only together with its answer.
    """

    def __init__(self, system: str | None, settings: dict[str, Any]) -> None:
        self.system = system
        self.settings = settings
        self._turns: list[tuple[str, str]] = []

    @property
    def num_turns(self) -> int:
        return len(self._turns)

    def messages(self, user: str | None = None) -> list[dict[str, str]]:
        """All messages for the model; it answers `user`."""
        told = [] if self.system is None else [{"role": "system", "content": self.system}]
        for question, answer in self._turns:
            told += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        return told if user is None else [*told, {"role": "user", "content": user}]

    def add(self, user: str, answer: str) -> None:
        self._turns.append((user, answer))

    def clear(self) -> None:
        """Forget all messages; the system message and the settings stay."""
        self._turns.clear()

    def take_back(self) -> tuple[str, str]:
        """Removes the last message with its answer, and returns them. UsageError if there is none."""
        if not self._turns:
            raise UsageError("nothing was answered yet")
        return self._turns.pop()

    @classmethod
    def from_json(cls, content: object) -> Self:
        """A conversation from the JSON that /save wrote. UsageError and RequestError for anything else."""
        if not isinstance(content, Mapping) or not isinstance(content.get("messages"), list):
            raise UsageError("expected {'messages': […], 'settings': {…}}, as /save writes")
        messages, settings = list(content["messages"]), content.get("settings", {})
        for message in messages:
            if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
                raise UsageError(f"messages: {shown(message)}: expected {{'role': …, 'content': a text}}")
        system = messages.pop(0)["content"] if messages and messages[0].get("role") == "system" else None
        roles = [message.get("role") for message in messages]
        if roles != ["user", "assistant"] * (len(roles) // 2):
            raise UsageError("messages: expected those of a user and an assistant in turn, the last one an answer")
        if not isinstance(settings, Mapping) or not set(settings) <= set(SETTINGS):
            raise UsageError(f"settings={shown(settings)}: expected sampling parameters: {', '.join(SETTINGS)}")
        settings = {name: _plain(name, value) for name, value in settings.items()}
        SamplingParams(**settings)
        talk = cls(system, settings)
        for question, answer in zip(messages[::2], messages[1::2], strict=True):
            talk.add(question["content"], answer["content"])
        return talk

    def set(self, name: str, text: str) -> None:
        """Set a sampling parameter; `default` restores the model's. Raises UsageError, RequestError."""
        name = name.replace("-", "_")
        if name not in SETTINGS:
            close = get_close_matches(name, SETTINGS, 1)
            meant = f"did you mean {close[0]}? " if close else ""
            raise UsageError(f"/set {name}: no such parameter; {meant}there are {', '.join(SETTINGS)}")
        changed = {key: value for key, value in self.settings.items() if key != name}
        if text != "default":
            changed[name] = _value(name, text)
        SamplingParams(**changed)
        self.settings = changed


def _value(name: str, text: str) -> Any:
    """`text` read as JSON if it is JSON, else the text itself: 0.5, true, ["a", "b"], or a stop string without
    quotes.
    """
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if name in ("stop", "bad_words", "dry_sequence_breakers") and not isinstance(value, str | list):
        value = text
    return _plain(name, value)


def _plain(name: str, value: Any) -> Any:
    """A value of JSON, with token ids as keys: objects of JSON have no integers as keys."""
    if name == "logit_bias" and isinstance(value, dict):
        return {int(key) if key.isdecimal() else key: bias for key, bias in value.items()}
    return value
