"""A side of benchmarks.integers: Karat of an earlier commit, in a Python that has it installed.

`python benchmarks/earlier.py`, run by that Python, reads commands from stdin and writes their seconds to stdout, a line
of JSON each. It ends with its stdin. What it imports is in the earlier commit too, as long as that has
karat.bench.sides; it sleeps while it is not asked for anything.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from karat.bench.sides import KaratSide, Prompt, Sample
from karat.errors import ExecutorError

ROOT = Path(__file__).resolve().parent.parent


class Earlier:
    """That Karat as a Side; `python` is its interpreter, `given` the arguments of integer_sides.load_karat. If it has
    no such kernel build it takes its fastest; `details` has it.

    ExecutorError if it does not start, or ends.
    """

    def __init__(self, python: str, given: Mapping[str, Any]) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [python, "-P", str(Path(__file__).resolve()), json.dumps(given)]
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        except OSError as fault:
            raise ExecutorError(f"{python} cannot be run ({fault.strerror}); name a Python") from fault
        self.name = f"{given['isa']} before"
        loaded = self._reply()
        self.version, self.details = str(loaded["version"]), dict[str, object](loaded["details"])

    def prefill(self, prompt: Prompt) -> Sample:
        return self._ask("prefill", list(prompt))[0]

    def start(self, prompts: Sequence[Prompt], num_steps: int) -> None:
        self._ask("start", list(map(list, prompts)), num_steps)

    def steps(self, count: int) -> list[Sample]:
        return self._ask("steps", count)

    def stop(self) -> None:
        self._ask("stop")

    def close(self) -> None:
        self._process.communicate()

    def _ask(self, *words: Any) -> list[Sample]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(words) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as fault:
            raise self._ended() from fault
        return [Sample(seconds) for seconds in self._reply()]

    def _reply(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        return json.loads(line)

    def _ended(self) -> ExecutorError:
        return ExecutorError(f"the earlier Karat ended with code {self._process.wait()}; what it wrote says more")


def answer(side: KaratSide, name: str, *values: Any) -> list[float]:
    """Do what was asked for; the seconds of each sample."""
    found = getattr(side, name)(*values)
    samples = [found] if isinstance(found, Sample) else found or []
    return [sample.seconds for sample in samples]


def main() -> None:
    sys.path.insert(0, str(ROOT))
    from benchmarks.integer_sides import load_karat
    from karat.ops.native import supported_isas

    given = json.loads(sys.argv[1])
    if given["isa"] not in supported_isas():  # a build that came later: its own fastest
        given["isa"] = supported_isas()[-1]
    side = load_karat(**given)
    print(json.dumps({"version": side.version, "details": side.details}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(side, *json.loads(line))), flush=True)
    side.close()


if __name__ == "__main__":
    main()
