"""Nodes with mistakes: made with their parameters checked, and evaluated.

The modules imported here register all wrong arithmetic.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from karat.check.mistakes import (
    attention,
    block,
    cache,
    embedding,
    experts,
    linear,
    narrow,
    norm,
    recurrence,
    result,
    rope,
)
from karat.check.mistakes.registry import MISTAKES, Mistake
from karat.check.model import evaluate as of_right
from karat.check.model.context import Array, Context, DType
from karat.check.model.graph import KINDS, Node
from karat.check.model.kinds import Arguments, Op, Replace, right
from karat.errors import UsageError

REGISTERED_BY = (attention, block, cache, embedding, experts, linear, narrow, norm, recurrence, result, rope)


def changed(node: Node, edit: Mapping[str, Any]) -> Node:
    """The node with other parameters, mistakes, or inputs (under the key "inputs"). None takes a mistake back.

    Raises UsageError for a parameter that the kind of node does not have, and for a value that its mistake does not
    know.
    """
    if not edit:
        return node
    known, params, mistakes, inputs = MISTAKES[node.kind], dict(node.params), dict(node.mistakes), node.inputs
    for key, value in edit.items():
        if key == "inputs":
            inputs = tuple(value)
        elif key in KINDS[node.kind].parameters:
            params[key] = value
        elif key not in _wrong_parameters(node.kind):
            raise UsageError(_unknown(f"a {node.kind}", "parameter", key, parameters_of(node.kind)))
        elif value is None:
            mistakes.pop(key, None)
        else:
            choices = known[key].choices if key in known else None
            if choices is not None and not any(_is(value, choice) for choice in choices):
                raise UsageError(_unknown(f"{key} of a {node.kind}", "value", value, choices))
            mistakes[key] = value
    for key in mistakes.keys() - known.keys():
        owner = next(parameter for parameter, one in known.items() if key in one.companions)
        if owner not in mistakes:
            raise UsageError(f"{key} of a {node.kind} says more about {owner}, which is not given: give both")
    return replace(node, inputs=inputs, params=params, mistakes=mistakes)


def parameters_of(kind: str) -> tuple[str, ...]:
    """Everything that an edit of a node of this kind may say. Raises UsageError for a kind that does not exist."""
    if kind not in KINDS:
        raise UsageError(_unknown("a graph", "kind of node", kind, KINDS))
    return ("inputs", *sorted(KINDS[kind].parameters), *_wrong_parameters(kind))


def evaluate(node: Node, inputs: Sequence[Array], context: Context, dtype: DType) -> Array:
    """The result of a node with all its mistakes, as karat.check.model.evaluate has it of a right one."""
    return of_right.evaluate(node, inputs, context, dtype, replaced(node))


def replaced(node: Node) -> Replace:
    """What the node's mistakes make of a right function. UsageError for one that its kind does not have."""
    if not node.mistakes:
        return right
    for key in node.mistakes.keys() - set(_wrong_parameters(node.kind)):
        raise UsageError(_unknown(f"a {node.kind}", "parameter", key, parameters_of(node.kind)))
    made = [one for key, one in MISTAKES[node.kind].items() if key in node.mistakes]
    return _Wrong(made, node.mistakes)


class _Wrong:
    """What these mistakes make of a right function."""

    def __init__(self, made: Sequence[Mistake], mistakes: Mapping[str, Any]) -> None:
        self._made, self._mistakes = made, mistakes

    def __call__(self, function: Op[Arguments], /) -> Op[Arguments]:
        found = function
        for one in reversed(self._made):
            if one.of is function:
                found = _around(found, one, self._mistakes)
        return found


def _around(inner: Op[Arguments], one: Mistake, mistakes: Mapping[str, Any]) -> Op[Arguments]:
    value = mistakes[one.parameter]
    more = {key: mistakes[key] for key in one.companions if key in mistakes}
    return lambda a: one.wrong(inner, a, value, **more)


def _is(value: object, choice: object) -> bool:
    """Whether a value is one of the choices; a type among them stands for all its values."""
    return isinstance(value, choice) if isinstance(choice, type) else value == choice


def _wrong_parameters(kind: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(key for own, one in MISTAKES[kind].items() for key in (own, *one.companions)))


def _unknown(owner: str, what: str, given: object, known: Iterable[object]) -> str:
    names = [name.__name__ if isinstance(name, type) else str(name) for name in known]
    near = difflib.get_close_matches(str(given), names, 1)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    return f"{owner} has no {what} {given!r}{meant} (there are: {', '.join(names)})"
