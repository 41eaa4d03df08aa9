"""The OpenAPI document, made from the table of fields and the structs of answers."""

from collections.abc import Mapping
from typing import Any

import msgspec

from karat import __version__
from karat.server import schema
from karat.server.fields import COMPARE, DETOKENIZE, RENDER, TOKENIZE, VERIFY, Field, fields_of
from karat.server.protocols import PROTOCOLS, errors_at

_REF = "#/components/schemas/{name}"
ANSWERS: Mapping[str, tuple[str, type]] = {  # route -> method and answer
    **{route: ("post", answer) for protocol in PROTOCOLS for route, answer in protocol.answers},
    VERIFY: ("post", schema.Verified),
    COMPARE: ("post", schema.Compared),
    "/v1/models": ("get", schema.Models),
    "/v1/models/{model}": ("get", schema.ModelCard),
    TOKENIZE: ("post", schema.Tokenized),
    DETOKENIZE: ("post", schema.Detokenized),
    RENDER: ("post", schema.Rendered),
    "/health": ("get", schema.Health),
    "/ready": ("get", schema.Health),
    "/version": ("get", schema.Version),
}
_EVENTS: Mapping[str, tuple[type, ...]] = {protocol.route: protocol.event_types for protocol in PROTOCOLS}
_ERRORS = {
    "400": "A request that cannot be served as asked",
    "401": "No key, or a wrong one",
    "403": "A foreign Host or Origin",
    "404": "No such model or route",
    "405": "Another method",
    "408": "The body did not come in time",
    "413": "The body is too large",
    "500": "A bug, or numbers that went wrong",
    "503": "Too much load, or the server is ending",
}


def document() -> dict[str, Any]:
    """The document as JSON values."""
    events = [event for kinds in _EVENTS.values() for event in kinds]
    structs = [
        *(answer for _, answer in ANSWERS.values()),
        *events,
        *{protocol.errors.struct: None for protocol in PROTOCOLS},
    ]
    _, components = msgspec.json.schema_components(structs, ref_template=_REF)
    paths: dict[str, Any] = {}
    for route, (method, answer) in ANSWERS.items():
        content: dict[str, Any] = {"application/json": {"schema": _ref(answer)}}
        if route in _EVENTS:
            content["text/event-stream"] = {"schema": {"anyOf": [_ref(event) for event in _EVENTS[route]]}}
        operation: dict[str, Any] = {
            "operationId": f"{method} {route}",
            "responses": {"200": {"description": "The answer", "content": content}} | _errors(route),
        }
        if method == "post":
            body = {"application/json": {"schema": request_schema(route)}}
            operation["requestBody"] = {"required": True, "content": body}
        if "{model}" in route:
            place = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
            operation["parameters"] = [place]
        paths[route] = {method: operation}
    paths["/metrics"] = {"get": {"operationId": "get /metrics", "responses": {"200": {"description": "Prometheus"}}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Karat", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{}, {"key": []}, {"x-api-key": []}],
    }


def request_schema(route: str) -> dict[str, Any]:
    """JSON Schema of a route's body, with the fields that are not refused. Others are allowed with null alone."""
    fields = fields_of(route)
    taken = [field for field in fields.values() if field.kind != "refused"]
    return {
        "type": "object",
        "properties": {field.name: _property(field) for field in taken},
        "required": [field.name for field in taken if field.required],
        "additionalProperties": {"type": "null"},
    }


def _property(field: Field) -> dict[str, Any]:
    kind = msgspec.json.schema(field.type)
    described: dict[str, Any] = {"description": field.text}
    if field.kind == "without effect":
        described["x-karat-without-effect"] = True
    return described | (kind if field.required else {"anyOf": [kind, {"type": "null"}]})


def _ref(struct: type) -> dict[str, str]:
    return {"$ref": _REF.format(name=struct.__name__)}


def _errors(route: str) -> dict[str, Any]:
    body = errors_at(route).struct
    content = {"application/json": {"schema": _ref(body)}}
    return {status: {"description": text, "content": content} for status, text in _ERRORS.items()}
