"""Live: Karat and llama.cpp beside the float64 reference on files that its quantiser makes, for every type it has."""

from pathlib import Path

import pytest

from karat.ops.native import unavailable_reason

pytest.importorskip("llama_cpp", exc_type=ImportError)
from tools.peers.distance import FILE_TYPES, distances, random_models

pytestmark = pytest.mark.peers
NEAR = 1e-4


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return random_models(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("name", FILE_TYPES)
def test_karat_is_near_and_llama_cpp_is_not(name: str, families: list[Path], data_dir: Path, tmp_path: Path) -> None:
    """A hundred times nearer than llama.cpp in every quantised type: see the table of docs/gguf.md."""
    if (reason := unavailable_reason()) is not None:
        pytest.skip(reason)
    for found in distances([*families, data_dir / "stories260k" / "stories260k-f32.gguf"], name, tmp_path):
        assert found.karat <= NEAR
        if name == "F32":
            assert found.llama_cpp <= NEAR
        elif name != "F16":
            assert found.karat <= found.llama_cpp / 100
