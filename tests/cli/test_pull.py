"""`karat pull` from a hub on loopback; and what was pulled can be run by its name, also offline."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoint.fake_hub import FakeHub, Model, running_hub
from tests.cli.alphabet_model import ALPHABET
from tests.cli.conftest import Karat

NAME = "org/alphabet"


@pytest.fixture(scope="module")
def hub(alphabet: Path) -> Iterator[FakeHub]:
    with running_hub() as hub:
        files = {path.name: path.read_bytes() for path in alphabet.iterdir()}
        hub.models[NAME] = Model({"main": files, "v1.0": files | {"pytorch_model.bin": b"never fetched"}})
        yield hub


def online(hub: FakeHub, home: Path) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "NO_PROXY": "*", "no_proxy": "*"}


@pytest.mark.slow
def test_a_model_is_fetched_and_then_runs_by_its_name_without_a_network(
    hub: FakeHub, alphabet: Path, tmp_path: Path, karat: Karat
) -> None:
    done = karat("pull", f"{NAME}@v1.0", **online(hub, tmp_path))
    assert done.returncode == 0
    assert done.stderr.endswith(f'run it: karat run {NAME}@v1.0 "Once upon a time", or: karat chat {NAME}@v1.0\n')
    folder = Path(done.stdout.removesuffix("\n"))
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in alphabet.iterdir())
    offline = online(hub, tmp_path) | {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}
    assert karat("run", "-q", f"{NAME}@v1.0", "a", **offline).stdout == f"{ALPHABET[1:]}\n"
    quiet = karat("pull", "-q", f"{NAME}@v1.0", **online(hub, tmp_path))
    assert (quiet.stdout, quiet.stderr) == (f"{folder}\n", "")


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", ["org/nothing", f"{NAME}@v9", "no-name", "../etc/passwd"])
def test_what_cannot_be_fetched(name: str, hub: FakeHub, tmp_path: Path, karat: Karat) -> None:
    done = karat("pull", name, **online(hub, tmp_path))
    assert done.returncode == 6 and done.stdout == ""
    assert done.stderr.startswith("karat: error: ") and done.stderr.count("\n") == 1
