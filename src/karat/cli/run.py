"""`karat run`: goes on with a text, or answers one message."""

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from karat.cli.escapes import has_escapes, unescaped
from karat.cli.generation import Message, Meter, Task, load, raise_if_failed, remark
from karat.cli.options import LoadOptions, SanitizeControlTokens
from karat.cli.prefill import PromptWatch
from karat.cli.run_json import as_object
from karat.cli.run_receipt import ReceiptChunks, settle_seed, signer_from
from karat.cli.sampling_options import ReportOptions, SamplingOptions
from karat.cli.sources import resolve, text_of
from karat.cli.terminal import emit, is_terminal, note
from karat.errors import NumericsError, UsageError
from karat.request import SamplingParams

EXAMPLES = """
Examples

  karat run "Once upon a time"                the embedded model goes on
  karat run ./my-model "Once upon a time"     another model does
  karat run --chat "Tell me a story about a fox and a lantern."
  karat run -m org/name --temperature 0 --max-tokens 50 < prompt.txt
  karat run "One day" --seed 7 --json | jq -r .choices[0].text
"""

if TYPE_CHECKING:
    from karat.outputs import StreamChunk


def run(
    ctx: typer.Context,
    first: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="Folder, GGUF file or name on the hub.", show_default=False),
    ] = None,
    second: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="The text; in quotes.", show_default=False)
    ] = None,
    model: Annotated[
        str | None, typer.Option("-m", "--model", metavar="MODEL", help="The model, whatever it looks like.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option("-p", "--prompt", metavar="TEXT", help="The prompt, whatever it looks like.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("-f", "--file", metavar="FILE", help="The prompt is the text of FILE.")
    ] = None,
    escape: Annotated[bool, typer.Option("-e", "--escape", help="Read \\n and the like in the prompt.")] = False,
    no_escape: Annotated[bool, typer.Option("--no-escape", help="Leave them, without a remark.")] = False,
    chat: Annotated[bool, typer.Option("--chat", help="Answer the prompt as a message in a chat.")] = False,
    system: Annotated[str | None, typer.Option("--system", metavar="TEXT", help="System message; with --chat.")] = None,
    sanitize_control_tokens: SanitizeControlTokens = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object at the end: text, tokens, usage, times.")
    ] = False,
    receipt: Annotated[
        Path | None,
        typer.Option("--receipt", metavar="FILE", help="Write what `karat verify` needs to compute the answer again."),
    ] = None,
    receipt_key: Annotated[
        Path | None, typer.Option("--receipt-key", metavar="FILE", help="Sign it: an Ed25519 key as PEM.")
    ] = None,
    receipt_digests: Annotated[
        bool, typer.Option("--receipt-digests", help="Leave prompt and answer out of it: digests only.")
    ] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No remarks on stderr.")] = False,
    *,
    loading: LoadOptions,
    sampling: SamplingOptions,
    reports: ReportOptions,
) -> None:
    """Continue a text, or answer a message (--chat), as it is generated.

    MODEL is a folder, a GGUF file or org/name of the Hugging Face hub; left out, Karat's own storyteller.
    One word alone is MODEL if there is such a folder or file, if it ends in .gguf, or if it is written like a path
    (./x, ../x, ~/x, /x) or like org/name; else it is PROMPT. -m and -p leave no doubt.

    Without PROMPT, or if it is -, the prompt is read from stdin, less one line end. The answer and a line end
    are all that goes to stdout; of several answers (--n), one after the other.

    Sampling follows the model's generation_config.json where no option says otherwise. The same command
    gives the same text; another --seed gives another, and --seed -1 a new one each time.
    """
    if system is not None and not chat:
        raise UsageError("--system needs --chat: a text to continue has no system message")
    if sanitize_control_tokens and not chat:
        raise UsageError("--sanitize-control-tokens needs --chat: a text to continue has no messages")
    if not as_json and (reports.explain or reports.logprobs is not None or reports.prompt_logprobs is not None):
        raise UsageError("--explain, --logprobs and --prompt-logprobs need --json, which is where they are shown")
    if receipt is None and (receipt_key is not None or receipt_digests):
        raise UsageError("--receipt-key and --receipt-digests need --receipt, which is where they are written")
    if escape and no_escape:
        raise UsageError("-e and --no-escape say the opposite; give one of them")
    signer = signer_from(receipt_key)
    given = sampling.given() | reports.given()
    SamplingParams(**given)  # wrong options are reported before a model is loaded
    words = [word for word in (first, second) if word is not None]
    if file is not None:
        if prompt is not None:
            raise UsageError("-f and -p both give the prompt; give one of them")
        prompt = text_of(file)
    source = resolve([*words, *ctx.args], model, prompt)
    if source.remark and not quiet:
        note(source.remark)
    if escape:
        source = replace(source, prompt=unescaped(source.prompt))
    elif not (no_escape or quiet or source.is_piped) and has_escapes(source.prompt):
        note(r"escapes in the prompt stay as they are; -e reads \n as a line end, as llama.cpp does")
    before = perf_counter()
    llm = load(source.model, loading, quiet=quiet, reading=source.reading)
    load_s = perf_counter() - before
    asked = _conversation(source.prompt, system) if chat else source.prompt
    task = Task(llm, asked, given, sanitize_control_tokens=sanitize_control_tokens)
    settle_seed(task)
    meter = Meter(len(task.prompt_ids))
    prefill = PromptWatch(quiet=quiet)
    gathered = ReceiptChunks()
    chunks = meter.watch(task.stream(prefill))
    if receipt is not None:
        chunks = gathered.watch(chunks)
    if not quiet:
        remark(llm, source.model, given, loading)
        if (token := task.doubled_start) is not None:
            note(f"the text begins with {token}, and the model puts one before every text: it has two; leave yours out")
    if as_json:
        with prefill:
            listed = list(chunks)
        answer = as_object(task, listed, meter, set(given), load_s)
        emit(json.dumps(answer, ensure_ascii=False, allow_nan=False) + "\n")
        if faults := [choice["error"] for choice in answer["choices"] if choice["error"]]:
            raise NumericsError("; ".join(faults))
        if receipt is not None:
            gathered.write(task, receipt, signer=signer, digests_only=receipt_digests)
        if not quiet and meter.was_cut and (advice := sampling.advice_if_cut()):
            note(advice)
        return
    try:
        with prefill:
            begun = list(islice(chunks, 1))
        if not (quiet or chat or source.is_piped) and is_terminal(sys.stdout):
            note(source.prompt, end="")
        _print_in_order(chain(begun, chunks))
    except KeyboardInterrupt:
        emit("\n")
        if not quiet:
            note(meter.summary(interrupted=True))
        raise
    if receipt is not None:
        gathered.write(task, receipt, signer=signer, digests_only=receipt_digests)
    if not quiet:
        note(meter.summary())
        if meter.was_cut and (advice := sampling.advice_if_cut()):
            note(advice)


def _conversation(prompt: str, system: str | None) -> list[Message]:
    told = [] if system is None else [{"role": "system", "content": system}]
    return [*told, {"role": "user", "content": prompt}]


def _print_in_order(chunks: "Iterator[StreamChunk]") -> None:
    """Write one choice after the other, each with a line end. The first incomplete one is written as it grows."""
    current, held, ended = 0, defaultdict[int, str](str), set[int]()
    for chunk in chunks:
        if chunk.index == current:
            emit(chunk.text)
        else:
            held[chunk.index] += chunk.text
        if chunk.finish_reason:
            ended.add(chunk.index)
        while current in ended:
            emit("\n")
            current += 1
            emit(held.pop(current, ""))
        raise_if_failed(chunk)
