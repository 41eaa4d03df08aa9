"""Receipts: the routes that verify them, and compare them with other activations."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp

from karat.errors import OtherContractError, ReceiptError, RequestError
from karat.receipts import Difference, Receipt, Verdict, read_receipt
from karat.server.bodies import read_body
from karat.server.errors import invalid
from karat.server.fields import COMPARE, VERIFY, fields_of
from karat.server.keeper import Keeper
from karat.server.receipt_requests import chats_of, texts_of
from karat.server.responses import JsonBytes, read_with, until_left
from karat.server.schema import Compared, Verified
from karat.server.settings import ServerSettings


class Receipts:
    """Endpoints of starlette."""

    def __init__(self, keeper: Keeper, settings: ServerSettings) -> None:
        self._keeper = keeper
        self._settings = settings

    async def verify(self, request: Request) -> ASGIApp:
        """The verdict on a receipt, by the engine that serves. Running requests come before it."""
        values = await self._read(request, VERIFY)
        if values.get("by", "native") != "native":
            said = "by=reference needs the weights once more, in float64; use karat verify --by reference"
            raise invalid("by", said, "unsupported_field")
        return await until_left(request, self._verified(_receipt_in(values), values.get("request")))

    async def compare(self, request: Request) -> ASGIApp:
        """Where a receipt's answer goes on otherwise with other activations, between the steps of running requests."""
        values = await self._read(request, COMPARE)
        try:
            comparing = self._keeper.llm.compare(_receipt_in(values), values["activations"])
            made = await until_left(request, comparing)
        except ReceiptError as fault:  # one of another model too
            raise invalid("receipt", f"receipt: {fault}") from None
        except RequestError as fault:
            raise invalid("activations", str(fault)) from None
        said = Compared(made.activations, made.other, made.num_tokens, made.elapsed_s, str(made), made.parting)
        return JsonBytes(msgspec.json.encode(said))

    async def _read(self, request: Request, route: str) -> Mapping[str, Any]:
        body = await read_with(request, self._settings.limits, partial(read_body, fields=fields_of(route)))
        await self._keeper.loaded(request)
        return body.values

    async def _verified(self, receipt: Receipt, asked: dict[str, Any] | None) -> ASGIApp:
        llm = self._keeper.llm
        try:
            prompt = None
            if asked is not None:
                prompt = await self._prompt(receipt, asked)
            return _answer(receipt, await llm.verify(receipt, prompt))
        except OtherContractError as fault:
            return JsonBytes(msgspec.json.encode(Verified("other contract", 0, 0, str(fault), None, None)))
        except ReceiptError as fault:
            raise invalid("request", str(fault)) from None

    async def _prompt(self, receipt: Receipt, asked: dict[str, Any]) -> tuple[int, ...]:
        """The prompt of a request as the receipt has it: of several readings, the one of its digest; else the first."""
        llm, found = self._keeper.llm, list[tuple[int, ...]]()
        for text, add_special_tokens in texts_of(asked):
            if isinstance(text, str):
                found.append(tuple(await llm.tokenize(text, add_special_tokens=add_special_tokens)))
            else:
                found.append(text)
        for messages, options in chats_of(asked, await llm.dialect()):
            found.append((await llm.render(messages, **options)).token_ids)
        return receipt.prompt_among(found)


def _receipt_in(values: Mapping[str, Any]) -> Receipt:
    try:
        return read_receipt(msgspec.json.encode(values["receipt"]))
    except ReceiptError as fault:
        raise invalid("receipt", f"receipt: {fault}") from None


def _answer(receipt: Receipt, verdict: Verdict) -> JsonBytes:
    first: Difference | None = verdict.finding
    made = Verified(verdict.kind, verdict.num_tokens, verdict.elapsed_s, str(verdict), first, verdict.signer)
    return JsonBytes(msgspec.json.encode(made))
