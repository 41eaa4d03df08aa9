"""Folders of weights: single and sharded, in a hub's cache and out of it; every disagreement is an error."""

import errno
import json
import os
from collections.abc import Callable, Iterable
from itertools import chain, repeat
from pathlib import Path

import numpy as np
import pytest

from karat.checkpoint import folder as folder_module
from karat.checkpoint import open_folder
from karat.checkpoint.safetensors import MAX_TENSORS
from karat.errors import CheckpointError, ConfigError
from tests.checkpoint.builders import f32, official, raw, write_folder, write_index
from tests.checkpoint.memory import numbered, refused_within_limit

A, B = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
TENSORS = {"a": f32((2, 3), 1), "b": f32((4,), 2), "c": f32((1,), 3)}


def single(path: Path) -> Path:
    return write_folder(path, {"model.safetensors": TENSORS})


def sharded(path: Path) -> Path:
    return write_folder(path, {A: {"a": TENSORS["a"], "b": TENSORS["b"]}, B: {"c": TENSORS["c"]}})


def refused(path: Path, error: type[Exception] = CheckpointError) -> str:
    with pytest.raises(error) as caught:
        open_folder(path)
    assert str(caught.value).startswith(str(path))
    assert str(caught.value).isprintable()
    return str(caught.value)


def fault_of(path: Path) -> str:
    """Why generation_config.json cannot be read."""
    found = open_folder(path)
    assert found.generation_config is None and isinstance(found.generation_fault, ConfigError)
    assert str(found.generation_fault).startswith(str(path)) and str(found.generation_fault).isprintable()
    return str(found.generation_fault)


@pytest.mark.parametrize("build", [single, sharded])
def test_opens(tmp_path: Path, build: Callable[[Path], Path]) -> None:
    path = build(tmp_path / "model")
    checkpoint = open_folder(path)
    assert checkpoint.path == path
    assert checkpoint.config == {"model_type": "llama"}
    assert checkpoint.generation_config is None
    assert {name: weight.data.tobytes() for name, weight in checkpoint.weights.items()} == {
        name: data for name, (_, _, data) in TENSORS.items()
    }
    files = {"model.safetensors"} if build is single else {A, B}
    assert {weight.file.name for weight in checkpoint.weights.values()} == files


