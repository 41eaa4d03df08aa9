"""Python does not look for garbage while a command starts, does afterwards, and keeps nothing for good."""

import gc

import pytest

from karat.cli import main
from karat.cli.collection import without_collections


@pytest.mark.parametrize("enabled", [True, False])
def test_collections_come_back_as_they_were(enabled: bool) -> None:
    was = gc.isenabled()
    try:
        gc.enable() if enabled else gc.disable()
        with without_collections():
            assert not gc.isenabled()
        assert gc.isenabled() is enabled
        assert gc.get_freeze_count() > 0
        with pytest.raises(KeyError), without_collections():
            raise KeyError
        assert gc.isenabled() is enabled
    finally:
        gc.enable() if was else gc.disable()
        gc.unfreeze()


def test_a_command_leaves_nothing_frozen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "-q", "--max-tokens", "1", "Once"]) == 0
    assert gc.get_freeze_count() == 0 and gc.isenabled()
