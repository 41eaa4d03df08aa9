"""Speed of every stored format, beside llama.cpp on the very same file: python -m benchmarks.formats [TYPE …]

For each type a GGUF file with random weights is made in build/formats (BF16 first; then converted as `karat convert`
does), `karat bench FILE` is run on it, and its JSON kept as benchmarks.record does. Without TYPE it measures those of
TYPES. At the end there is a table: tokens a second, the share of read bandwidth (decode) and of the FMA peak (prefill),
and how many times as fast as llama.cpp.

    python -m benchmarks.formats --shape qwen2.5-0.5b Q4_0 Q4_K_M Q6_K Q8_0     # rows of 896 fall back in K formats
    python -m benchmarks.formats --shape qwen2.5-1.5b --pure                    # rows are multiples of 256
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.cold_start import write_shape
from benchmarks.record import RESULTS, record
from karat.bench.shape_configs import SHAPES
from karat.convert import MIXES, convert
from karat.models.opening import open_model

_TYPES = "F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K_S Q4_K_M Q5_K_M Q6_K IQ4_NL IQ4_XS"
TYPES = tuple(_TYPES.split())


def make_file(folder: Path, shape: str, name: str, *, pure: bool) -> Path:
    """The file of this shape and type in `folder`, made if it is not there, and what it is made of."""
    source = folder / f"{shape}-BF16.gguf"
    folder.mkdir(parents=True, exist_ok=True)
    if not source.exists():
        print(f"{source} …", flush=True)
        write_shape(source, shape, "bf16")
    path = folder / f"{shape}-{name}{'-pure' if pure else ''}.gguf"
    if not path.exists():
        print(f"{path} …", flush=True)
        convert(open_model(source), path, MIXES[name], pure=pure)
    return path


def line(name: str, result: Mapping[str, Any]) -> str:
    """A row of the table from a result of `karat bench`."""
    rows = {row["name"]: row for row in result["rows"]}
    decode = next(row for title, row in rows.items() if title.startswith("decode") and "batch" not in title)
    prefill = next(row for title, row in rows.items() if title.startswith("prefill"))
    cells = [name]
    for row, share in ((decode, "of_bandwidth"), (prefill, "of_fma_peak")):
        peer = row.get("peer")
        ratio = f"{peer['ratio']:.2f} × ({peer['ratio_min']:.2f} – {peer['ratio_max']:.2f})" if peer else "–"
        cells += [f"{row['tokens_per_s']:.1f}", "–" if row[share] is None else f"{row[share]:.0%}", ratio]
    return f"| {' | '.join(cells)} |"


def main(arguments: list[str] | None = None, results: Path = RESULTS) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*", metavar="TYPE", help=f"some of {', '.join(TYPES)}; default: all")
    parser.add_argument("--shape", default="qwen2.5-0.5b", choices=SHAPES)
    parser.add_argument("--pure", action="store_true", help="the same type for all matrices")
    parser.add_argument("--folder", type=Path, default=Path("build/formats"), help="for the files, which are kept")
    parser.add_argument("--peer", default="llama.cpp", help="another engine beside, or none")
    parser.add_argument("-p", "--prompt-tokens", default="512")
    parser.add_argument("-n", "--gen-tokens", default="64")
    parser.add_argument("--repeat", default="5")
    options = parser.parse_args(arguments)
    names = [name.upper() for name in options.types] or list(TYPES)
    if unknown := [name for name in names if name not in MIXES]:
        parser.error(f"{unknown[0]}: expected some of {', '.join(MIXES)}")
    table = [
        "| type | decode, tok/s | of bandwidth | × peer | prefill, tok/s | of FMA peak | × peer |",
        "|---" * 7 + "|",
    ]
    for name in names:
        path = make_file(options.folder, options.shape, name, pure=options.pure)
        sizes = ["-p", options.prompt_tokens, "-n", options.gen_tokens, "--repeat", options.repeat]
        command = [str(path), *sizes, "--batch", "1", "--context", "0"]
        if options.peer != "none":
            command += ["--peer", options.peer]
        written = record(f"format-{path.stem.lower()}", command, results)
        table.append(line(name, json.loads(written.read_text(encoding="utf-8"))))
        print(table[-1], flush=True)
    print("\n".join(["", *table]))


if __name__ == "__main__":
    main()
