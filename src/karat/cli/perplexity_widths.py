"""`karat perplexity --against float64`: what each width of activations costs, in one table."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from karat.cli.options import LoadOptions
from karat.cli.progress import Progress
from karat.cli.terminal import emit
from karat.errors import UsageError

DEFAULT_TOKENS = 64  # of the text: float64 is slow
_ALLOWED = ("kv_dtype", "quantize", "threads")


def table(
    load: LoadOptions,
    model: str | None,
    file: Path,
    text: str,
    *,
    against: str,
    window: int | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Print the table for the first `window` tokens of a text. Raises UsageError for options that it has no use for."""
    from karat.check.model.checked import open_model
    from karat.check.session import widths
    from karat.config import FLOAT_BYTES
    from karat.engine.model_loading.llm_options import Options
    from karat.ops.registry import take_options
    from karat.text import Tokenizer

    if against != "float64":
        raise UsageError(f"--against {against}: expected float64, which everything is compared with")
    activations = load.activations or ()
    if unknown := [name for name in activations if name not in widths.CHOICES]:
        raise UsageError(f"--activations {unknown[0]}: expected {', '.join(widths.CHOICES)}")
    given = {name: value for name, value in replace(load, activations=None).given().items() if name not in load.said()}
    if others := [name for name in given if name not in _ALLOWED]:
        option = others[0].replace("_", "-")
        raise UsageError(f"--{option} has no meaning with --against, which chooses executors itself; leave it out")
    options = take_options(given)
    Options(**given, executor_options=options)  # refuses values
    if (kv_dtype := given.get("kv_dtype")) == "float64":
        raise UsageError(f"--kv-dtype {kv_dtype}: expected one of {', '.join(n for n in FLOAT_BYTES if n != kv_dtype)}")
    checked = open_model(model, load.overrides())
    ids = Tokenizer.of(checked.checkpoint).encode(text)
    size = min(DEFAULT_TOKENS, checked.config.max_position_embeddings) if window is None else window
    if not 2 <= size <= checked.config.max_position_embeddings:
        raise UsageError(f"--window {size}: expected 2 to {checked.config.max_position_embeddings}")
    if len(ids) < 2:
        raise UsageError(f"{len(ids)} tokens: perplexity needs at least two; give a longer text")
    taken = ids[:size]
    progress = Progress(quiet=quiet)
    rows = []
    for row in widths.measure(
        checked,
        taken,
        [name for name in widths.CHOICES if not activations or name in activations],
        kv_dtype=kv_dtype,
        quantize=given.get("quantize"),
        threads=options.get("threads"),
        progress=progress,
    ):
        rows.append(asdict(row) | {"rms_of_deviation": row.rms / row.deviation})
    progress.clear()
    coded, matrices = widths.coded_matrices(checked, given.get("quantize"))
    facts = {
        "model": str(checked.path),
        "file": str(file),
        "against": against,
        "tokens": len(taken),
        "tokens_of_text": len(ids),
        "matrices": matrices,
        "matrices_in_blocks": coded,
    }
    if as_json:
        emit(json.dumps(facts | {"rows": rows}, indent=2, ensure_ascii=False) + "\n")
        return
    head = f"logits of {len(taken)} tokens" + (f" (of {len(ids)}; --window N takes N)" if len(taken) < len(ids) else "")
    in_blocks = f"{coded} of {matrices} matrices are in blocks, which integers are for"
    emit("".join(f"{line}\n" for line in (f"{head}, against float64; {in_blocks}", *lines(rows))))


def lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The table in words."""
    made = [
        f"{'activations':<12}{'cache':<10}{'by':<12}{'RMS/deviation':>13}{'KL':>10}{'likeliest':>11}{'perplexity':>12}",
    ]
    for row in rows:
        equal = f"{100 * row['agree'] / row['tokens']:.1f} %"
        made.append(
            f"{row['activations']:<12}{row['kv_dtype']:<10}{row['by']:<12}{row['rms_of_deviation']:>13.2g}"
            f"{row['kl']:>10.2g}{equal:>11}{row['perplexity']:>12.4f}"
        )
    return made
