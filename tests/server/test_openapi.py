"""The OpenAPI document has the routes, the fields and the answers."""

import json

from karat.server.fields import CHAT, TEXT, fields_of
from karat.server.openapi import document


def test_the_document_is_whole() -> None:
    made = json.loads(json.dumps(document()))
    assert made["openapi"] == "3.1.0" and {CHAT, TEXT, "/v1/models", "/metrics"} <= made["paths"].keys()
    schemas = made["components"]["schemas"]
    assert {"ChatCompletion", "ChatChunk", "TextCompletion", "ErrorBody", "Usage"} <= schemas.keys()
    for route in (CHAT, TEXT):
        body = made["paths"][route]["post"]["requestBody"]["content"]["application/json"]["schema"]
        taken = {field.name for field in fields_of(route).values() if field.kind != "refused"}
        assert body["properties"].keys() == taken and body["additionalProperties"] == {"type": "null"}


def test_every_reference_leads_somewhere() -> None:
    made = document()
    text = json.dumps(made)
    names = {part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]}
    assert names and names <= made["components"]["schemas"].keys()
