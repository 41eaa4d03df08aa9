"""make_app: the ASGI app with its routes, behind the gate."""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from time import time
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from karat import __version__
from karat.engine.stats import EngineStats
from karat.server import schema
from karat.server.answering import Answering
from karat.server.bodies import read_body
from karat.server.errors import ApiError
from karat.server.fields import COMPARE, DETOKENIZE, RENDER, TOKENIZE, VERIFY, fields_of
from karat.server.gate import Gate
from karat.server.keeper import Keeper
from karat.server.metrics import Metrics
from karat.server.openai.requests import read_conversation
from karat.server.openapi import document
from karat.server.page.files import DOCS, PREFIX, ROOT, Page
from karat.server.protocols import COUNTINGS, PROTOCOLS
from karat.server.receipts import Receipts
from karat.server.responses import JsonBytes, read_with, until_left
from karat.server.settings import ServerSettings
from karat.server.state import ServerState
from karat.text.chat_prompt import ChatPrompt


def make_app(keeper: Keeper, settings: ServerSettings, state: ServerState) -> ASGIApp:
    """The ASGI app of a server."""
    metrics = Metrics(settings.model_names[0])
    answering, tools = Answering(keeper, settings, metrics), _Tools(keeper, settings)
    facts, page, receipts = _Facts(keeper, settings, state, metrics), Page(), Receipts(keeper, settings)
    routes = [
        *(Route(protocol.route, answering.answers(protocol), methods=["POST"]) for protocol in PROTOCOLS),
        *(Route(each.route, answering.counts(each), methods=["POST"]) for each in COUNTINGS),
        Route("/v1/models", facts.models),
        Route("/v1/models/{name:path}", facts.model),
        Route(TOKENIZE, tools.tokenize, methods=["POST"]),
        Route(DETOKENIZE, tools.detokenize, methods=["POST"]),
        Route(RENDER, tools.render, methods=["POST"]),
        Route(VERIFY, receipts.verify, methods=["POST"]),
        Route(COMPARE, receipts.compare, methods=["POST"]),
        Route("/health", facts.health),
        Route("/ready", facts.ready),
        Route("/metrics", facts.metrics),
        Route("/version", facts.version),
        Route("/openapi.json", facts.openapi),
        Route(DOCS, page.docs),
        Route(ROOT, page.answer),
        Route(PREFIX + "{name}", page.answer),
    ]
    router = Router(routes, redirect_slashes=False)

    async def routed(scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = router  # so that a wrong method or path is raised, for the gate to say
        await router(scope, receive, send)

    return Gate(routed, settings, state)


class _Tools:
    """The routes for tokens and prompts, which compute no answer."""

    def __init__(self, keeper: Keeper, settings: ServerSettings) -> None:
        self._keeper = keeper
        self._settings = settings

    async def tokenize(self, request: Request) -> ASGIApp:
        """The tokens of a text, or of the prompt that `render` makes of a conversation."""
        values = await self._read(request, TOKENIZE)
        llm = self._keeper.llm
        if ("prompt" in values) == ("messages" in values):
            raise ApiError(400, "expected one of prompt and messages; send the one to count", param="prompt")
        if "messages" in values:
            ids = list((await self._rendered(request, values)).token_ids)
        else:
            asking = llm.tokenize(values["prompt"], add_special_tokens=values.get("add_special_tokens", True))
            ids = await until_left(request, asking)
        texts = [llm.tokenizer.id_to_token(i) for i in ids] if values.get("return_token_strs") else None
        return _json(schema.Tokenized(ids, len(ids), llm.max_model_len, texts))

    async def detokenize(self, request: Request) -> ASGIApp:
        values = await self._read(request, DETOKENIZE)
        llm = self._keeper.llm
        asking = llm.detokenize(values["tokens"], skip_special_tokens=values.get("skip_special_tokens", True))
        text = await until_left(request, asking)
        return _json(schema.Detokenized(text, text))

    async def render(self, request: Request) -> ASGIApp:
        values = await self._read(request, RENDER)
        prompt = await self._rendered(request, values)
        ids = list(prompt.token_ids)
        return _json(schema.Rendered(prompt.text, ids, len(ids), self._keeper.llm.max_model_len))

    async def _read(self, request: Request, route: str) -> Mapping[str, Any]:
        body = await read_with(request, self._settings.limits, partial(read_body, fields=fields_of(route)))
        await self._keeper.loaded(request)
        return body.values

    async def _rendered(self, request: Request, values: Mapping[str, Any]) -> ChatPrompt:
        llm, asked = self._keeper.llm, read_conversation(values)
        asked.tools.check(await until_left(request, llm.dialect()))
        return await until_left(request, llm.render(asked.messages, **asked.rendering(asked.variables)))


class _Facts:
    """The routes on the server itself: models, health, metrics."""

    def __init__(self, keeper: Keeper, settings: ServerSettings, state: ServerState, metrics: Metrics) -> None:
        self._keeper = keeper
        self._settings = settings
        self._state = state
        self._metrics = metrics
        self._begun = int(time())

    async def models(self, request: Request) -> ASGIApp:
        await self._keeper.loaded(request)
        return _json(schema.Models([self._model(name) for name in self._settings.model_names]))

    async def model(self, request: Request) -> ASGIApp:
        name = request.path_params["name"]
        if name not in self._settings.model_names:
            raise ApiError(404, f"there is no model {name[:80]!r} here", param="model", code="model_not_found")
        await self._keeper.loaded(request)
        return _json(self._model(name))

    async def health(self, request: Request) -> ASGIApp:
        """200 while the server works, also while it loads the model (requests that come then wait for it) or drains
        requests; 503 after the engine died.
        """
        if self._keeper.has_died:
            return _json(schema.Health("the engine died and is started again"), 503)
        return _json(schema.Health("ok"))

    async def ready(self, request: Request) -> ASGIApp:
        """Whether a request would be computed now, and not wait for the model."""
        if self._state.draining:
            return _json(schema.Health("ending"), 503)
        with suppress(ApiError):
            self._keeper.llm  # noqa: B018 - whether there is one
            return _json(schema.Health("ready"))
        return _json(schema.Health("not ready: no engine yet"), 503)

    async def metrics(self, request: Request) -> ASGIApp:
        device = None
        with suppress(ApiError):
            device = self._keeper.llm.device
        page = self._metrics.page(await gauges_of(self._keeper, self._state), device)
        return JsonBytes(page, headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"})

    async def version(self, request: Request) -> ASGIApp:
        return _json(schema.Version(__version__))

    async def openapi(self, request: Request) -> ASGIApp:
        return JsonBytes(msgspec.json.encode(document()))

    def _model(self, name: str) -> schema.ModelCard:
        llm = self._keeper.llm
        names = schema.SamplingDefaults.__struct_fields__
        defaults = schema.SamplingDefaults(*(getattr(llm.default_params, name) for name in names))
        return schema.ModelCard(
            name, self._begun, llm.max_model_len, schema.ModelFacts(defaults, llm.activations, llm.comparable)
        )


async def gauges_of(keeper: Keeper, state: ServerState) -> dict[str, tuple[str, float]]:
    """The engine's counters now; the server's alone while there is no engine."""
    gauges: dict[str, tuple[str, float]] = {
        "karat_http_requests_busy": ("HTTP requests under way", state.num_busy),
        "karat_log_lines_lost": ("Lines of the log that stderr did not take, so far", state.num_lost_lines()),
    }
    with suppress(ApiError):
        stats = await keeper.llm.stats()
        gauges |= {
            "karat_sequences_running": ("Choices that are computed", stats.num_running),
            "karat_sequences_waiting": ("Choices that wait", stats.num_waiting),
            "karat_kv_blocks": ("Blocks of the KV cache", stats.num_blocks),
            "karat_kv_blocks_used": ("Of these, those held by running choices", stats.num_blocks_used),
            "karat_kv_cache_usage_ratio": (
                "Share of the KV cache's blocks that running choices hold",
                stats.num_blocks_used / stats.num_blocks if stats.num_blocks else 0.0,
            ),
            "karat_preemptions": ("Choices that gave their blocks to others, so far", stats.num_preemptions),
            "karat_prefix_cache_queries": ("Tokens looked for in the prefix cache, so far", stats.prefix_queries),
            "karat_prefix_cache_hits": ("Tokens found there, so far", stats.prefix_hits),
            **(_state_gauges(stats) if stats.state_bytes else {}),
            "karat_steps": ("Steps, so far", stats.num_steps),
            "karat_tokens_generated": ("Tokens generated, so far", stats.num_generated_tokens),
        }
    return gauges


def _state_gauges(stats: EngineStats) -> dict[str, tuple[str, float]]:
    """Of a model whose layers keep a state of each sequence."""
    return {
        "karat_state_bytes": ("Memory of states, of running choices and of those kept", stats.state_bytes),
        "karat_state_snapshots": ("States kept for later prompts", stats.num_snapshots),
        "karat_state_snapshots_most": ("As many are kept at most", stats.max_snapshots),
        "karat_prefix_cache_stateless": (
            "Tokens found in the prefix cache without a state after them, and so computed again, so far",
            stats.prefix_stateless,
        ),
    }


def _json(answer: msgspec.Struct, status: int = 200) -> JsonBytes:
    return JsonBytes(msgspec.json.encode(answer), status)
