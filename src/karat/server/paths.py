"""usual_path: the route that a client means, where it writes its path in another way; and what other servers have."""

import re

from karat.server.fields import COMPARE, VERIFY
from karat.server.page.files import PREFIX
from karat.server.protocols import PROTOCOLS

_V1 = "/v1"
_MODELS = "/models"
_ANSWERING = [route for protocol in PROTOCOLS for route, _ in protocol.answers]
_ROUTES = {route.removeprefix(_V1) for route in (*_ANSWERING, VERIFY, COMPARE, _V1 + _MODELS)}
_ALONE = ("/health", "/ready", "/metrics", "/version")  # of the server itself, also with /v1 before them
_NONE_YET = "embeddings and scores of texts are not there yet"
_OF_OTHERS = {  # routes of llama.cpp, vLLM and Ollama, without /v1
    **dict.fromkeys(("/completion", "/generate", "/api/generate"), "use /v1/completions"),
    "/api/chat": "use /v1/chat/completions",
    **dict.fromkeys(("/embedding", "/embeddings", "/api/embed", "/rerank", "/reranking", "/score"), _NONE_YET),
    **dict.fromkeys(
        ("/props", "/slots", "/api/tags", "/api/show"),
        "/v1/models and /metrics say what is served, and /render what a template makes",
    ),
    "/apply-template": "use /render",
    "/infill": "a text is continued at its end alone",
}
_SLASHES = re.compile("//+")


def usual_path(path: str) -> str:
    """The path with one slash where there are several, none at the end, and `/v1` once where it is missing or doubled.

    So a client's base URL may end in `/v1`, `/v1/` or nothing. Every other path stays as it is.
    """
    if path.startswith(PREFIX):
        return path
    path = _SLASHES.sub("/", path).rstrip("/") or "/"
    while path.startswith(f"{_V1}{_V1}/"):
        path = path.removeprefix(_V1)
    if path in _ROUTES or path.startswith(f"{_MODELS}/"):
        return _V1 + path
    return path.removeprefix(_V1) if path.removeprefix(_V1) in _ALONE else path


def advice_on(path: str) -> str:
    """What to ask in the place of a route that is not there."""
    return _OF_OTHERS.get(path.removeprefix(_V1), "GET /docs lists the routes")
