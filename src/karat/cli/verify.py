"""`karat verify`: an answer's receipt, replayed."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from karat.cli.exits import ends_in_verdict
from karat.cli.generation import load
from karat.cli.options import LoadOptions
from karat.cli.terminal import emit
from karat.errors import ReceiptError

EXAMPLES = """
Examples

  karat run "Once upon a time" --receipt fox.json
  karat verify fox.json
  karat verify answer.json -m org/name --quantize q8_0
"""


@ends_in_verdict
def verify(
    receipt: Annotated[Path, typer.Argument(metavar="RECEIPT", help="A file that `karat run --receipt` wrote.")],
    model: Annotated[
        str | None, typer.Option("-m", "--model", metavar="MODEL", help="The model that answered.")
    ] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress on stderr.")] = False,
    *,
    loading: LoadOptions,
) -> None:
    """Compute an answer again, in one pass at the speed of a prompt, and compare it with its receipt.

    One line for each receipt of the file: identical, or the first difference. Types and executor are the receipt's
    unless an option says otherwise. Exit code 0: all are identical; 1: one is different, or was changed after it was
    written; 2: no verdict, as with another model (the parts that differ are named).
    """
    from karat.receipts import read_receipts
    from karat.receipts import verify as replayed

    receipts = read_receipts(receipt)
    stated = receipts[0].fingerprint
    settings = replace(
        loading,
        executor=loading.executor or stated.executor,
        dtype=loading.dtype or stated.dtype,
        kv_dtype=loading.kv_dtype or stated.kv_dtype,
    )
    for each in receipts:
        if each.altered():
            settings = loading  # what it says of the executor may be false too
    llm = load(model, settings, quiet=quiet)
    verdicts = []
    for each in receipts:
        try:
            verdicts.append(replayed(llm, each))
        except ReceiptError as fault:
            raise ReceiptError(f"{receipt}: {fault}") from None
        emit(f"{verdicts[-1]}\n")
    if not all(verdict.is_identical for verdict in verdicts):
        raise typer.Exit(1)
