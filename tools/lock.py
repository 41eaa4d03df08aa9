"""Resolve every dependency (base, extras, build, wheel, peers) anew and write the exact versions to constraints.txt.

Run by `make lock`, in an environment that has the build tools. Versions are those that pip chooses for this
Python and platform; CONTRIBUTING.md says which Python to use.
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = "# Exact versions of everything that make installs. Written by `make lock`; do not edit.\n"


def resolve() -> dict[str, str]:
    """Name to version of everything that the requirements bring in, Karat itself left out."""
    files = "build wheel peers clients lm-eval router ray browser deploy".split()
    wanted = [word for file in files for word in ("-r", f"requirements/{file}.txt")] + [".[check,dev,train]"]
    report = ["--quiet", "--dry-run", "--ignore-installed", "--no-build-isolation", "--report", "-"]
    command = [sys.executable, "-m", "pip", "install", *report, *wanted]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    chosen = (item["metadata"] for item in json.loads(done.stdout)["install"])
    # A local part (+cpu) names a build, not a version; the requirement chooses the build.
    return {item["name"].lower().replace("_", "-"): item["version"].partition("+")[0] for item in chosen}


def main() -> None:
    versions = resolve()
    del versions["karat-llm"]
    lines = [f"{name}=={version}\n" for name, version in sorted(versions.items())]
    (ROOT / "constraints.txt").write_text(HEADER + "".join(lines), encoding="utf-8")
    print(f"constraints.txt: {len(lines)} packages")


if __name__ == "__main__":
    main()
