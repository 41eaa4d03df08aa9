"""Names that a prefix makes wrong are one slip, said once. tests/cli/test_trace.py tries the rest of validation."""

import numpy as np

from karat.check.model.graph import build_graph
from karat.check.replay.validate import misnamed_of
from karat.check.trace.format import Trace, make_info
from karat.models.registry import read_config
from tests.support.parallel import config_of


def test_a_common_prefix_is_said_once() -> None:
    graph = build_graph(read_config(config_of("llama", num_hidden_layers=2)))
    array = np.zeros((1, 1))

    def found(names: list[str]) -> list[tuple[str, str | None, str]]:
        misnamed, unknown = misnamed_of(graph, Trace(make_info([1]), dict.fromkeys(names, array)))
        assert not unknown
        return [(one.name, one.meant, one.why) for one in misnamed]

    many = [name for name in graph.nodes if name.startswith("model.layers.")]
    assert found([f"engine.{name}" for name in many]) == [
        (f"engine.{many[0]}", many[0], f"this and others, {len(many)} names begin with 'engine.'")
    ]
    assert found([name.removeprefix("model.") for name in many]) == [
        (many[0].removeprefix("model."), many[0], f"this and others, {len(many)} names lack 'model.'")
    ]
    assert found(many) == []
    ((name, meant, _),) = found([f"engine.{many[0]}"])
    assert (name, meant) == (f"engine.{many[0]}", many[0])


def test_rows_of_a_ranks_logits_may_be_called_as_its_array_is() -> None:
    graph = build_graph(read_config(config_of("llama", num_hidden_layers=2)))
    for key, is_known in (("lm_head", True), ("lm_head@0", True), ("lm_heat@0", False)):
        info = make_info([1, 2], ranks=2, rows={key: (1,)})
        misnamed, unknown = misnamed_of(graph, Trace(info, {"lm_head": np.zeros((1, 1))}))
        assert (not misnamed and not unknown) == is_known
