"""Models from a hub on loopback: what is fetched, what is not, and what is said when it fails."""

import errno
import json
import os
import pty
import subprocess
import sys
import termios
import traceback
from pathlib import Path

import pytest
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from karat.checkpoint import hub as hub_module
from karat.checkpoint import open_folder
from karat.checkpoint.hub import pull
from karat.errors import CheckpointError, HubError
from tests.checkpoint.builders import f32, official, raw
from tests.checkpoint.fake_hub import TOKEN, Model
from tests.checkpoint.hub_client import CONFIG, PROGRAM, SHARDED, SINGLE, A, B, Client, environment, names


class TestFetching:
    def test_single_file(self, client: Client) -> None:
        folder = client.folder("org/fox")
        description = {"config.json", "tokenizer.json", "additional_chat_templates/tools.jinja"}
        assert names(folder) == description | {"model.safetensors"}
        assert folder.is_relative_to(client.home / "hub" / "models--org--fox" / "snapshots")
        assert open_folder(folder).weights["a"].shape == (2, 3)
        assert client.stderr == ""

    def test_shards_of_the_index_and_no_others(self, client: Client) -> None:
        folder = client.folder("org/owl")
        assert names(folder) == {"config.json", "model.safetensors.index.json", A, B}
        assert open_folder(folder).weights.keys() == {"a", "b"}

    def test_complete_snapshot_is_not_fetched_again(self, client: Client) -> None:
        folder = client.folder("org/fox")
        client.hub.requests.clear()
        assert client.folder("org/fox") == folder
        assert client.hub.fetched() == []
        assert client.folder("org/fox", {"force": True}) == folder
        assert client.hub.fetched().count("model.safetensors") == 1

    def test_complete_snapshot_without_network(self, client: Client) -> None:
        folder = client.folder("org/owl")
        client.hub.requests.clear()
        assert client.folder("org/owl", HF_HUB_OFFLINE="1") == folder
        assert client.hub.requests == []
        assert client.folder("org/owl", HF_ENDPOINT="http://127.0.0.1:9") == folder
        client.hub.status = 503
        assert client.folder("org/owl") == folder

    def test_a_listing_that_names_optional_files(self, client: Client) -> None:
        """A snapshot that somebody fetched in parts runs offline, and what may be missing is named."""
        from huggingface_hub._tree_cache import TreeCacheEntry, write_tree_cache

        folder = client.folder("org/fox")
        entry = TreeCacheEntry(size=10, blob_id="b" * 40, lfs_sha256=None, lfs_size=None, xet_hash=None)
        listed = dict.fromkeys(("config.json", "model.safetensors", "generation_config.json"), entry)
        write_tree_cache(str(folder.parent.parent), folder.name, listed)
        assert client.folder("org/fox", HF_HUB_OFFLINE="1") == folder
        assert "used without them, if the model has them: generation_config.json" in client.stderr
        (folder / "model.safetensors").unlink()
        assert "does not have all of it" in client.refused("org/fox", HF_HUB_OFFLINE="1")

    @pytest.mark.parametrize("files", [("tokenizer.model",), ("vocab.json", "merges.txt")])
    def test_other_tokenizers_where_there_is_no_tokenizer_json(self, client: Client, files: tuple[str, ...]) -> None:
        others = {"tokenizer.model": b"pieces", "vocab.json": b"{}", "merges.txt": b""}
        bare = {name: data for name, data in SINGLE.items() if name != "tokenizer.json"}
        client.hub.models["org/old"] = Model({"main": bare | others})
        client.hub.models["org/new"] = Model({"main": SINGLE | others})
        client.hub.models["org/some"] = Model({"main": bare | {name: others[name] for name in files}})
        assert set(others) <= names(client.folder("org/old"))
        assert not set(others) & names(client.folder("org/new"))
        folder = client.folder("org/some")
        assert set(others) & names(folder) == set(files)
        assert client.folder("org/some", HF_HUB_OFFLINE="1") == folder

    def test_revisions(self, client: Client) -> None:
        changed = SINGLE | {"model.safetensors": official({"a": f32((5,))})}
        client.hub.models["org/fox"].revisions["v2"] = changed
        commit = client.hub.models["org/fox"].commit("v2")
        results = client.pull("org/fox", "org/fox@v2", f"org/fox@{commit}")
        results += client.pull("org/fox", options={"revision": "v2"})
        assert [kind for kind, _ in results] == ["OK"] * 4
        shapes = [open_folder(Path(folder)).weights["a"].shape for _, folder in results]
        assert shapes == [(2, 3), (5,), (5,), (5,)]
        assert {Path(folder).name for _, folder in results[1:]} == {commit}

    def test_new_commits_are_noticed(self, client: Client) -> None:
        client.folder("org/fox")
        client.hub.models["org/fox"] = Model({"main": SINGLE | {"model.safetensors": official({"a": f32((7,))})}})
        assert open_folder(client.folder("org/fox")).weights["a"].shape == (7,)

    def test_description_and_weights_are_of_one_commit(self, client: Client) -> None:
        """Even if a new one comes between them."""
        model = client.hub.models["org/fox"]

        def push(request: str) -> None:
            if request.startswith("GET") and request.endswith("/config.json"):
                model.revisions |= {"old": SINGLE, "main": {**SINGLE, "model.safetensors": official({"b": f32((1,))})}}

        client.hub.on_request = push
        folder = client.folder("org/fox")
        assert folder.name == model.commit("old") != model.commit("main")
        assert open_folder(folder).weights.keys() == {"a"}

    def test_cache_of_its_own(self, client: Client, tmp_path: Path) -> None:
        assert client.folder("org/fox", HF_HUB_CACHE=str(tmp_path / "cache")).is_relative_to(tmp_path / "cache")

    def test_token(self, client: Client) -> None:
        client.hub.models["org/fox"].gated = True
        client.hub.models["org/owl"].private = True
        assert [kind for kind, _ in client.pull("org/fox", "org/owl", HF_TOKEN=TOKEN)] == ["OK", "OK"]

    def test_adapter_is_refused_by_name(self, client: Client) -> None:
        client.hub.models["org/fox"] = Model({"main": SINGLE | {"adapter_config.json": b"{}"}})
        with pytest.raises(CheckpointError, match=r"has adapter_config.json, a LoRA adapter"):
            open_folder(client.folder("org/fox"))

    @pytest.mark.drawn(1)
    @pytest.mark.parametrize(
        ("options", "cached", "bars"),
        [({}, False, True), ({"progress": False}, False, False), ({}, True, False), ({"force": True}, True, True)],
    )
    def test_bars_on_a_terminal(self, client: Client, options: dict[str, object], cached: bool, bars: bool) -> None:
        if cached:
            client.folder("org/fox")
        terminal, stderr = pty.openpty()
        termios.tcsetwinsize(stderr, (24, 80))
        subprocess.run(
            [sys.executable, "-c", PROGRAM, json.dumps([["org/fox", options]])],
            env=environment(client.hub, client.home),
            stderr=stderr,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        os.write(stderr, b"END")
        shown = os.read(terminal, 1 << 16)
        assert b"%" in shown if bars else shown == b"END"
        os.close(terminal)
        os.close(stderr)


class TestBrokenConnections:
    def test_resumes(self, client: Client) -> None:
        """The client counts received bytes in chunks of 10 MiB, and resumes at the last whole chunk."""
        content = official({"a": f32((3_000_000,))})
        client.hub.models["org/fox"] = Model({"main": SINGLE | {"model.safetensors": content}})
        client.hub.cut["model.safetensors"] = [11_000_000]
        folder = client.folder("org/fox")
        assert (folder / "model.safetensors").read_bytes() == content
        assert f"model.safetensors from {10 << 20}" in client.hub.fetched()

    def test_gives_up(self, client: Client) -> None:
        client.hub.cut["model.safetensors"] = [10] * 20
        message = client.refused("org/fox")
        assert f"the connection to {client.hub.endpoint} failed (" in message
        snapshot = next((client.home / "hub" / "models--org--fox" / "snapshots").iterdir())
        assert "model.safetensors" not in names(snapshot)
        # What came before the failure is no model, on-line or off.
        assert "the cache" in client.refused("org/fox", HF_HUB_OFFLINE="1")
        client.hub.cut.clear()
        assert open_folder(client.folder("org/fox")).weights["a"].shape == (2, 3)

    def test_no_answer(self, client: Client) -> None:
        message = client.refused("org/fox", HF_ENDPOINT="http://127.0.0.1:9")
        assert "the connection to http://127.0.0.1:9 failed (" in message
        assert f"and the cache ({client.home / 'hub'}) does not have all of it: check the network" in message

    @pytest.mark.parametrize(
        ("status", "expected"),
        [
            (500, "answered 500: try again later"),
            (503, "answered 503: try again later"),
            (429, "answered 429, too many requests: wait some minutes; with HF_TOKEN the limit is higher"),
            (403, "answered 403: is HF_TOKEN right, and may it read this model?"),
            (404, "answered 404: is HF_ENDPOINT right?"),
        ],
    )
    def test_status(self, client: Client, status: int, expected: str) -> None:
        client.hub.status = status
        assert f"{client.hub.endpoint} {expected}" in client.refused("org/fox")

    @pytest.mark.parametrize("asked", ["GET /api/", "HEAD /org/fox/resolve"])
    def test_a_web_page_instead_of_an_answer(self, client: Client, asked: str) -> None:
        client.hub.page_for = asked
        message = client.refused("org/fox")
        assert "the web page of a proxy or of a login" in message
        assert "check the network and HF_ENDPOINT" in message


class TestRefusals:
    def test_unknown(self, client: Client) -> None:
        message = client.refused("org/wolf")
        assert f"there is no such model on {client.hub.endpoint}, or it is private: check the spelling" in message
        assert "if you meant a folder, there is none at ./org/wolf" in message

    def test_unknown_revision(self, client: Client) -> None:
        message = client.refused("org/fox@v9")
        assert f"has no revision 'v9': see {client.hub.endpoint}/org/fox" in message

    def test_gated(self, client: Client) -> None:
        client.hub.models["org/fox"].gated = True
        message = client.refused("org/fox")
        assert f"is gated: ask its authors for access at {client.hub.endpoint}/org/fox, then set HF_TOKEN" in message

    def test_private(self, client: Client) -> None:
        client.hub.models["org/fox"].private = True
        assert "or it is private" in client.refused("org/fox")

    def test_wrong_token(self, client: Client) -> None:
        assert "answered 401: is HF_TOKEN right" in client.refused("org/fox", HF_TOKEN="hf_wrong")

    def test_offline(self, client: Client) -> None:
        message = client.refused("org/fox", HF_HUB_OFFLINE="1")
        assert f"HF_HUB_OFFLINE is set, and the cache ({client.home / 'hub'}) does not have all of it" in message
        assert "fetch the model once with `karat pull org/fox`" in message
        assert client.hub.requests == []

    @pytest.mark.parametrize("name", ["org/fox:Q4_0", "org/fox@v1:Q4_0"])
    def test_the_advice_offline_is_what_was_asked_for(self, client: Client, name: str) -> None:
        assert f"fetch the model once with `karat pull {name}`" in client.refused(name, HF_HUB_OFFLINE="1")

    def test_force_needs_the_hub(self, client: Client) -> None:
        client.folder("org/fox")
        force = {"force": True}
        assert "HF_HUB_OFFLINE is set: unset it" in client.refused("org/fox", force, HF_HUB_OFFLINE="1")
        assert "the connection to" in client.refused("org/fox", force, HF_ENDPOINT="http://127.0.0.1:9")

    def test_only_pickles(self, client: Client) -> None:
        client.hub.models["org/fox"] = Model({"main": {"config.json": CONFIG, "pytorch_model.bin": b"\x80\x04."}})
        message = client.refused("org/fox")
        assert "has its weights only as 'pytorch_model.bin', a pickle" in message
        assert "pytorch_model.bin" not in client.hub.fetched()
        assert client.stderr == ""

    def test_no_model_at_all(self, client: Client) -> None:
        client.hub.models["org/fox"] = Model({"main": {"README.md": b"", "data.csv": b""}})
        message = client.refused("org/fox")
        assert "expected model.safetensors or model.safetensors.index.json, found 'README.md', 'data.csv'" in message

    def test_adapter_alone(self, client: Client) -> None:
        client.hub.models["org/fox"] = Model(
            {"main": {"adapter_config.json": b"{}", "adapter_model.safetensors": raw({})}}
        )
        assert "has adapter_config.json, a LoRA adapter" in client.refused("org/fox")

    def test_shard_that_the_model_lacks(self, client: Client) -> None:
        client.hub.models["org/owl"] = Model({"main": {name: SHARDED[name] for name in SHARDED if name != B}})
        assert f"its index names {B}, which the model lacks" in client.refused("org/owl")

    def test_hostile_index(self, client: Client) -> None:
        index = json.dumps({"weight_map": {"a": "../../../secret.safetensors"}}).encode()
        client.hub.models["org/owl"] = Model({"main": SHARDED | {"model.safetensors.index.json": index}})
        ((kind, message),) = client.pull("org/owl")
        assert kind == "CheckpointError"
        assert "expected a plain name" in message


class TestFaultsOfTheMachine:
    @pytest.mark.parametrize(
        ("fault", "expected"),
        [
            (OSError(errno.ENOSPC, "No space left on device"), "is full: free some space, or set HF_HOME"),
            (OSError(errno.EDQUOT, "Disk quota exceeded"), "is full: free some space, or set HF_HOME"),
            (PermissionError(errno.EACCES, "Permission denied"), "cannot be written to: set HF_HOME"),
            (OSError(errno.EROFS, "Read-only file system"), "cannot be written to: set HF_HOME"),
            (OSError("wrong size"), "could not be fetched (OSError: wrong size): try again"),
            (ValueError("too large"), "could not be fetched (ValueError: too large): try again"),
            (RuntimeError("xet"), "could not be fetched (RuntimeError: xet): try again"),
            (HfHubHTTPError.__bases__[0]("no route"), "failed (no route): check the network and HF_ENDPOINT"),
        ],
    )
    def test_fault(self, monkeypatch: pytest.MonkeyPatch, fault: Exception, expected: str) -> None:
        def failing(*_: object, **__: object) -> None:
            raise fault

        monkeypatch.setattr(hub_module, "snapshot_download", failing)
        with pytest.raises(HubError) as caught:
            pull("org/fox")
        assert expected in str(caught.value)
        assert caught.value.__cause__ is fault

    def test_a_traceback_has_no_frames_of_libraries(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def failing(*_: object, **__: object) -> None:
            try:
                raise OSError("a socket")
            except OSError as cause:
                raise LocalEntryNotFoundError("no connection") from cause

        monkeypatch.setattr(hub_module, "snapshot_download", failing)
        with pytest.raises(HubError) as caught:
            pull("org/fox")
        told = "".join(traceback.format_exception(caught.value))
        assert told.count("direct cause") == 1 and "failing" not in told and "a socket" not in told.splitlines()[0]
