"""Coverage-guided fuzzing of the GGUF reader: python tools/fuzz_gguf.py --seconds 600.

Files are mutated, and those that reach new lines (or lines in a new order, or more often) are kept to be mutated
further. Each must end in a KaratError or in a model that can be described, within a second and LIMIT_MB of memory.
A file that ends otherwise is saved under --out, and the exit status is 1.
"""

import argparse
import random
import resource
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from karat.checkpoint import gguf  # noqa: E402
from karat.errors import KaratError  # noqa: E402
from karat.models.opening import open_gguf  # noqa: E402
from karat.models.registry import find_weights, read_config  # noqa: E402
from karat.text import Tokenizer, gguf_tokenizer  # noqa: E402
from tests.checkpoint.gguf import builders as b  # noqa: E402

LIMIT_MB, LIMIT_S = 256, 1.0
_LARGE = [0x7FFF, 0xFFFF, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
NUMBERS = [0, 1, 2, 3, 4, 8, 9, 31, 32, 33, 255, 256, *_LARGE]
WORDS = [
    b"general.",
    b"alignment",
    b"architecture",
    b"llama",
    b"qwen2",
    b"qwen3",
    b"split.count",
    b".weight",
    b".bias",
    b"blk.0.",
    b"rope_freqs.weight",
    b"tokenizer.ggml.",
    b"tokens",
    b"merges",
    b"gpt2",
    b"\xff\xfe",
    b"\0",
]


@dataclass
class Fuzzer:
    """Runs `target` on mutations of `corpus`; `is_traced` tells whether a source file counts for coverage."""

    target: Callable[[bytes], None]
    corpus: list[bytes]
    is_traced: Callable[[str], bool]
    rng: random.Random
    seen: set[tuple[str, int, int, int]] = field(default_factory=set)
    faults: list[tuple[bytes, str]] = field(default_factory=list)
    num_runs: int = 0

    def run(self, seconds: float) -> None:
        """Fuzz for `seconds`, or until 20 faults were found."""
        end = time.monotonic() + seconds
        for content in list(self.corpus):
            self._try(content)
        while time.monotonic() < end and len(self.faults) < 20:
            content = self.mutated()
            if self._try(content):
                self.corpus.append(content)

    def mutated(self) -> bytes:
        """A file of the corpus with one to six changes. Newer files, which reached further, are taken more often."""
        rng = self.rng
        place = max(rng.randrange(len(self.corpus)), rng.randrange(len(self.corpus)))
        content = bytearray(self.corpus[place])
        for _ in range(rng.randint(1, 6)):
            where = rng.randrange(len(content) + 1)
            match rng.randrange(8):
                case 0 if content:
                    content[where % len(content)] ^= 1 << rng.randrange(8)
                case 1 if content:
                    content[where % len(content)] = rng.randrange(256)
                case 2:
                    form = rng.choice(["<Q", "<Q", "<I", "<H"])
                    number = rng.choice(NUMBERS) % (1 << 8 * struct.calcsize(form))
                    content[where : where + struct.calcsize(form)] = struct.pack(form, number)
                case 3:
                    del content[where : where + rng.choice([1, 4, 8, 32, 100])]
                case 4:
                    content[where:where] = rng.randbytes(rng.choice([1, 4, 8, 32]))
                case 5:
                    word = rng.choice(WORDS)
                    content[where : where + len(word)] = word
                case 6:
                    other = rng.choice(self.corpus)
                    cut = rng.randrange(len(other) + 1)
                    content[where:] = other[cut:]
                case _:
                    size = rng.choice([4, 8, 12, 40])
                    source = rng.randrange(len(content) + 1)
                    content[where:where] = content[source : source + size]
        return bytes(content[: 1 << 16])

    def _try(self, content: bytes) -> bool:
        """Whether the file reached lines that no file had reached."""
        self.num_runs += 1
        counts: dict[tuple[str, int, int], int] = {}
        last = [0]

        def local(frame: FrameType, event: str, arg: Any) -> Any:
            if event == "line":
                key = (frame.f_code.co_filename, last[0], frame.f_lineno)
                counts[key] = counts.get(key, 0) + 1
                last[0] = frame.f_lineno
            return local

        def trace(frame: FrameType, event: str, arg: Any) -> Any:
            return local if self.is_traced(frame.f_code.co_filename) else None

        start = time.process_time()
        sys.settrace(trace)
        try:
            self.target(content)
        except KaratError:
            pass
        except Exception:  # noqa: BLE001 - what is looked for
            self.faults.append((content, traceback.format_exc()))
        finally:
            sys.settrace(None)
        took = time.process_time() - start
        if took > LIMIT_S:
            self.faults.append((content, f"took {took:.2f} s of processor time"))
        reached = {(*key, count.bit_length()) for key, count in counts.items()}
        is_new = not reached <= self.seen
        self.seen |= reached
        return is_new


def seeds() -> Iterator[bytes]:
    """Right files of several kinds."""
    yield b.tiny()
    yield b.tiny(version=2)
    yield b.tiny({"general.alignment": (b.U32, 8)}, alignment=8)
    yield b.tiny({"nested": (b.ARRAY, (b.ARRAY, [(b.U32, [1, 2]), (b.STRING, ["a"])])), "x": (b.F64, 0.5)})
    bpe = {
        "tokenizer.ggml.model": (b.STRING, "gpt2"),
        "tokenizer.ggml.pre": (b.STRING, "llama-bpe"),
        "tokenizer.ggml.merges": (b.ARRAY, (b.STRING, ["▁ a"])),
        "tokenizer.chat_template": (b.STRING, "{{ messages }}"),
    }
    yield b.tiny(bpe)
    scaling = {"llama.rope.scaling.type": (b.STRING, "yarn"), "llama.rope.scaling.factor": (b.F32, 4.0)}
    yield b.tiny(scaling)
    yield b.build(b.pairs(), [*b.tensors(), ("rope_freqs.weight", [2], 0, struct.pack("<ff", 1, 8))])


def use(path: Path, content: bytes) -> None:
    """Read everything of a file that is read before its weights, and two weights."""
    path.write_bytes(content)
    checkpoint = open_gguf(path)
    weights = find_weights(read_config(checkpoint.config), checkpoint)
    for weight in list(weights.values())[:2]:
        assert weight.data.nbytes == weight.num_bytes
    Tokenizer.of(checkpoint).encode("a b")


def _peak_mb() -> int:
    """The most memory that this process held."""
    status = Path("/proc/self/status")  # on Linux, ru_maxrss begins with the parent's
    if status.exists():
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) >> 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> (20 if sys.platform == "darwin" else 10)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"), help="where faults are saved")
    options = parser.parse_args()
    files = (str(Path(gguf.__file__).parent), str(Path(gguf_tokenizer.__file__)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.gguf"
        fuzzer = Fuzzer(
            lambda content: use(path, content),
            list(seeds()),
            lambda name: name.startswith(files),
            random.Random(options.seed),
        )
        fuzzer.run(options.seconds)
    peak_mb = _peak_mb()
    print(
        f"{fuzzer.num_runs} files, {len(fuzzer.corpus)} kept, {len(fuzzer.seen)} transitions of lines, {peak_mb} MB, "
        f"{len(fuzzer.faults)} faults (seed {options.seed})"
    )
    for number, (content, what) in enumerate(fuzzer.faults):
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / f"{number}.gguf").write_bytes(content)
        print(f"{options.out / f'{number}.gguf'}: {what}")
    return 1 if fuzzer.faults or peak_mb > LIMIT_MB else 0


if __name__ == "__main__":
    sys.exit(main())
