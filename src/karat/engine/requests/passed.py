"""Passed: keys of messages, calls and tools that no model is shown. They cannot change an answer, so they are named.

A key that is null, zero, false or empty is none. A key that would show the model something is never passed over: it is
refused by its name.
"""

from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import quote

from karat.errors import RequestError
from karat.request import shown

MAX_PASSED, MAX_NAME = 32, 40  # names that are told, as a header has limits, and characters of one
# What a message or a part would hold for the model to see or hear, in any protocol, and calls of other forms.
SEEN_IN_MESSAGES = frozenset(
    "attachments audio audio_url contents document documents experimental_attachments file file_data file_id file_ids "
    "file_url files function_call functionCall functionResponse image image_file image_url images inline_data "
    "inlineData input input_audio input_file input_image multi_modal_data output parts source text tool_call "
    "tool_calls tool_responses tool_results toolInvocations tool_use video video_url videos".split()
)
# What a tool would tell the model of itself.
SEEN_IN_TOOLS = frozenset(
    "custom description format function input_schema inputSchema json_schema name parameters parametersJsonSchema "
    "properties required schema strict".split()
)
_JSON = (str, bool, int, float, list, tuple, dict)


class Passed:
    """The keys that were passed over, by the names that users are told: `messages.KEY`."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._names)

    def note(self, name: str) -> None:
        """One more name, but for those after the first MAX_PASSED."""
        if len(self._names) < MAX_PASSED:
            self._names[name] = None

    def key(self, group: str, name: object) -> None:
        """As `note`, for a key of a group, whose name clients chose."""
        self.note(f"{group}.{quote(str(name)[:MAX_NAME], safe='')}")

    def over(
        self,
        given: Mapping[str, Any],
        known: Collection[str],
        where: str,
        group: str = "messages",
        seen: Collection[str] = SEEN_IN_MESSAGES,
    ) -> None:
        """Pass over the keys of `given` that are not `known`: they are noted, but for ids.

        RequestError for one of `seen`. `where` is the place of `given` in the request.
        """
        for name, value in given.items():
            if name in known or is_nothing(value):
                continue
            if name in seen:
                text = f"{where} has {shown(name)}={shown(value)}, which the model would not be shown"
                raise RequestError(
                    f"{text}; expected {', '.join(sorted(known))}",
                    param=f"{where}.{name}"[:200],
                )
            if name != "id":
                self.key(group, name)


def is_nothing(value: object) -> bool:
    """Whether the value of a key says no more than if the key were left out."""
    return value is None or (isinstance(value, _JSON) and not value)


def stated(given: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that are not null."""
    return {name: value for name, value in given.items() if value is not None}
