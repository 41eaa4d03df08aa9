"""What a model's name may mean: a folder here, or org/name on the hub; and what is neither."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from karat.checkpoint import hub as hub_module
from karat.checkpoint import resolve
from karat.checkpoint.hub import pull
from karat.checkpoint.locate import absent
from karat.errors import CheckpointError, HubError, UsageError


class TestNames:
    @pytest.fixture(autouse=True)
    def no_network(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object, **__: object) -> None:
            pytest.fail("the hub was asked")

        monkeypatch.setattr(hub_module, "snapshot_download", fail)

    @pytest.mark.parametrize(
        "name",
        [
            "fox",
            "",
            "org/",
            "a/b/c",
            "org/..",
            "org/.fox",
            "org/fox.",
            "-org/fox",
            "org/fo x",
            "org/fox\n",
            "org/fox@",
            "org/fox@v1@v2",
            "org/fox@\n",
            "org/fox?x=1",
            "org/fox#1",
            "org\\fox",
            "https://hub/org/fox",
            "org/f\N{LATIN SMALL LETTER O WITH DIAERESIS}x",
            "x" * 300,
            "org/" + "x" * 300,
            "org/fox\0",
            "~nobody-of-this-name/fox",
        ],
    )
    def test_no_name(self, name: str) -> None:
        for function in (resolve, pull):
            with pytest.raises(HubError, match="org/name or org/name@revision"):
                function(name)

    @pytest.mark.parametrize("name", ["/fox", "../fox", "../x/y", "./org/fox", "~/fox", "fox.gguf", "./org/fox.gguf"])
    def test_a_path_to_nothing(self, name: str) -> None:
        with pytest.raises(CheckpointError, match="does not exist"):
            resolve(name)
        with pytest.raises(HubError, match="org/name or org/name@revision"):
            pull(name)

    @pytest.mark.parametrize("name", ["org/a..b", "org/a--b", "a--b/fox", "org/fox@../../x", "org/fox@/etc/passwd"])
    def test_name_that_leaves_the_cache(self, name: str) -> None:
        with pytest.raises(HubError, match="check the spelling"):
            resolve(name)

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("models/nope.gguf", "does not exist; expected a GGUF file"),
            ("nowhere/nope.gguf", "does not exist; expected a GGUF file"),
        ],
    )
    def test_a_path_with_one_slash_is_no_name(
        self, name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "models").mkdir()
        monkeypatch.chdir(tmp_path)
        with pytest.raises(CheckpointError, match=said):
            resolve(name)
        with pytest.raises(pytest.fail.Exception, match="the hub was asked"):
            resolve(f"hf.co/{name.removesuffix('.gguf')}")
        assert absent("https://huggingface.co/org/name/resolve/main/name-Q4_0.gguf") is None

    def test_a_name_whose_first_part_is_a_folder_here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It may be one of the hub all the same, in its cache or there; where it is not, both places are named."""
        (tmp_path / "models").mkdir()
        monkeypatch.chdir(tmp_path)
        with pytest.raises(pytest.fail.Exception, match="the hub was asked"):
            resolve("models/nope")

        def offline(*args: object, **options: object) -> Path:
            raise HubError("models/nope: not here")

        monkeypatch.setattr("karat.checkpoint.hub.pull", offline)
        with pytest.raises(HubError, match=r"is not in the folder 'models' here; of the hub: models/nope: not here"):
            resolve("models/nope")

    def test_a_name_of_ollama(self) -> None:
        with pytest.raises(
            HubError, match=r"`karat pull org/name` fetches one\); Ollama's models are files: ~/.ollama/"
        ):
            resolve("smollm2:135m")

    def test_two_revisions(self) -> None:
        with pytest.raises(UsageError, match="org/fox@v1: has a revision, and 'v2' was given too"):
            pull("org/fox@v1", revision="v2")


