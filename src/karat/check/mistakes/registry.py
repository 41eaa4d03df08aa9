"""The registry of wrong arithmetic: kind of node → parameter → the function that computes wrongly.

A mistake takes the place of one right function of karat.check.model.right. It is called with that function (or with
what another mistake made of it), its arguments and the parameter's value:

    @mistake("linear", of=biased)
    def factor(biased: Op[Biased], a: Biased, number: float) -> Array:
        return biased(a) * number

Of several mistakes at one function, the one that is registered first is the outermost.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any

from numpy.typing import NDArray

from karat.check.model.graph import KINDS
from karat.check.model.kinds import Arguments, Op

Wrong = Callable[..., NDArray[Any]]  # (the right function, its arguments, the value, companions by name)


@dataclass(frozen=True, slots=True)
class Mistake:
    """of: the right function; wrong: what takes its place; choices: the values that it knows, None: all.

    companions: parameters that say more about this one. Alone they mean nothing.
    """

    parameter: str
    of: Callable[..., NDArray[Any]]
    wrong: Wrong
    choices: Collection[Any] | None
    companions: tuple[str, ...]


MISTAKES: Mapping[str, dict[str, Mistake]] = {kind: {} for kind in KINDS}


def mistake(
    *kinds: str, of: Op[Arguments], name: str | None = None, choices: Collection[Any] | None = None
) -> Callable[[Wrong], Wrong]:
    """Registers a function as what `of` becomes in nodes of these kinds; `name`: the parameter, if not its own name."""

    def register(wrong: Wrong) -> Wrong:
        parameters = signature(wrong).parameters.values()
        companions = tuple(p.name for p in parameters if p.kind is Parameter.KEYWORD_ONLY)
        parameter = name or wrong.__name__
        for kind in kinds:
            assert parameter not in (*MISTAKES[kind], *KINDS[kind].parameters), f"{kind}: {parameter} twice"
            MISTAKES[kind][parameter] = Mistake(parameter, of, wrong, choices, companions)
        return wrong

    return register
