"""`karat perplexity`: how well a model expects a text."""

import io
import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from karat.cli.options import LoadOptions
from karat.cli.perplexity_widths import table
from karat.cli.progress import Progress
from karat.cli.sources import MAX_PIPE_BYTES, piped_text
from karat.cli.terminal import emit
from karat.errors import UsageError

EXAMPLES = """
Examples

  karat perplexity story.txt                       of the embedded model
  karat perplexity org/name wiki.txt --window 1024 --stride 512
  zcat wiki.txt.gz | karat perplexity model.gguf -
  karat perplexity --against float64 model.gguf story.txt
"""


def perplexity(
    load: LoadOptions,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[MODEL] FILE", help="A text in UTF-8 (- is stdin), after a folder, a GGUF file or org/name."
        ),
    ],
    model: Annotated[
        str | None, typer.Option("-m", "--model", metavar="MODEL", help="The model (default: embedded).")
    ] = None,
    window: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens a window (default: 2048, or what the model allows).")
    ] = None,
    stride: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens that a window moves on (default: half of it).")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="float64", help="Compare logits of the first tokens (64, or --window) with float64's."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress on stderr.")] = False,
) -> None:
    """Show the perplexity of a text, in windows that slide over it: every token but the first is scored once.

    The cache rounds nothing, unless --kv-dtype says otherwise. With --against float64: a table of how far the logits
    are off, for each of --activations (repeatable; default: all), and for llama.cpp where it is installed and reads the
    model.
    """
    from karat import LLM
    from karat.check.session import perplexity as scoring

    *before, last = words
    if len(before) > (1 if model is None else 0):
        raise UsageError(f"{shlex.join(words)}: expected [MODEL] FILE, or FILE with -m MODEL; quote names with spaces")
    model, file = (*before, model)[0], Path(last)
    if against is not None:
        if stride is not None:
            raise UsageError("--stride has no meaning with --against, which computes one window; leave it out")
        table(load, model, file, _read(file), against=against, window=window, as_json=as_json, quiet=quiet)
        return
    text = _read(file)
    given = load.given()
    usual = {"kv_dtype": given.get("dtype", "float32"), "generation_config": "none"}  # nothing is sampled
    llm = LLM(model, max_num_seqs=1, **(usual | given))
    ids = llm.tokenizer.encode(text)
    size = window or min(2048, llm.max_model_len)
    if not 2 <= size <= llm.max_model_len:
        raise UsageError(f"--window {size}: expected 2 to {llm.max_model_len}, what the model allows")
    score, progress = None, Progress(quiet=quiet)
    for score in scoring.perplexity(llm.write_logits, ids, window=size, stride=stride or size // 2):
        progress(f"{score.num_scored} of {score.num_total} tokens, {score.perplexity:.4f}")
    assert score is not None
    progress.clear()
    facts = {
        "model": str(llm.path),
        "file": str(file),
        "executor": llm.executor,
        "dtype": llm.dtype,
        "kv_dtype": llm.kv_dtype,
        "activations": llm.activations,
        "window": size,
        "stride": stride or size // 2,
        "tokens": len(ids),
        "scored": score.num_scored,
        "nats_per_token": score.nats / score.num_scored,
        "perplexity": score.perplexity,
    }
    if as_json:
        emit(json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
    else:
        emit(f"perplexity {score.perplexity:.6f} over {score.num_scored} tokens ({size} a window)\n")


def _read(file: Path) -> str:
    """The text of a file, or of stdin for `-`; every line end is a line feed."""
    if str(file) == "-":
        if sys.stdin is None:
            raise UsageError("no text: stdin is closed; pipe one in, or name a file")
        text = piped_text("the text")
    else:
        try:
            with file.open("rb") as opened:
                content = opened.read(MAX_PIPE_BYTES + 1)
            if content.startswith(b"GGUF"):
                raise UsageError(f"{file}: is a model and no text; for a text on stdin: karat perplexity {file} -")
            if len(content) > MAX_PIPE_BYTES:
                raise UsageError(f"{file}: has more than {MAX_PIPE_BYTES} bytes; expected a text; give a part of it")
            text = content.decode()
        except FileNotFoundError:
            raise UsageError(f"{file}: there is no such file; expected a text in UTF-8, or - for stdin") from None
        except UnicodeDecodeError as fault:
            raise UsageError(f"{file}: is not UTF-8 (byte {fault.start}); convert it, for example with iconv") from None
        except OSError as fault:
            reason = f"cannot be read ({fault.strerror})"
            raise UsageError(f"{file}: {reason}; expected a text in UTF-8, or - for stdin") from None
    return io.StringIO(text, newline=None).read()
