"""Default sampling from the metadata of a GGUF file, and into it: as the model's generation_config.json has it."""

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import pytest

from karat.convert import MIXES, convert
from karat.engine.model_loading.defaults import GenerationDefaults, read_defaults
from karat.errors import ConfigError
from karat.models.opening import open_gguf, open_model
from karat.models.registry import read_config
from karat.text import Tokenizer
from tests.checkpoint.gguf.builders import F32, I32, STRING, tiny
from tools.peers.models import make_folder


def defaults_of(path: Path) -> GenerationDefaults:
    checkpoint = open_model(path)
    return read_defaults(
        checkpoint.generation_config,
        read_config(checkpoint.config),
        Tokenizer.of(checkpoint),
        checkpoint.generation_source,
    )


def defaults_with(tmp_path: Path, **stated: tuple[int, Any]) -> GenerationDefaults:
    path = tmp_path / "a.gguf"
    path.write_bytes(tiny({f"general.sampling.{name}": value for name, value in stated.items()}))
    return defaults_of(path)


def test_what_a_file_says(tmp_path: Path) -> None:
    found = defaults_with(
        tmp_path,
        temp=(F32, 0.7),
        top_k=(I32, 20),
        top_p=(F32, 0.8),
        min_p=(F32, 0.05),
        penalty_repeat=(F32, 1.05),
        sequence=(STRING, "penalties;top_k;temperature"),
    )
    params = found.params
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.7, 20, 0.8, 0.05)
    assert params.repetition_penalty == 1.05
    assert found.notice is not None
    assert found.notice.startswith("sampling defaults from general.sampling: ")
    assert "not applied" not in found.notice


def test_nothing_and_zero_are_greedy(tmp_path: Path) -> None:
    assert defaults_with(tmp_path).params.temperature == 0
    assert defaults_with(tmp_path, temp=(F32, 0.0), top_p=(F32, 0.5)).params.temperature == 0


def test_what_is_not_applied_is_told(tmp_path: Path) -> None:
    found = defaults_with(
        tmp_path,
        temp=(F32, 0.6),
        mirostat=(I32, 2),
        new_thing=(F32, 3.0),
    )
    assert found.notice is not None
    for name in ("mirostat", "new_thing"):
        assert name in found.notice.partition("not applied: ")[2]
    assert "not applied" not in str(defaults_with(tmp_path, xtc_probability=(F32, 0.0), mirostat=(I32, 0)).notice)


def test_samplers_of_llama_cpp_are_applied(tmp_path: Path) -> None:
    params = defaults_with(
        tmp_path,
        temp=(F32, 0.5),
        xtc_probability=(F32, 0.5),
        xtc_threshold=(F32, 0.25),
        penalty_repeat=(F32, 1.125),
        penalty_last_n=(I32, 64),
    ).params
    assert (params.xtc_probability, params.xtc_threshold) == (0.5, 0.25)
    assert (params.repetition_penalty, params.repeat_last_n) == (1.125, 64)
    assert defaults_with(tmp_path, penalty_repeat=(F32, 1.1), penalty_last_n=(I32, -1)).params.repeat_last_n is None
    assert "not applied: xtc_probability=0.5" in str(defaults_with(tmp_path, xtc_probability=(F32, 0.5)).notice)


def test_values_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"general\.sampling: top_k='a': expected"):
        defaults_with(tmp_path, top_k=(STRING, "a"))
    with pytest.raises(ConfigError, match=r"general\.sampling: .*temperature"):
        defaults_with(tmp_path, temp=(F32, -1.0))


GENERATION: list[dict[str, Any]] = [
    {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 0},
    {"do_sample": True},
    {"do_sample": True, "top_k": 7, "repetition_penalty": 1.25, "min_p": 0.1},
    {"do_sample": False, "temperature": 0.6},
    {"repetition_penalty": 1.5},
    {},
]


@pytest.mark.parametrize("generation", GENERATION, ids=str)
def test_what_convert_writes_means_the_same(generation: dict[str, Any], tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", "qwen3")
    (folder / "generation_config.json").write_text(json.dumps(generation))
    done = convert(open_model(folder), tmp_path / "a.gguf", MIXES["F32"])
    assert done.warnings == []
    assert defaults_of(tmp_path / "a.gguf").params == defaults_of(folder).params
    shutil.copy(tmp_path / "a.gguf", tmp_path / "b.gguf")
    convert(open_gguf(tmp_path / "b.gguf"), tmp_path / "c.gguf", MIXES["Q8_0"])  # and is taken over
    assert defaults_of(tmp_path / "c.gguf").params == defaults_of(folder).params
    fields = gguf.GGUFReader(tmp_path / "a.gguf").fields
    if generation.get("do_sample"):
        temp = fields[gguf.Keys.General.SAMPLING_TEMP].contents()
        assert temp == pytest.approx(generation.get("temperature", 1.0))


def test_what_a_file_does_not_carry_is_told(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", "qwen3")
    (folder / "generation_config.json").write_text(json.dumps({"max_new_tokens": 9, "stop_strings": ["x"]}))
    done = convert(open_model(folder), tmp_path / "a.gguf", MIXES["F32"])
    assert done.warnings == ["GGUF does not carry max_new_tokens, stop_strings of generation_config.json"]
