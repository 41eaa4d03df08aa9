"""Fields of requests that are fields of SamplingParams under the same names."""

from collections.abc import Mapping
from typing import Any

from karat.server.fields import GENERATING, TABLE

_NAMES = {route: frozenset(f.name for f in TABLE if f.samples and route in f.routes) for route in GENERATING}


def sampling_of(values: Mapping[str, Any], route: str) -> dict[str, Any]:
    """Those among the checked fields of a request to `route`, as SamplingParams takes them."""
    given = {name: value for name, value in values.items() if name in _NAMES[route]}
    if isinstance(bias := given.get("logit_bias"), list):  # llama.cpp's: [[token id, number], …]
        given["logit_bias"] = dict(bias)
    return given
