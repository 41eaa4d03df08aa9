"""Paths as clients write them: the route that is meant, and every other path as it was."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.server.fields import ANTHROPIC, CHATTING, COMPARE, TEXT, VERIFY
from karat.server.paths import advice_on, usual_path

ROUTES = [*CHATTING, *ANTHROPIC, TEXT, VERIFY, COMPARE, "/v1/models", "/v1/models/org/name"]


@pytest.mark.parametrize("route", ROUTES)
@given(
    before=st.sampled_from(["/", "//", "/v1/", "//v1/", "/v1/v1/", "/v1//v1/"]), after=st.sampled_from(["", "/", "//"])
)
def test_a_route_is_found(route: str, before: str, after: str) -> None:
    assert usual_path(before + route.removeprefix("/v1/") + after) == route


@pytest.mark.parametrize("path", ["/v1/health", "//v1/health/", "/health", "/v1/v1/health"])
def test_health_with_v1_before_it(path: str) -> None:
    assert usual_path(path) == "/health"


@pytest.mark.parametrize(
    "path",
    ["/", "/v1", "/health", "/metrics", "/docs", "/tokenize", "/v2/models", "/nothing", "/page/main.js", "/v1/nothing"],
)
def test_others_stay(path: str) -> None:
    assert usual_path(path) == path


@given(st.text("/v1models.", max_size=20).map("/".__add__))
def test_it_settles_at_once(path: str) -> None:
    once = usual_path(path)
    assert usual_path(once) == once and once.startswith("/")


def test_routes_of_other_servers_have_an_answer() -> None:
    assert advice_on("/completion") == "use /v1/completions"
    assert advice_on("/v1/embeddings") == advice_on("/rerank") == "embeddings and scores of texts are not there yet"
    assert advice_on("/nothing") == "GET /docs lists the routes"
