"""A conversion that fails leaves nothing, overwrites nothing, and says why."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from karat.config import LayerShape, RopeConfig
from karat.convert import MIXES, convert
from karat.convert.metadata import model_pairs
from karat.errors import ConfigError, NumericsError, OutputError
from karat.models.opening import open_model
from tests.convert.folders import FAMILIES, folder_of
from tests.support.uneven import uneven_config

F32 = np.dtype(np.float32)


class TestFailures:
    def nothing_left(self, folder: Path) -> None:
        assert [path.name for path in folder.iterdir() if path.name != "model"] == []

    def test_an_existing_file_is_kept(self, tmp_path: Path) -> None:
        (tmp_path / "a.gguf").write_bytes(b"mine")
        with pytest.raises(OutputError, match="exists already, and nothing is overwritten"):
            convert(open_model(folder_of(tmp_path / "model")), tmp_path / "a.gguf", MIXES["F32"])
        assert (tmp_path / "a.gguf").read_bytes() == b"mine"

    def test_a_file_that_appears_meanwhile_is_kept(self, tmp_path: Path) -> None:
        def progress(*_: object) -> None:
            (tmp_path / "a.gguf").write_bytes(b"mine")

        with pytest.raises(OutputError, match="File exists"):
            convert(open_model(folder_of(tmp_path / "model")), tmp_path / "a.gguf", MIXES["F32"], progress=progress)
        assert (tmp_path / "a.gguf").read_bytes() == b"mine"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gguf", "model"]

    def test_disk_full_leaves_nothing(self, tmp_path: Path) -> None:
        """A limit on the size of files stands for the disk."""
        folder_of(tmp_path / "model")
        program = (
            "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)); import sys; "
            "from karat.cli import main; sys.exit(main(['convert', sys.argv[1], sys.argv[2], '--quant', 'F32']))"
        )
        source = str(Path(__file__).parents[2] / "src")
        done = subprocess.run(
            [sys.executable, "-c", program, tmp_path / "model", tmp_path / "a.gguf"],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": source},
        )
        assert done.returncode == 1
        assert "cannot be written (File too large: it takes" in done.stderr
        self.nothing_left(tmp_path)

    def test_a_missing_folder(self, tmp_path: Path) -> None:
        source = open_model(folder_of(tmp_path / "model"))
        with pytest.raises(OutputError, match="No such file or directory") as caught:
            convert(source, tmp_path / "absent" / "a.gguf", MIXES["F32"])
        assert caught.value.exit_code == 1
        self.nothing_left(tmp_path)

    def test_a_foreign_part_file_stays(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whoever wrote it: this process's number, and even the random one, may be another's on another machine."""
        (tmp_path / f".a.gguf.{os.getpid()}.part").write_bytes(b"theirs")
        source = open_model(folder_of(tmp_path / "model"))
        convert(source, tmp_path / "a.gguf", MIXES["F32"])
        monkeypatch.setattr("os.urandom", lambda num: bytes.fromhex("0a1b2c3d"))
        (tmp_path / ".b.gguf.0a1b2c3d.part").write_bytes(b"theirs")
        with pytest.raises(OutputError, match="File exists"):
            convert(source, tmp_path / "b.gguf", MIXES["F32"])
        parts = sorted(tmp_path.glob(".*.part"))
        assert [part.read_bytes() for part in parts] == [b"theirs"] * 2
        assert not (tmp_path / "b.gguf").exists()

    @pytest.mark.parametrize(("number", "code"), [(signal.SIGHUP, 129), (signal.SIGTERM, 143), (signal.SIGINT, 130)])
    def test_a_signal_leaves_nothing(self, number: signal.Signals, code: int, tmp_path: Path) -> None:
        """Sent by itself in the middle of the file."""
        folder_of(tmp_path / "model")
        program = (
            "import os, signal, sys; from karat.cli import convert, main; "
            f"signal.signal({number:d}, signal.default_int_handler if {number:d} == 2 else signal.SIG_DFL); "
            f"convert.Progress.__call__ = lambda self, text: '%' in text and os.kill(os.getpid(), {number:d}); "
            "sys.exit(main(['convert', sys.argv[1], sys.argv[2], '--quant', 'F32']))"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, tmp_path / "model", tmp_path / "a.gguf"],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        )
        assert done.returncode == code, done.stderr
        self.nothing_left(tmp_path)

    def test_an_interrupt_leaves_nothing(self, tmp_path: Path) -> None:
        def progress(*_: object) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            convert(open_model(folder_of(tmp_path / "model")), tmp_path / "a.gguf", MIXES["F32"], progress=progress)
        self.nothing_left(tmp_path)

    @pytest.mark.parametrize(("mix", "value"), [("Q8_0", np.nan), ("BF16", np.inf), ("F16", 1e5), ("BF16", 3.4e38)])
    def test_values_that_do_not_fit(self, mix: str, value: float, tmp_path: Path) -> None:
        folder = folder_of(tmp_path / "model")
        weights = load_file(folder / "model.safetensors")
        weights["model.layers.1.mlp.up_proj.weight"][3, 5] = value
        save_file(weights, folder / "model.safetensors")
        with pytest.raises(NumericsError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
            convert(open_model(folder), tmp_path / "a.gguf", MIXES[mix])
        self.nothing_left(tmp_path)

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            (
                {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 100, "max_window_layers": 0},
                "has a sliding window of 100 tokens, which GGUF cannot state for qwen2",
            ),
            ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5}}, "attention_factor=1.5"),
            (
                FAMILIES["qwen3_moe"] | {"norm_topk_prob": False},
                r"GGUF cannot state weights of experts that are not renormalised \(norm_topk_prob=false\)",
            ),
            (
                FAMILIES["qwen3_moe"] | {"mlp_only_layers": [1]},
                r"GGUF cannot state layers without experts \(the first is 1\)",
            ),
        ],
    )
    def test_models_that_the_file_would_change(self, changes: dict[str, Any], expected: str, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=expected):
            convert(open_model(folder_of(tmp_path / "model", **changes)), tmp_path / "a.gguf", MIXES["F32"])
        self.nothing_left(tmp_path)


def test_layers_of_different_sizes_are_refused() -> None:
    """GGUF has numbers by layer, which are neither read nor written yet. Windows may differ."""
    alike = LayerShape(num_heads=4, num_kv_heads=2, head_dim=6, inner_size=8, window=None, rope=RopeConfig(theta=1e4))
    model_pairs(uneven_config(alike, alike), "model")
    for other in (replace(alike, inner_size=16), replace(alike, num_kv_heads=4)):
        with pytest.raises(ConfigError, match="layers of different sizes"):
            model_pairs(uneven_config(alike, other), "model")
    with pytest.raises(ConfigError, match="layer 1 has no RoPE, which GGUF cannot state for llama; expected RoPE"):
        model_pairs(uneven_config(alike, replace(alike, rope=None)), "model")
    with pytest.raises(ConfigError, match="layers with different RoPE"):
        model_pairs(uneven_config(alike, replace(alike, rope=RopeConfig(theta=1e6))), "model")


def test_a_layer_with_rope_where_the_architecture_has_none_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model", model_type="smollm3", num_hidden_layers=4, no_rope_layers=[1, 1, 1, 1])
    with pytest.raises(ConfigError, match="layer 3 has RoPE, which GGUF cannot state for smollm3; expected none"):
        convert(open_model(folder), tmp_path / "a.gguf", MIXES["F32"])
