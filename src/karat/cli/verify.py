"""`karat verify`: an answer's receipt, replayed."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from karat.cli.exits import ends_in_verdict
from karat.cli.generation import load
from karat.cli.options import LoadOptions
from karat.cli.terminal import emit
from karat.cli.verify_request import prompt_of, read_request
from karat.errors import ReceiptError, UsageError

if TYPE_CHECKING:
    from karat.receipts import Receipt

EXAMPLES = """
Examples

  karat run "Once upon a time" --receipt fox.json
  karat verify fox.json
  karat verify answer.json -m org/name --quantize q8_0
  karat verify digests.json --request request.json
  karat verify fox.json --by reference
"""


@ends_in_verdict
def verify(
    receipt: Annotated[
        Path, typer.Argument(metavar="RECEIPT", help="A file that `karat run --receipt` wrote, or a server's receipt.")
    ],
    model: Annotated[
        str | None, typer.Option("-m", "--model", metavar="MODEL", help="The model that answered.")
    ] = None,
    request: Annotated[
        Path | None,
        typer.Option("--request", metavar="FILE", help="The request, as JSON. A receipt of digests needs it."),
    ] = None,
    by: Annotated[
        Literal["native", "reference"],
        typer.Option("--by", help="native: the engine that answers. reference: float64, a second code, slow."),
    ] = "native",
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress on stderr.")] = False,
    *,
    loading: LoadOptions,
) -> None:
    """Compute an answer again, in one pass at the speed of a prompt, and compare it with its receipt.

    One line for each receipt of the file: identical, or the first difference. Types and executor are the receipt's
    unless an option says otherwise. Exit code 0: all are identical; 1: one is different, or was changed after it was
    written; 2: no verdict, as with another model (the parts that differ are named).

    By the reference an answer agrees (0), differs (1), or is undecided (2): rounding alone may have chosen some of its
    tokens. Executor, types and numeric contract may be others than the receipt's. Memory holds a layer at a time.
    """
    from karat.receipts import read_receipts

    receipts = read_receipts(receipt)
    if by == "reference":
        if request is not None:
            raise UsageError("--request with --by reference: the reference needs the tokens in the receipt itself")
        _by_reference(receipt, receipts, model, loading)
        return
    asked = None if request is None else read_request(request)
    llm = load(model, _settings(receipts, loading), quiet=quiet)
    is_confirmed = True
    for each in receipts:
        try:
            prompt = None if asked is None else prompt_of(llm, asked, each)
            verdict = llm.verify(each, prompt)
        except ReceiptError as fault:
            raise type(fault)(f"{receipt}: {fault}") from None
        is_confirmed &= verdict.is_confirmed
        emit(f"{verdict}\n")
    if not is_confirmed:
        raise typer.Exit(1)


def _by_reference(path: Path, receipts: "list[Receipt]", model: str | None, given: LoadOptions) -> None:
    from karat.check.model.checked import open_model
    from karat.check.session.receipt import verify_by_reference

    others = sorted(given.given().keys() - given.said().keys() - {"quantize"})
    if others:
        name = others[0].replace("_", "-")
        raise UsageError(f"--{name} with --by reference, which computes in float64; leave it out")
    opened, kinds = open_model(model, given.overrides()), set[str]()
    for each in receipts:
        try:
            verdict = verify_by_reference(opened, each, given.quantize)
        except ReceiptError as fault:
            raise type(fault)(f"{path}: {fault}") from None
        kinds.add(verdict.kind)
        emit(f"{verdict}\n")
    if kinds != {"agrees"}:
        raise typer.Exit(1 if "differs" in kinds else 2)


def _settings(receipts: "list[Receipt]", given: LoadOptions) -> LoadOptions:
    """Types and executor of the receipts, where no option says otherwise and they can be believed."""
    from karat.ops.integers import WIDTHS

    if any(each.altered() for each in receipts):
        return given
    stated = receipts[0].fingerprint
    return replace(
        given,
        executor=given.executor or (stated.executor if given.device is None else None),
        dtype=given.dtype or stated.dtype,
        kv_dtype=given.kv_dtype or stated.kv_dtype,
        activations=given.activations or ([stated.activations] if stated.activations in WIDTHS else None),
    )