class TestSpellings:
    @pytest.mark.parametrize(
        ("given", "plain"),
        [
            ("org/fox", "org/fox"),
            ("hf.co/org/fox", "org/fox"),
            ("hf.co/org/fox:Q4_K_M", "org/fox:Q4_K_M"),
            ("hf.co/org/fox:latest", "org/fox:latest"),
            ("https://huggingface.co/org/fox", "org/fox"),
            ("https://huggingface.co/org/fox/", "org/fox"),
            ("http://www.hf.co/org/fox@v1", "org/fox@v1"),
            ("https://huggingface.co/org/fox/tree/v1", "org/fox@v1"),
            ("https://huggingface.co/org/fox/tree/main", "org/fox"),
            ("https://huggingface.co/org/fox/blob/main/a/fox-Q8_0-00001-of-00002.gguf", "org/fox:fox-Q8_0"),
            ("hf://org/fox", "org/fox"),
            ("https://elsewhere.org/org/fox", "https://elsewhere.org/org/fox"),
            ("hf.company/fox", "hf.company/fox"),
        ],
    )
    def test_plain_name(self, given: str, plain: str) -> None:
        assert hub_module.plain_name(given) == plain


class TestLocal:
    def test_everything_else_is_pulled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def pulled(model: str, **options: object) -> Path:
            return Path(f"{model} {options}")

        monkeypatch.setattr(hub_module, "pull", pulled)
        assert str(resolve("org/fox")) == "org/fox {'revision': None, 'progress': True}"
        options = {"revision": "v1", "progress": False}
        assert str(resolve("org/fox", revision="v1", progress=False)) == f"org/fox {options}"

    def test_folder_comes_first(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "org" / "fox").mkdir(parents=True)
        monkeypatch.chdir(tmp_path)
        assert resolve("org/fox") == Path("org/fox")
        assert resolve(tmp_path) == tmp_path

    def test_home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "fox").mkdir()
        monkeypatch.setenv("HOME", str(tmp_path))
        assert resolve("~/fox") == tmp_path / "fox"

    def test_file(self, tmp_path: Path) -> None:
        (tmp_path / "model.safetensors").touch()
        (tmp_path / "config.json").touch()
        with pytest.raises(CheckpointError, match=f"is a file; expected the folder .*: give {tmp_path}"):
            resolve(tmp_path / "model.safetensors")

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (b"lmgg\0\0\0\0", "is a file; it is an old GGML file of before August 2023: convert the original model to"),
            (
                b"# Modelfile generated by x\nFROM /blob\n",
                "is a file; it is an Ollama Modelfile: give the file that its",
            ),
            (b"FROM /blob\n", "is a file; it is an Ollama Modelfile: give the file that its FROM names; expected"),
            (b"", "is a file; expected the folder with config.json and the weights; or a GGUF file"),
        ],
    )
    def test_another_file_is_named_and_its_folder_is_no_advice(
        self, content: bytes, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "other").write_bytes(content)
        monkeypatch.chdir(tmp_path)
        for name in ("other", "/dev/null"):
            with pytest.raises(
                CheckpointError, match=said if name == "other" else "is a file; no regular one; "
            ) as raised:
                resolve(name)
            assert "give ." not in str(raised.value)

    def test_a_gguf_file_is_told_by_its_first_bytes(self, tmp_path: Path) -> None:
        """`karat convert` writes what it is told to, and blobs of Ollama have no ending."""
        (tmp_path / "blob").write_bytes(b"GGUF\3\0\0\0")
        assert resolve(tmp_path / "blob") == resolve(str(tmp_path / "blob")) == tmp_path / "blob"
        (tmp_path / "other").write_bytes(b"GGU")
        os.mkfifo(tmp_path / "pipe")
        for name in ("other", "pipe"):
            with pytest.raises(CheckpointError, match="or a GGUF file, which begins with GGUF"):
                resolve(tmp_path / name)

    def test_path_that_does_not_exist(self) -> None:
        with pytest.raises(CheckpointError, match="org/fox: does not exist; expected a folder"):
            resolve(Path("org/fox"))

    @pytest.mark.parametrize("name", ["fox.gguf", "./fox.gguf", "/fox/owl.gguf", "~/fox.gguf"])
    def test_name_of_a_file_that_does_not_exist(self, name: str) -> None:
        with pytest.raises(CheckpointError, match="does not exist; expected a GGUF file"):
            resolve(name)

    def test_revision_of_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="is local and has no revision 'v1'; leave it out"):
            resolve(tmp_path, revision="v1")

    def test_needs_no_hub_library(self, tmp_path: Path) -> None:
        program = (
            "import sys; from karat.checkpoint import resolve\n"
            f"resolve({str(tmp_path)!r}); sys.exit('huggingface_hub' in sys.modules)"
        )
        subprocess.run([sys.executable, "-c", program], check=True)
