"""Answers and events of /v1/responses against the types of the Open Responses specification, strictly."""

from typing import Any

import pydantic
import pytest

from karat.server.fields import RESPONSES
from tests.server.conftest import Running
from tests.server.openai.test_responses import GIVEN, events_of

types = pytest.importorskip(
    "openresponses_types", reason="openresponses-types is not installed (requirements/clients.txt)"
)

EVENTS = {  # those that Karat has
    "response.created": "ResponseCreated",
    "response.in_progress": "ResponseInProgress",
    "response.completed": "ResponseCompleted",
    "response.incomplete": "ResponseIncomplete",
    "response.output_item.added": "ResponseOutputItemAdded",
    "response.output_item.done": "ResponseOutputItemDone",
    "response.content_part.added": "ResponseContentPartAdded",
    "response.content_part.done": "ResponseContentPartDone",
    "response.output_text.delta": "ResponseOutputTextDelta",
    "response.output_text.done": "ResponseOutputTextDone",
}


def check(server: Running, body: dict[str, Any]) -> set[str]:
    """Validate a whole answer and all events; the types of the events."""
    whole = server.ask(RESPONSES, body)
    assert whole.status == 200, whole.content
    types.ResponseResource.model_validate_json(whole.content, strict=True)
    kinds = set()
    for event in events_of(server.ask(RESPONSES, body | {"stream": True})):
        kinds.add(event["type"])
        if event["type"] in EVENTS:
            kind: type[pydantic.BaseModel] = getattr(types, f"{EVENTS[event['type']]}StreamingEvent")
            kind.model_validate_json(pydantic.TypeAdapter(dict).dump_json(event), strict=True)
    return kinds


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"stop": ["e", "a"], "max_output_tokens": 64},
        {"explain": True, "presence_penalty": 0.5},
        {"text": {"format": {"type": "json_object"}}, "metadata": {"a": "b"}, "instructions": "Be kind."},
    ],
)
def test_texts(server: Running, given: dict[str, Any]) -> None:
    kinds = check(server, GIVEN | given)
    assert kinds <= EVENTS.keys() and "response.output_text.delta" in kinds
