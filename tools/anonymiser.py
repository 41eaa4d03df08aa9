"""Anonymiser: a request without its texts: names of fields, types and structure stay."""

import re
from typing import Any

_WORDS = frozenset(
    "24h adaptive all any assistant auto clear_thinking_20251015 default developer disabled ephemeral high low medium "
    "none reasoning.encrypted_content required system text user".split()
)  # of the protocols
_SCHEMAS = ("http://json-schema.org/", "https://json-schema.org/")
_IDS = ("id", "call_id", "tool_call_id", "tool_use_id")  # the same in a call and in its result
_INSIDE = "#/$defs/"
_KINDS = re.compile(r"[a-z_]{1,40}")  # of items, parts, tools and values in schemas


class Anonymiser:
    """Takes texts out of requests. Names are numbered in the order of their first use."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def of(self, value: Any, name: str = "", *, in_schema: bool = False) -> Any:
        """`value`, which stands under `name`; `in_schema` in the parameters of a tool."""
        if isinstance(value, dict):
            if name in ("properties", "$defs", "patternProperties") and in_schema:
                return {self._named(key): self.of(item, in_schema=True) for key, item in value.items()}
            if name in ("client_metadata", "metadata"):
                return {"PLACEHOLDER": "PLACEHOLDER"}
            inner = in_schema or name in ("parameters", "input_schema", "schema")
            return {key: self.of(item, key, in_schema=inner) for key, item in value.items()}
        if isinstance(value, list):
            return [self.of(item, name, in_schema=in_schema) for item in value]
        if not isinstance(value, str):
            return 0 if in_schema and not isinstance(value, bool | None) else value
        if name == "arguments" and not in_schema:
            return "{}"
        if name == "$ref" and in_schema and value.startswith(_INSIDE):
            return _INSIDE + self._named(value.removeprefix(_INSIDE))
        if name == "name" or (name in _IDS and not in_schema) or (in_schema and name in ("required", "enum", "const")):
            return self._named(value)
        is_word = name in ("role", "type") and _KINDS.fullmatch(value)
        is_kept = is_word or value in _WORDS or (name == "$schema" and value.startswith(_SCHEMAS))
        return value if is_kept else "PLACEHOLDER"

    def _named(self, name: str) -> str:
        return self._names.setdefault(name, f"p{len(self._names)}")