def test_generation_config(tmp_path: Path) -> None:
    path = single(tmp_path)
    (path / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    assert open_folder(path).generation_config == {"eos_token_id": [1, 2]}


def test_real_models(data_dir: Path) -> None:
    checkpoint = open_folder(data_dir / "stories260k")
    assert sum(int(np.prod(weight.shape)) for weight in checkpoint.weights.values()) > 260_000 // 2
    assert checkpoint.config["model_type"] == "llama"


def test_index_of_a_single_file(tmp_path: Path) -> None:
    path = single(tmp_path)
    write_index(path, dict.fromkeys(TENSORS, "model.safetensors"))
    assert open_folder(path).weights.keys() == TENSORS.keys()


def test_files_that_the_index_does_not_name_are_not_opened(tmp_path: Path) -> None:
    path = sharded(tmp_path)
    (path / "consolidated.safetensors").write_bytes(b"the same weights under other names")
    assert open_folder(path).weights.keys() == TENSORS.keys()


class TestConfigs:
    def test_missing(self, tmp_path: Path) -> None:
        path = single(tmp_path)
        (path / "config.json").unlink()
        assert "has no config.json" in refused(path, ConfigError)

    def test_broken(self, tmp_path: Path) -> None:
        path = single(tmp_path)
        (path / "config.json").write_text('{"a": 1, "a": 2}')
        assert "config.json: the key 'a' comes twice" in refused(path, ConfigError)

    def test_a_broken_generation_config_is_an_error_of_what_needs_it(self, tmp_path: Path) -> None:
        path = single(tmp_path)
        (path / "generation_config.json").write_text('{"a": 1, "a": 2}')
        assert "generation_config.json: the key 'a' comes twice" in fault_of(path)


class TestOtherFolders:
    def test_no_folder(self, tmp_path: Path) -> None:
        assert "is no folder; expected one with config.json and model.safetensors" in refused(tmp_path / "nothing")

    def test_empty(self, tmp_path: Path) -> None:
        assert "expected model.safetensors or model.safetensors.index.json, found nothing" in refused(tmp_path)

    @pytest.mark.parametrize(
        ("file", "content", "named"),
        [
            ("publisher/name-GGUF/name-Q4_0.gguf", b"GGUF", "publisher/name-GGUF/name-Q4_0.gguf"),
            ("models/blobs/sha256-0a", b"GGUF\3", "models/blobs/sha256-0a"),
            ("models--org--name/snapshots/0a/config.json", b"{}", "models--org--name/snapshots/0a"),
            ("models/blobs/sha256-0b", b"{}", None),
            ("a/b/c/d/e/f/name.gguf", b"GGUF", None),
        ],
    )
    def test_the_root_of_a_store_names_what_is_inside(
        self, tmp_path: Path, file: str, content: bytes, named: str | None
    ) -> None:
        """LM Studio's, Ollama's, the hub's cache; only so deep."""
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_bytes(content)
        message = refused(tmp_path)
        assert message.endswith(f"is this the model? There is {tmp_path / named}" if named else "is this the model?")

    def test_other_files_are_listed(self, tmp_path: Path) -> None:
        for number in range(12):
            (tmp_path / f"note{number:02}\n.txt").touch()
        message = refused(tmp_path)
        assert r"found 'note00\n.txt', 'note01\n.txt'" in message
        assert r"'note09\n.txt' and 2 more" in message

    @pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "model.pt"])
    def test_pickles(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).write_bytes(b"\x80\x04.")
        message = refused(tmp_path)
        assert f"only as '{name}', a pickle" in message
        assert "from_pretrained, then save_pretrained" in message

    def test_gguf(self, tmp_path: Path) -> None:
        (tmp_path / "model-q4.gguf").touch()
        assert "has its weights as GGUF ('model-q4.gguf'): name the file, like FOLDER/NAME.gguf" in refused(tmp_path)

    def test_shards_without_index(self, tmp_path: Path) -> None:
        path = sharded(tmp_path)
        (path / "model.safetensors.index.json").unlink()
        assert f"has '{A}' but neither model.safetensors nor model.safetensors.index.json" in refused(path)

    @pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
    @pytest.mark.parametrize("beside_model", [False, True])
    def test_adapter(self, tmp_path: Path, name: str, beside_model: bool) -> None:
        if beside_model:
            single(tmp_path)
        (tmp_path / name).write_text("{}")
        assert f"has {name}, a LoRA adapter" in refused(tmp_path)

    def test_single_and_sharded(self, tmp_path: Path) -> None:
        single(sharded(tmp_path))
        assert "has both model.safetensors and an index of other files" in refused(tmp_path)

    def test_no_permission(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def denied(folder: Path) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(Path, "iterdir", denied)  # file modes do not stop root
        assert "cannot be read (Permission denied); may you read it?" in refused(single(tmp_path))


class TestIndex:
    def test_shard_missing(self, tmp_path: Path) -> None:
        path = sharded(tmp_path)
        (path / A).unlink()
        assert f"has no {A}, into which the index puts 2 tensors; download it too" in refused(path)

    def test_shard_broken(self, tmp_path: Path) -> None:
        path = sharded(tmp_path)
        (path / B).write_bytes((path / B).read_bytes()[:-1])
        message = refused(path)
        assert f"{B}: tensor 'c': its data ends at byte" in message

    def test_tensor_missing(self, tmp_path: Path) -> None:
        path = sharded(tmp_path)
        write_index(path, {"a": A, "b": A, "c": B, "d": B})
        assert f"1 tensors are not where it says: 'd' is not in {B}" in refused(path)

    def test_tensor_not_listed(self, tmp_path: Path) -> None:
        path = sharded(tmp_path)
        write_index(path, {"a": A, "c": B})
        assert f"1 tensors are not where it says: 'b' is in {A}, not listed;" in refused(path)

    def test_tensor_elsewhere(self, tmp_path: Path) -> None:
        path = sharded(tmp_path)
        write_index(path, {"a": A, "b": B, "c": B})
        assert f"1 tensors are not where it says: 'b' is in {A}, listed for {B};" in refused(path)

    @pytest.mark.parametrize("right", [A, B])
    def test_tensor_in_two_shards(self, tmp_path: Path, right: str) -> None:
        path = write_folder(tmp_path, {A: TENSORS, B: {"c": TENSORS["c"]}})
        write_index(path, {"a": A, "b": A, "c": right})
        if right == A:
            (path / "model.safetensors.index.json").write_text(
                json.dumps({"weight_map": {"a": A, "b": A, "c": A, "d": B}})
            )
        wrong = B if right == A else A
        assert f"'c' is in {wrong} and in {right}" in refused(path)

    def test_faults_are_listed_together(self, tmp_path: Path) -> None:
        path = sharded(tmp_path)
        write_index(path, {f"t{i:02}": A for i in range(20)} | {"c": B})
        message = refused(path)
        assert f"22 tensors are not where it says: 'a' is in {A}, not listed, 'b' is" in message
        assert f"'t07' is not in {A} and 12 more" in message

    def test_stops_reading_after_many_faults(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(folder_module, "_MAX_STRAYS", 1)
        path = sharded(tmp_path)
        write_index(path, {"x": A, "c": B})
        (path / B).write_bytes(b"would be refused")
        assert "at least 2 tensors are not where it says: 'a' is in" in refused(path)

    @pytest.mark.parametrize(
        "name",
        [
            "../secret.safetensors",
            "/etc/secret.safetensors",
            "sub/model.safetensors",
            "..\\secret.safetensors",
            "C:secret.safetensors",
            ".safetensors",
            "..safetensors",
            "model.safetensors/",
            "a\0b.safetensors",
            "a\n.safetensors",
            "model.safetensors\n",
            "pytorch_model.bin",
            "*.safetensors",
            "-rf.safetensors",
            "~.safetensors",
            "x" * 300 + ".safetensors",
            "",
        ],
    )
    def test_name_that_leaves_the_folder(self, tmp_path: Path, name: str) -> None:
        path = sharded(tmp_path / "model")
        (tmp_path / "secret.safetensors").write_bytes(official(TENSORS))
        write_index(path, {"a": name, "c": B})
        assert "expected a plain name like 'model-00001-of-00002.safetensors'" in refused(path)

    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            ("", "is no index: expected '{', found '' at character 0"),
            ("[]", "is no index: expected '{', found '[]'"),
            ("{}", "names no tensor in its weight_map"),
            ('{"weight_map": {}}', "names no tensor in its weight_map"),
            ('{"weight_map": []}', "is no index: expected '{', found '[]}' at character 15"),
            ('{"weight_map": {"a": 1}}', "is no index: expected a string in double quotes, found '1}}'"),
            ('{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', "is no index: the key 'a' comes twice"),
            ('{"weight_map": {}, "weight_map": {}}', "is no index: the key 'weight_map' comes twice"),
            ('{"weight_map": {"' + "n" * 193 + '": "x.safetensors"}}', "has more than 192 characters"),
            ('{"weight_map": {"a": "x.safetensors"}', "is no index: expected ',' or '}', found ''"),
            ('{"weight_map": {"a": "x.safetensors"}}{', "is no index: something follows the object"),
        ],
    )
    def test_malformed(self, tmp_path: Path, content: str, expected: str) -> None:
        path = sharded(tmp_path)
        (path / "model.safetensors.index.json").write_text(content)
        assert expected in refused(path)

    def test_too_large(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(folder_module, "MAX_INDEX_BYTES", 100)
        assert "is no index: 1" in refused(sharded(tmp_path))


class TestLinks:
    def cached(self, cache: Path, blobs: Path) -> Path:
        """A snapshot as huggingface_hub lays it out, with its files in `blobs`."""
        plain = single(cache.parent / "plain")
        snapshot = cache / "models--org--name" / "snapshots" / "0123abcd"
        snapshot.mkdir(parents=True)
        blobs.mkdir(parents=True, exist_ok=True)
        for number, file in enumerate(sorted(plain.iterdir())):
            file.rename(blobs / f"{number}")
            (snapshot / file.name).symlink_to(os.path.relpath(blobs / f"{number}", snapshot))
        return snapshot

    def test_hub_cache(self, tmp_path: Path) -> None:
        cache = tmp_path / "hub"
        snapshot = self.cached(cache, cache / "models--org--name" / "blobs")
        assert open_folder(snapshot).weights.keys() == TENSORS.keys()

    def test_hub_cache_with_shared_blobs(self, tmp_path: Path) -> None:
        """Newer versions of huggingface_hub link a model's blobs on to those of the whole cache."""
        cache = tmp_path / "hub"
        shared = cache / "blobs" / "ab"
        snapshot = self.cached(cache, shared)
        blobs = snapshot.parent.parent / "blobs"
        blobs.mkdir()
        for link in snapshot.iterdir():
            target = link.resolve()
            (blobs / target.name).symlink_to(os.path.relpath(target, blobs))
            link.unlink()
            link.symlink_to(f"../../blobs/{target.name}")
        assert open_folder(snapshot).weights.keys() == TENSORS.keys()

    def test_cache_behind_a_link(self, tmp_path: Path) -> None:
        cache = tmp_path / "hub"
        self.cached(cache, cache / "models--org--name" / "blobs")
        (tmp_path / "link").symlink_to(cache)
        snapshot = tmp_path / "link" / "models--org--name" / "snapshots" / "0123abcd"
        assert open_folder(snapshot).weights.keys() == TENSORS.keys()

    def test_within_the_folder(self, tmp_path: Path) -> None:
        path = single(tmp_path)
        (path / "model.safetensors").rename(path / "weights")
        (path / "model.safetensors").symlink_to("weights")
        assert open_folder(path).weights.keys() == TENSORS.keys()

    @pytest.mark.parametrize("name", [A, "config.json", "generation_config.json", "model.safetensors.index.json"])
    def test_out_of_the_folder(self, tmp_path: Path, name: str) -> None:
        """A work folder links to where models lie; the name in an index is still one of the folder's own."""
        path = sharded(tmp_path / "model")
        (path / "generation_config.json").write_text("{}")
        expected = open_folder(path)
        (path / name).rename(tmp_path / "elsewhere")
        (path / name).symlink_to("../elsewhere")
        found = open_folder(path)
        assert (found.config, found.weights.keys()) == (expected.config, expected.weights.keys())

    def test_a_folder_of_links(self, tmp_path: Path) -> None:
        path = sharded(tmp_path / "store" / "model")
        work = tmp_path / "work"
        work.mkdir()
        for file in path.iterdir():
            (work / file.name).symlink_to(file)
        assert open_folder(work).weights.keys() == TENSORS.keys()

    def test_blobs_on_another_disk(self, tmp_path: Path) -> None:
        snapshot = self.cached(tmp_path / "hub", tmp_path / "other" / "blobs")
        assert open_folder(snapshot).weights.keys() == TENSORS.keys()

    def test_to_what_is_no_file(self, tmp_path: Path) -> None:
        path = single(tmp_path / "model")
        (path / "generation_config.json").symlink_to("/dev/zero")
        assert "generation_config.json: is no regular file" in fault_of(path)

    def test_dangling(self, tmp_path: Path) -> None:
        path = single(tmp_path)
        (path / "config.json").unlink()
        (path / "config.json").symlink_to("gone")
        assert "config.json: is a link to gone, which is not there; download it again" in refused(path)

    def test_loop(self, tmp_path: Path) -> None:
        path = single(tmp_path)
        (path / "config.json").unlink()
        (path / "config.json").symlink_to("config.json")
        assert "is a link to config.json, which is not there" in refused(path)


class TestMemory:
    """The largest documents that are read at all, refused in less than 256 MB."""

    @pytest.mark.drawn(3)
    @pytest.mark.parametrize(
        ("pieces", "expected"),
        [
            pytest.param(repeat(b" " * 1000, 33_000), "expected '{', found ''", id="blanks"),
            pytest.param(chain([b'{"metadata": ['], repeat(b"[]," * 1000, 11_000)), "expecting value", id="lists"),
            pytest.param(chain([b'{"metadata": "'], repeat(b"x" * 1000, 33_000)), "a string of more", id="one string"),
            pytest.param(numbered(b'"%(n)d":0', 500_000), "an object of more than 262144 members", id="other keys"),
            pytest.param(
                numbered('"\U0001f600%(n)0190d":"m.safetensors"'.encode(), 150_000, b'{"weight_map": {'),
                "expected ',' or '}', found ''",
                id="long names",
            ),
            pytest.param(
                numbered(b'"%(n)d":"m.safetensors"', 400_000, b'{"weight_map": {'),
                "an object of more than 262144 members",
                id="many names",
            ),
            pytest.param(
                numbered(b'"%(n)d":"-%(n)d.safetensors"', 262_000, b'{"weight_map": {', b"}}"),
                "puts tensors into '-0.safetensors'",
                id="many files",
            ),
        ],
    )
    def test_index(self, tmp_path: Path, pieces: Iterable[bytes], expected: str) -> None:
        path = sharded(tmp_path)
        with (path / "model.safetensors.index.json").open("wb") as file:
            file.write(b"".join(pieces)[: 32 << 20])
        assert expected in refused_within_limit(path, "open_folder")

    @pytest.mark.drawn(2)
    @pytest.mark.parametrize("piece", [b"[],", b"{},", b'{"":0},', b'["a"],'])
    def test_config(self, tmp_path: Path, piece: bytes) -> None:
        path = single(tmp_path)
        (path / "config.json").write_bytes(b'{"a": [' + piece * ((4 << 20) // len(piece) - 4))
        assert "config.json: expecting" in refused_within_limit(path, "open_folder")

    @pytest.mark.slow
    def test_many_strays(self, tmp_path: Path) -> None:
        """Shards full of tensors that the index does not know: reading ends early."""
        path = write_folder(tmp_path, {A: {"a": TENSORS["a"]}})
        header = b"".join(numbered(b'"%(n)d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}', MAX_TENSORS, end=b"}"))
        shards = [f"{number}.safetensors" for number in range(20)]
        for shard in shards:
            (path / shard).write_bytes(raw(header))
        write_index(path, {f"t{shard}": shard for shard in shards})
        assert f"at least {MAX_TENSORS} tensors are not where it says: '0' is in 0.safetensors, not listed" in (
            refused_within_limit(path, "open_folder")
        )
