"""A node knows the parameters of its kind and no others, and the catalogue and the registry say the same.

Covers: karat.check.mistakes.bugs, karat.check.mistakes.catalogue, karat.check.mistakes.nodes.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from karat.check.mistakes.bugs import _PARTS, BUGS
from karat.check.mistakes.catalogue import Variant
from karat.check.mistakes.enumerate import Enumeration
from karat.check.mistakes.narrow import INSIDE
from karat.check.mistakes.nodes import changed, parameters_of, replaced
from karat.check.mistakes.registry import MISTAKES
from karat.check.mistakes.weight_readings import Effective
from karat.check.model.graph import KINDS, Node
from karat.check.model.tokens import Tokens
from karat.errors import UsageError
from tests.support import mistakes

# Registered mistakes that no enumeration sets: a fit does (karat.check.mistakes.fitted), with a number from the trace.
BY_FITS = {
    *((kind, "narrow") for kind in INSIDE),  # karat.check.diagnosis.narrow
    ("linear", "narrow_sum"),
    ("rope", "narrow_turn"),
    *((kind, "stored_as") for kind in ("scores", "mix")),  # karat.check.diagnosis.parted
    ("embedding", "elements"),
    ("embedding", "from_id"),
    ("embedding", "rows"),
    ("norm", "elements"),
    ("linear", "elements"),
    ("linear", "bias_elements"),
}
# What the tokenizer, the template and a run's own tokens show: nothing is computed wrongly.
BEFORE_THE_ARITHMETIC = {"bos", "template", "special-tokens", "eos", "token-range", "greedy"}
BY_FITS_ONLY = {"weight-element", "head-other", "narrow-arithmetic", "kv-dtype"}


def _all(case: str) -> list[tuple[Variant, Mapping[str, Node]]]:
    graph, weights = mistakes.model_of(case)
    found = []
    for info in mistakes.traces().values():
        enumeration = Enumeration(graph, weights, Tokens.of(info))
        variants = [variant for index in range(graph.config.num_layers) for variant in enumeration.of_layer(index)]
        found += [(variant, graph.nodes) for variant in (*variants, *enumeration.of_ends())]
    return found


@pytest.fixture(scope="module")
def enumerated() -> list[tuple[Variant, Mapping[str, Node]]]:
    return [pair for case in mistakes.CASES for pair in _all(case)]


def test_every_enumerated_parameter_exists(enumerated: list[tuple[Variant, Mapping[str, Node]]]) -> None:
    for variant, nodes in enumerated:
        for name, params in variant.edits.items():
            changed(nodes[name], params)  # raises for a parameter or a value that does not exist


def test_every_registered_mistake_is_reached(enumerated: list[tuple[Variant, Mapping[str, Node]]]) -> None:
    reached = {
        (nodes[name].kind, key) for variant, nodes in enumerated for name, edit in variant.edits.items() for key in edit
    }
    registered = {
        (kind, key)
        for kind, of_kind in MISTAKES.items()
        for own, one in of_kind.items()
        for key in (own, *one.companions)
    }
    assert registered - reached == BY_FITS


def test_every_bug_of_the_catalogue_is_reached(enumerated: list[tuple[Variant, Mapping[str, Node]]]) -> None:
    reached = {variant.bug for variant, _ in enumerated}
    of_blocks = {bug for bug in BUGS if bug.startswith("quant-")}  # tests/check/mistakes/test_quantised.py
    assert sum(len(part.BUGS) for part in _PARTS) + len(BEFORE_THE_ARITHMETIC) == len(BUGS), "two parts have one bug"
    assert BUGS.keys() == reached | of_blocks | BEFORE_THE_ARITHMETIC | BY_FITS_ONLY


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_a_misspelt_parameter_is_refused(kind: str, data: st.DataObject) -> None:
    known = parameters_of(kind)
    right = data.draw(st.sampled_from(known))
    at = data.draw(st.integers(0, len(right) - 1))
    letter = data.draw(st.sampled_from("abcdefghijklmnopqrstuvwxyz_"))
    wrong = data.draw(st.sampled_from([right[:at] + right[at + 1 :], right[:at] + letter + right[at:], right.upper()]))
    if wrong not in known:
        with pytest.raises(UsageError, match="there are: .*" + re.escape(right)):
            changed(_node(kind), {wrong: True})


@pytest.mark.parametrize("kind", KINDS)
def test_a_parameter_of_another_kind_is_refused(kind: str) -> None:
    known = set(parameters_of(kind))
    for other in KINDS:
        for key in set(parameters_of(other)) - known:
            with pytest.raises(UsageError, match=f"a {kind} has no parameter '{key}'"):
                changed(_node(kind), {key: True})


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("linear", {"bias_facter": 2}, "a linear has no parameter 'bias_facter'; did you mean 'bias_factor'?"),
    ("scores", {"gqa": "tiles"}, "gqa of a scores has no value 'tiles'; did you mean 'tile'?"),
    ("silu_mul", {"activation": "gelu"}, "activation of a silu_mul has no value 'gelu'"),
    ("softmax", {"axis": 1}, "axis of a softmax has no value 1"),
    ("rope", {"positions": "restart"}, "did you mean 'restarted'?"),
    ("norm", {"skip": False}, "skip of a norm has no value False"),
    ("embedding", {"from_id": 3}, "from_id of a embedding says more about shift, which is not given"),
]


@pytest.mark.parametrize(("kind", "edit", "message"), REFUSED)
def test_what_is_refused_says_what_there_is(kind: str, edit: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        changed(_node(kind), edit)
    assert message in str(refused.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_node_that_was_made_with_an_unknown_mistake_is_not_computed(kind: str) -> None:
    node = changed(Node("x", kind, (), dict.fromkeys(KINDS[kind].parameters, 1)), {})
    with pytest.raises(UsageError, match="no parameter 'typo'"):
        replaced(replace(node, mistakes={"typo": 1}))


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(UsageError, match="no kind of node 'liner'; did you mean 'linear'"):
        parameters_of("liner")


def test_a_node_is_made_with_parameters_of_its_kind() -> None:
    with pytest.raises(UsageError, match="'wieght'"):
        Node("lm_head", "linear", ("x",), {"wieght": "w"})


def test_none_takes_a_mistake_back() -> None:
    node = changed(_node("linear"), {"soft_cap": 30.0})
    assert node.mistakes == {"soft_cap": 30.0}
    assert changed(node, {"soft_cap": None}) == _node("linear")


def test_what_two_mistakes_do_is_in_the_order_of_their_registration() -> None:
    """An element changes what a rank's part of the inputs makes of it, however the edit is written."""
    orders = [{"input_part": (0, 2), "elements": ((0, 3, 1.0),)}, {"elements": ((0, 3, 1.0),), "input_part": (0, 2)}]
    first, second = (mistakes.of_linear(edit) for edit in orders)
    assert np.array_equal(first, second)
    assert np.array_equal(first, mistakes.of_linear({"input_part": (0, 2)})), "input 3 belongs to the other rank"


def _node(kind: str) -> Node:
    return Node(f"a.{kind}", kind, ())


def test_a_wrong_weight_is_of_a_kind_that_exists() -> None:
    with pytest.raises(UsageError, match=r"no wrong weight of the kind .transpose. .there are: transposed"):
        Effective("transpose", ("w",))
