"""`karat convert` of a real file: what is written answers, and is the same where nothing is rounded."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Karat
from tests.convert.comparing import assert_same_tensors
from tests.real_model.test_answers import ANSWER, QUESTION


def test_blocks_are_not_quantised_again_unasked(smollm2: Path, karat: Karat, tmp_path: Path) -> None:
    done = karat("convert", str(smollm2), str(tmp_path / "q8.gguf"), "--quant", "Q8_0")
    assert done.returncode != 0 and "--requantize" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_same_type_keeps_every_block(smollm2: Path, karat: Karat, tmp_path: Path) -> None:
    done = karat("convert", str(smollm2), str(tmp_path / "same.gguf"), "--quant", "Q4_1", "--requantize")
    assert done.returncode == 0, done.stderr
    assert_same_tensors(tmp_path / "same.gguf", smollm2)


@pytest.mark.slow
@pytest.mark.parametrize("quant", ["F16", pytest.param("Q8_0", marks=pytest.mark.long)])
def test_what_is_written_answers(
    quant: str, smollm2: Path, karat: Karat, answer: Callable[..., str], tmp_path: Path
) -> None:
    path = tmp_path / "converted.gguf"
    done = karat("convert", str(smollm2), str(path), "--quant", quant, "--requantize")
    assert done.returncode == 0, done.stderr
    assert answer(QUESTION, model=path) == ANSWER + "\n"
