"""What is declared unused is set aside by part, and one line counts it."""

from pathlib import Path

import numpy as np

from karat.checkpoint.unused import remarks_on_unused, set_aside
from karat.checkpoint.weights import Weight


def test_tensors_of_other_parts_are_set_aside() -> None:
    data = np.zeros(2, np.uint8)
    weights = {name: Weight(name, "BF16", (1,), data, Path("fox")) for name in "abcd"}
    used, unused = set_aside(weights, {"b": "vision", "c": "audio", "d": "vision"}.get)
    assert used == {"a": weights["a"]}
    assert unused == {"vision": (weights["b"], weights["d"]), "audio": (weights["c"],)}
    assert remarks_on_unused(unused) == ["tensors that are not used: 2 of vision, 1 of audio"]


def test_nothing_is_said_where_all_is_used() -> None:
    assert set_aside({}, lambda _: None) == ({}, {})
    assert remarks_on_unused({}) == []
