"""schemathesis asks what the OpenAPI document allows and what it forbids: no 500, and what is forbidden is refused."""

import json
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from karat.server.fields import RESPONSES
from karat.server.openapi import document
from tests.server.conftest import Running

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed (requirements/clients.txt)")

ROUTES = [path for path, methods in document()["paths"].items() if "post" in methods]
NUM_EXAMPLES = 100 if "KARAT_LONG" in os.environ else 12
LENGTHS = (
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "n",
    "ignore_eos",
    "min_tokens",
)  # what is right of them takes long


def asked(server: Running, route: str, mode: str) -> list[tuple[Any, int]]:
    """Bodies that schemathesis made, and how they were answered."""
    operation = schemathesis.openapi.from_dict(document())[route]["post"]
    answers: list[tuple[Any, int]] = []

    @settings(
        max_examples=NUM_EXAMPLES, suppress_health_check=list(HealthCheck), phases=[Phase.generate], database=None
    )
    @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode)))
    def ask(case: Any) -> None:
        body = case.body
        if mode == "positive":
            body = {name: value for name, value in body.items() if name not in LENGTHS}
            length = "max_output_tokens" if route == RESPONSES else "max_tokens"
            body |= {length: 1} if route.startswith("/v1/") else {}
        answer = server.ask(route, body if isinstance(body, bytes) else json.dumps(body).encode())
        assert answer.status < 500, (body, answer.content)
        if answer.status != 200:
            assert answer.json["error"]["type"] == "invalid_request_error"
        answers.append((body, answer.status))

    ask()
    return answers


@pytest.mark.drawn(4)
@pytest.mark.parametrize("route", ROUTES)
def test_what_the_document_allows_is_no_bug(server: Running, route: str) -> None:
    assert asked(server, route, "positive")


@pytest.mark.drawn(4)
@pytest.mark.parametrize("route", ROUTES)
def test_what_the_document_forbids_is_refused(server: Running, route: str) -> None:
    answers = asked(server, route, "negative")
    assert [body for body, status in answers if status < 400] == []
