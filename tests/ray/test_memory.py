"""What Ray is told of an engine's memory: what a loaded one has at the least."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray cannot be had here")
from karat.config import embedded_model_path
from karat.engine.llm import LLM
from karat.errors import KaratError, UsageError
from karat.ray.memory import memory_of_engine


@pytest.mark.parametrize(
    "options", [{"max_model_len": 512}, {"kv_cache_bytes": 30 << 20}, {"num_blocks": 100, "max_model_len": 256}]
)
def test_it_is_that_of_the_plan(options: dict[str, Any]) -> None:
    """And the plan is what an engine has loaded by, whose cache is as large as is stated, or larger."""
    found = memory_of_engine(None, {"threads": 1, **options})
    with LLM(threads=1, **options) as llm:
        assert found <= llm.plan.memory_bytes
        stated = "max_model_len" not in options or "num_blocks" in options
        assert (found == llm.plan.memory_bytes) == stated
        assert found > llm.plan.num_bytes


def test_a_cache_is_counted(tmp_path: Path) -> None:
    one, other = (memory_of_engine(None, {"kv_cache_bytes": size}) for size in (20 << 20, 80 << 20))
    assert abs(other - one - (60 << 20)) < (1 << 20)
    longer = memory_of_engine(None, {"max_model_len": 512}) - memory_of_engine(None, {"max_model_len": 256})
    assert longer > 0


def test_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name is that of the files in the cache of the hub; where they are not there, that is said."""
    from karat.ray import memory

    monkeypatch.setattr("karat.engine.async_llm.resolve", lambda name: embedded_model_path())
    assert memory_of_engine("org/name", {"max_model_len": 256}) == memory_of_engine(None, {"max_model_len": 256})
    monkeypatch.undo()
    with pytest.raises(KaratError, match="nowhere"):
        memory.memory_of_engine(str(tmp_path / "nowhere.gguf"), {})
    with pytest.raises(UsageError, match="no_such"):
        memory_of_engine(None, {"no_such": 1})
