"""No process of Karat runs what lies in the current folder: a module beside a downloaded model is not trusted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PLANTED = ("numpy", "json", "struct", "ctypes", "karat", "llama_cpp", "msgspec", "typing_extensions")
SECONDS = 300  # a machine may be busy

# As pip writes the `karat` script: its own folder comes first on the path, not the current one.
SCRIPT = "import sys\nfrom karat.cli import main\nsys.exit(main())\n"
INSTALLED = Path(sys.executable).with_name("karat")
COMMANDS = [
    pytest.param(["env"], id="env"),
    pytest.param(["inspect"], id="inspect"),
    pytest.param(["run", "-q", "--max-tokens", "2", "Once"], id="run"),
    pytest.param(["run", "-q", "--tensor-parallel-size", "2", "--max-tokens", "2", "Once"], id="ranks"),
]
LLAMA_CPP = """
from pathlib import Path
from karat.check.record import llamacpp
from karat.errors import ExecutorError
try:
    llamacpp.llamacpp_tokens(Path("none.gguf"), {"a": "b"}, {})
except ExecutorError as fault:
    print(fault)
"""
BENCH_PEER = """
from karat.bench.peers.process import PeerProcess
from karat.errors import KaratError
try:
    PeerProcess("karat.bench.peers:load_peer", {"name": "nothing", "model": None})
except KaratError as fault:
    print(fault)
"""

ASYNC_ENGINE = """
import asyncio
from karat import AsyncLLM, SamplingParams
async def main():
    async with AsyncLLM() as llm:
        output = await llm.generate("Once", SamplingParams(max_tokens=2))
        print("answered", len(output.outputs[0].token_ids))
asyncio.run(main())
"""


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A folder with modules that leave a mark when they are imported."""
    folder = tmp_path / "downloads"
    folder.mkdir()
    for name in PLANTED:
        (folder / f"{name}.py").write_text(
            f"open({str(folder / ('HIT_' + name))!r}, 'w').close()\nraise SystemExit(77)\n"
        )
    return folder


def environment(path: str = "") -> dict[str, str]:
    """Without the variable that would defend Python by itself."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"} | {"PYTHONPATH": path}


def run(folder: Path, script: str, *arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    """A script that lies elsewhere, run in the folder."""
    file = folder.parent / "bin" / "script.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(script)
    return subprocess.run(
        [sys.executable, file, *arguments],
        cwd=folder,
        env=environment(path),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=SECONDS,
        check=False,
    )


def hits(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("HIT_*"))


def test_the_planted_modules_would_be_seen(planted: Path) -> None:
    done = subprocess.run([sys.executable, "-c", "import struct"], cwd=planted, timeout=SECONDS, check=False)
    assert done.returncode == 77 and hits(planted) == ["HIT_struct"]


@pytest.fixture
def native(request: pytest.FixtureRequest) -> None:
    if request.node.callspec.id == "ranks":
        pytest.importorskip("karat._native", reason="the kernels are not built")


@pytest.mark.slow
@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("arguments", COMMANDS)
def test_the_command_line(planted: Path, arguments: list[str]) -> None:
    done = run(planted, SCRIPT, *arguments)
    assert (done.returncode, hits(planted)) == (0, []), done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("native")
@pytest.mark.skipif(not INSTALLED.exists(), reason="the karat script is not installed beside this Python")
@pytest.mark.parametrize("arguments", COMMANDS)
def test_the_installed_script(planted: Path, arguments: list[str]) -> None:
    done = subprocess.run(
        [INSTALLED, *arguments],
        cwd=planted,
        env=environment(),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, hits(planted)) == (0, []), done.stderr


def test_the_worker_of_llama_cpp(planted: Path) -> None:
    """A stand-in for llama_cpp further along the path shows that the worker ran, and which one it took."""
    elsewhere = planted.parent / "site"
    elsewhere.mkdir()
    (elsewhere / "llama_cpp.py").write_text("raise SystemExit('the installed one')\n")
    done = run(planted, LLAMA_CPP, path=str(elsewhere))
    assert (done.returncode, hits(planted)) == (0, []), done.stderr
    assert "the installed one" in done.stdout


def test_a_peer_of_the_bench(planted: Path) -> None:
    done = run(planted, BENCH_PEER)
    assert (done.returncode, hits(planted)) == (0, []), done.stderr
    assert "peer 'nothing' is not known" in done.stdout, "the peer's process answered nothing"


@pytest.mark.slow
def test_the_engine_of_a_server(planted: Path) -> None:
    done = run(planted, ASYNC_ENGINE)
    assert (done.returncode, hits(planted)) == (0, []), done.stderr
    assert done.stdout == "answered 2\n"
