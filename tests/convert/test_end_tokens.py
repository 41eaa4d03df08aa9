"""What ends a text in a folder ends it in the file that `convert` makes of it.

Covers: karat.models.end_tokens.
"""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from karat.config import embedded_model_path
from karat.convert import MIXES, convert
from karat.engine.llm import LLM
from karat.models.opening import open_model
from karat.request import SamplingParams
from tests.convert.folders import folder_of


@pytest.mark.slow
def test_a_story_of_the_embedded_model_ends_where_it_ends(tmp_path: Path) -> None:
    """Its generation_config.json names <|endoftext|>, which its config.json does not."""
    convert(open_model(embedded_model_path()), tmp_path / "a.gguf", MIXES["BF16"])
    folder, file = LLM(executor="reference"), LLM(tmp_path / "a.gguf", executor="reference")
    assert file.end_token_ids == folder.end_token_ids == {0, 2}
    params = SamplingParams(temperature=0, max_tokens=200)
    expected, got = (llm.generate("Once upon a time", params)[0].outputs[0] for llm in (folder, file))
    assert got.token_ids == expected.token_ids
    assert (got.finish_reason, got.stop_reason) == (expected.finish_reason, expected.stop_reason) == ("stop", 0)


def _random_ends(rng: random.Random) -> Any:
    """Of the 4100 rows, the last four have no token; 4100 and 9999 have no row."""
    ids = rng.sample([0, 1, 2, 3, 17, 4095, 4098, 4100, 9999], rng.randint(0, 4))
    return rng.choice([None, ids, ids[0] if ids else []])


@pytest.mark.drawn(4, each="own")
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("own", [True, False])
def test_random_lists(own: bool, seed: int, tmp_path: Path) -> None:
    rng = random.Random(100 * seed + own)
    folder = folder_of(tmp_path / "model", eos_token_id=_random_ends(rng))
    if rng.random() < 0.7:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": _random_ends(rng)}))
    if not own:
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"eos_token": None}))
    done = convert(open_model(folder), tmp_path / "a.gguf", MIXES["Q8_0"])
    expected, got = LLM(folder).end_token_ids, LLM(tmp_path / "a.gguf").end_token_ids
    if len(expected) <= 3:
        assert got == expected
        assert done.warnings == []
    else:
        assert got < expected
        assert len(got) == 3
        assert len(done.warnings) == 1


def test_more_than_fit_are_named(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model", eos_token_id=[5])
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0, 1, 40]}))
    done = convert(open_model(folder), tmp_path / "a.gguf", MIXES["Q8_0"])
    tokenizer = LLM(folder).tokenizer
    (warning,) = done.warnings
    kept, _, lost = warning.partition("; a text goes on after ")
    assert repr(tokenizer.id_to_token(40)) in lost
    for token_id in (2, 0, 1):
        assert repr(tokenizer.id_to_token(token_id)) in kept
    assert LLM(tmp_path / "a.gguf").end_token_ids == {0, 1, 2}
