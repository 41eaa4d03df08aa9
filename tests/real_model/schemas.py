"""JSON Schemas for structured outputs: fifty written by hand, each of another kind, and any number at random."""

import random
from typing import Any

Schema = dict[str, Any]


def thing(required: list[str] | None = None, /, **parts: Schema) -> Schema:
    """An object of these parts and no others; all are required unless `required` says which."""
    names = list(parts) if required is None else required
    return {"type": "object", "properties": parts, "required": names, "additionalProperties": False}


def text(most: int = 12, **others: Any) -> Schema:
    return {"type": "string", "maxLength": most, **others}


def number(low: int = 0, high: int = 100, **others: Any) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high, **others}


def several(item: Schema, most: int = 3, **others: Any) -> Schema:
    return {"type": "array", "items": item, "maxItems": most, **others}


YES: Schema = {"type": "boolean"}
NOTHING: Schema = {"type": "null"}
TREE: Schema = {
    "$defs": {
        "node": thing(["name"], name=text(6), left={"$ref": "#/$defs/leaf"}, right={"$ref": "#/$defs/leaf"}),
        "leaf": thing(name=text(6), size=number()),
    },
    "$ref": "#/$defs/node",
}

BY_HAND: tuple[Schema, ...] = (
    YES,
    NOTHING,
    number(-5, 5),
    number(0, 23),
    {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 1000},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "number", "multipleOf": 0.25, "minimum": -2, "maximum": 2},
    number(10, 9990, multipleOf=10),
    text(20),
    text(8, minLength=3),
    {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
    {"type": "string", "pattern": "^(red|green|blue)( light| dark)?$"},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "time"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "ipv4"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "email", "maxLength": 30},
    {"enum": ["spring", "summer", "autumn", "winter"]},
    {"enum": [1, 2.5, None, True, "five", [6], {"seven": 7}]},
    {"enum": ["é", "日本", '"quoted"', "back\\slash", "line\nend", "🙂"]},
    {"const": {"kind": "fixed", "list": [1, 2, 3]}},
    {"type": ["string", "null"], "maxLength": 5},
    {"type": ["integer", "boolean"], "minimum": 0, "maximum": 9},
    several(YES),
    several(number(), 4, minItems=2),
    several(several(number(0, 9), 2), 3, minItems=1),
    {"type": "array", "prefixItems": [text(5), number(), YES], "items": False, "minItems": 3},
    {"type": "array", "prefixItems": [{"const": "head"}], "items": number(0, 9), "maxItems": 4, "minItems": 1},
    several({"enum": ["a", "b"]}, 5, minItems=5),
    thing(name=text(), age=number()),
    thing(["name"], name=text(), age=number(), alive=YES),
    thing([], one=YES, two=YES),
    thing(outer=thing(inner=thing(core=number()))),
    thing(point=thing(x=number(-9, 9), y=number(-9, 9)), label=text(6)),
    thing(items=several(thing(sku={"type": "string", "pattern": "^[0-9]{5}$"}, count=number(1, 9)), 2)),
    thing(status={"enum": ["ok", "failed"]}, code={"anyOf": [number(), NOTHING]}),
    {"anyOf": [number(), text(6)]},
    {"anyOf": [thing(kind={"const": "circle"}, r=number()), thing(kind={"const": "square"}, side=number())]},
    {"oneOf": [number(0, 9), text(4)]},
    {"allOf": [{"type": "integer", "minimum": 0}, {"maximum": 50}]},
    {"allOf": [thing(a=YES, b=number())]},
    {"type": "object", "additionalProperties": number(0, 9), "maxProperties": 3},
    {
        "type": "object",
        "properties": {"id": number()},
        "required": ["id"],
        "additionalProperties": YES,
        "maxProperties": 3,
    },
    {"type": "object", "patternProperties": {"^k[0-9]$": YES}, "additionalProperties": False, "maxProperties": 2},
    TREE,
    {"$defs": {"list": several({"anyOf": [number(0, 9), {"$ref": "#/$defs/list"}]}, 2)}, "$ref": "#/$defs/list"},
    thing(**{"a key": YES, "clé": NOTHING, 'quote"d': number()}),
    thing(title=text(10, title="A title", description="What it is called.", examples=["a"], default="b"), done=YES),
    thing(
        when={"type": "string", "format": "date"},
        who=several(text(5), 2),
        where={"anyOf": [text(6), NOTHING]},
        sure={"type": "number", "minimum": 0, "maximum": 1},
    ),
)


def at_random(rng: random.Random, depth: int = 3) -> Schema:
    """A schema of at most `depth` levels."""
    leaves = [
        lambda: number(low := rng.randint(-1000, 1000), low + rng.randint(0, 2000)),
        lambda: {"type": "number", "minimum": rng.randint(-9, 0), "maximum": rng.randint(1, 99)},
        lambda: {"type": "integer", "minimum": 0, "maximum": 400, "multipleOf": rng.choice([2, 5, 7, 20])},
        lambda: text(rng.randint(0, 16)),
        lambda: text(rng.randint(6, 16), minLength=rng.randint(1, 6)),
        lambda: {
            "type": "string",
            "pattern": f"^[{rng.choice(['a-f', 'A-Z', '0-9', 'xyz ', 'é-ü'])}]{{1,{rng.randint(1, 9)}}}$",
        },
        lambda: {"type": "string", "format": rng.choice(["date", "time", "date-time", "ipv4", "ipv6", "uuid"])},
        lambda: {"enum": rng.sample(["a", "bc", "", "é\n", 0, -1, 2.5, None, True, [], {"k": 1}], rng.randint(1, 5))},
        lambda: {"const": rng.choice(["x", 12, None, [1, "two"], {"a": {"b": []}}])},
        lambda: {"type": rng.sample(["boolean", "null"], rng.randint(1, 2))},
    ]
    if depth <= 1 or rng.random() < 0.25:
        return rng.choice(leaves)()
    names = rng.sample(["id", "name", "kind", "a b", "ünï", "x-1", "list", 'q"q'], rng.randint(1, 4))
    kind = rng.random()
    if kind < 0.55:
        return thing([n for n in names if rng.random() < 0.7], **{n: at_random(rng, depth - 1) for n in names})
    if kind < 0.75:
        least = rng.randint(0, 2)
        return several(at_random(rng, depth - 1), least + rng.randint(0, 2), minItems=least)
    if kind < 0.85:
        first = [at_random(rng, 1) for _ in range(rng.randint(1, 3))]
        return {"type": "array", "prefixItems": first, "items": False, "minItems": rng.randint(0, len(first))}
    if kind < 0.95:
        return {"anyOf": [at_random(rng, depth - 1) for _ in range(rng.randint(2, 3))]}
    return {"type": "object", "additionalProperties": at_random(rng, 1), "maxProperties": 2}
