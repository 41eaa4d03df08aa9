"""Try an installed Karat as a user does, without its sources and without a compiler.

    python tools/try_wheel.py WHEEL    in an empty environment, with its dependencies from the package index
    python tools/try_wheel.py          in this environment, where it is installed (cibuildwheel does so in its own)

Every command runs in an empty folder with an empty PATH. The checks: all kernel builds of this kind of machine are in
the wheel; the builds that run here tell the same story; `karat check` calls the model right. Needs only Python.
"""

import json
import platform
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
X86 = ["generic", "avx2", "avx2-vnni", "avx512-intel", "avx512", "avx512-vnni", "avx512-amx"]
ARM = ["generic", "neon", "neon-dotprod", "neon-i8mm"]
BUILDS = {"x86_64": X86, "AMD64": X86, "aarch64": ARM, "arm64": ARM}
STORY = ("run", "Once upon a time", "--max-tokens", "60", "--seed", "1")


def main(arguments: list[str]) -> None:
    if not arguments:
        try_command(Path(sysconfig.get_path("scripts")) / "karat")
        return
    with tempfile.TemporaryDirectory() as temporary:
        scripts = Path(temporary) / "bin"
        venv.create(temporary, with_pip=True)
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]
        constraints = ["-c", str(ROOT / "constraints.txt"), arguments[0]]
        subprocess.run([str(scripts / "python"), *install, *constraints], check=True)
        try_command(scripts / "karat")


def try_command(karat: Path, *, builds: list[str] | None = None) -> None:
    """Ends the program with a sentence if the command `karat` does not behave as one from a wheel must.

    builds: the kernel builds that must be in the wheel; None: those of this kind of machine.
    """
    expected = BUILDS[platform.machine()] if builds is None else builds
    facts = json.loads(run(karat, "env", "--json"))
    native = facts["native"]
    if not native["available"]:
        sys.exit(f"the wheel has no kernels: {native['reason']}")
    if native["compiled_builds"] != expected:
        sys.exit(f"kernel builds in the wheel: {native['compiled_builds']}; expected {expected}")
    print(f"karat {facts['karat']} on Python {facts['python']}, no compiler; kernel builds: {', '.join(expected)}")
    stories = {build: run(karat, *STORY, KARAT_ISA=build) for build in native["kernel_builds"]}
    story = run(karat, *STORY)
    if len(story.split()) < 20:
        sys.exit(f"a story of fewer than 20 words: {story!r}")
    if others := [build for build, told in stories.items() if told != story]:
        sys.exit(f"kernel builds that tell another story: {', '.join(others)}")
    print(f"the same story by {', '.join(stories)}: Once upon a time{story[:60]}…")
    stages = ("--stages", "tokens,weights,logits", "--tokens", "16", "--against", "reference")
    verdict = json.loads(run(karat, "check", *stages, "--json"))
    print(f"karat check: {verdict['verdict']}")


def run(karat: Path, *arguments: str, **environment: str) -> str:
    """The output of the command, run in a place without a compiler and without the sources."""
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(
            [str(karat), *arguments],
            cwd=empty,
            env={"PATH": empty, "HOME": empty} | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode or "without native kernels" in done.stderr:
        sys.exit(f"{karat.name} {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main(sys.argv[1:])
