"""What goes wrong with the result of an op, whatever the op: float16, a factor, a cap."""

# NumPy's stubs lose the type of many expressions.
# mypy: disable-error-code="no-any-return"

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from karat.check.mistakes.catalogue import Bug
from karat.check.mistakes.registry import mistake
from karat.check.mistakes.scope import CAPS, Params
from karat.check.model.context import Array
from karat.check.model.evaluate import Result, result
from karat.check.model.graph import Node
from karat.check.model.kinds import Op
from karat.check.model.right import elementwise
from karat.check.model.right.elementwise import Capped
from karat.check.model.rounding import rounded

BUGS: Mapping[str, Bug] = {
    "overflow-fp16": Bug("a value overflows float16", "accumulate and keep activations in float32 or bfloat16"),
    "softcap": Bug(
        "values are capped by tanh and should not be, or the reverse, or by another number",
        "cap · tanh(x / cap) where config.json names a cap, as Gemma 2's do; scores after their scale, before the mask",
    ),
    "logit-scale": Bug(
        "the logits are multiplied by a constant", "leave them as they are, or apply the model's own scale"
    ),
}


@mistake("linear", of=result)
def soft_cap(result: Op[Result], a: Result, cap: float) -> Array:
    return np.tanh(result(a) / cap) * a.dtype.type(cap)


@mistake("embedding", "linear", of=result)
def output_factor(result: Op[Result], a: Result, factor: float) -> Array:
    return result(a) * a.dtype.type(factor)


@mistake("linear", "scores", "mix", "silu_mul", "gelu_mul", "add", "scale_by", of=result, choices=(True,))
def fp16_output(result: Op[Result], a: Result, _: bool) -> Array:
    return rounded(result(a), "float16")


@mistake("soft_cap", of=elementwise.soft_cap, choices=(True,))
def uncapped(soft_cap: Op[Capped], a: Capped, _: bool) -> Array:
    return a.x


def of_cap(logits: Node) -> Iterator[tuple[str, str, Params]]:
    own = logits.params.get("cap")
    if own is not None:
        yield "softcap", "not capped", {"uncapped": True}
    for cap in CAPS:
        if cap != own:
            yield "softcap", f"capped at {cap:g}", {"soft_cap": cap} if own is None else {"cap": cap}


def overflow(linears: Sequence[str], others: Sequence[str] = ()) -> Iterator[tuple[str, str, str, Params]]:
    """(bug, detail, role, parameters) of linear layers and other ops that may overflow."""
    for role in (*linears, *others):
        yield "overflow-fp16", "the result is stored as float16", role, {"fp16_output": True}
    for role in linears:
        yield "overflow-fp16", "the sum overflows before the bias", role, {"fp16_sum": True}
