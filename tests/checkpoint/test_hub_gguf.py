"""GGUF files of a hub on loopback: by their type, of a revision, split, from the cache."""

from typing import ClassVar

import pytest

from karat.models.opening import open_gguf
from tests.checkpoint.fake_hub import Model
from tests.checkpoint.gguf.builders import tiny
from tests.checkpoint.hub_client import Client, names


class TestGguf:
    """`org/name:TYPE` is one file, or the parts of a split."""

    FILES: ClassVar = {
        "README.md": b"# Foxes",
        "fox-Q8_0.gguf": tiny(),
        "fox-Q4_0.gguf": b"not fetched",
        "fox-F16-00001-of-00002.gguf": b"part one",
        "fox-F16-00002-of-00002.gguf": b"part two",
    }

    @pytest.fixture(autouse=True)
    def foxes(self, client: Client) -> None:
        client.hub.models["org/foxes"] = Model({"main": self.FILES, "v1": {"old-Q8_0.gguf": tiny()}})

    def test_one_file(self, client: Client) -> None:
        path = client.folder("org/foxes:q8_0")
        assert path.name == "fox-Q8_0.gguf"
        assert names(path.parent) == {"fox-Q8_0.gguf"}
        assert open_gguf(path).config["model_type"] == "llama"

    def test_a_split(self, client: Client) -> None:
        path = client.folder("org/foxes:F16")
        assert path.name == "fox-F16-00001-of-00002.gguf"
        assert names(path.parent) == {"fox-F16-00001-of-00002.gguf", "fox-F16-00002-of-00002.gguf"}

    def test_of_a_revision(self, client: Client) -> None:
        assert client.folder("org/foxes@v1:Q8_0").name == "old-Q8_0.gguf"

    def test_what_the_cache_has_needs_no_network(self, client: Client) -> None:
        path = client.folder("org/foxes:Q8_0")
        client.hub.requests.clear()
        assert client.folder("org/foxes:Q8_0", HF_HUB_OFFLINE="1") == path
        assert client.hub.requests == []
        assert "HF_HUB_OFFLINE is set" in client.refused("org/foxes:Q4_0", HF_HUB_OFFLINE="1")
        assert client.folder("org/foxes", HF_HUB_OFFLINE="1") == path, "the only one there"
        client.folder("org/foxes:F16")
        without = client.refused("org/foxes", HF_HUB_OFFLINE="1")
        assert "fox-Q8_0.gguf" in without and "org/name:Q4_K_M" in without, "how to name what is there"

    def test_the_only_one_may_be_a_split_and_must_be_whole(self, client: Client) -> None:
        path = client.folder("org/foxes:F16")
        assert client.folder("org/foxes", HF_HUB_OFFLINE="1") == path
        (path.parent / "fox-F16-00002-of-00002.gguf").unlink()
        assert "org/foxes: " in client.refused("org/foxes", HF_HUB_OFFLINE="1")

    def test_other_spellings(self, client: Client) -> None:
        spellings = (
            "hf.co/org/foxes:Q8_0",
            "https://huggingface.co/org/foxes:Q8_0",
            "https://hf.co/org/foxes/resolve/main/fox-Q8_0.gguf?download=true",
        )
        found = client.pull(*spellings)
        assert [(kind, path.rpartition("/")[2]) for kind, path in found] == [("OK", "fox-Q8_0.gguf")] * 3

    def test_a_listing_that_names_what_was_never_fetched(self, client: Client) -> None:
        """snapshot_download keeps the listing of a repository, and offline it asks for all that is in it."""
        from huggingface_hub._tree_cache import TreeCacheEntry, write_tree_cache

        path = client.folder("org/foxes:Q8_0")
        entry = TreeCacheEntry(size=10, blob_id="b" * 40, lfs_sha256=None, lfs_size=None, xet_hash=None)
        snapshot = path.parent
        listed = dict.fromkeys(("config.json", "fox-Q8_0.gguf", "fox-F16-00001-of-00002.gguf"), entry)
        write_tree_cache(str(snapshot.parent.parent), snapshot.name, listed)
        client.hub.requests.clear()
        assert client.folder("org/foxes:Q8_0", HF_HUB_OFFLINE="1") == path
        assert "does not have all of it" in client.refused("org/foxes:F16", HF_HUB_OFFLINE="1")
        assert client.hub.requests == []

    def test_a_type_that_is_not_there(self, client: Client) -> None:
        message = client.refused("org/foxes:Q6_K")
        assert "no GGUF files have the type Q6_K; expected one; there are fox-F16, fox-Q4_0, fox-Q8_0" in message

    def test_without_a_type(self, client: Client) -> None:
        message = client.refused("org/foxes")
        assert "has its weights as GGUF" in message
        assert "org/name:Q4_K_M" in message
