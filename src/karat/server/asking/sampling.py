"""Fields of requests that are fields of SamplingParams under the same names."""

from collections.abc import Mapping
from typing import Any

from karat.server.bodies import Body
from karat.server.errors import invalid
from karat.server.fields import GENERATING, TABLE

_NAMES = {route: frozenset(f.name for f in TABLE if f.samples and route in f.routes) for route in GENERATING}


def sampling_of(values: Mapping[str, Any], route: str) -> dict[str, Any]:
    """Those among the checked fields of a request to `route`, as SamplingParams takes them."""
    return {name: value for name, value in values.items() if name in _NAMES[route]}


def require_length(body: Body, *names: str) -> None:
    """400 for an answer of no tokens."""
    for name in names:
        if body.values.get(name) == 0:
            sent = body.sent(name)
            raise invalid(sent, f"{sent}=0: expected 1 or more, or -1 for as many as there is room for")
