"""Receipts and `system_fingerprint` over HTTP, the route that verifies, and answers that are resumed.

Covers: karat.server.receipts, karat.server.receipt_requests, karat.server.asking.terms.
"""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from karat import LLM
from karat.receipts import Receipt, read_receipt
from karat.server.errors import ApiError
from karat.server.receipt_requests import chats_of
from karat.text.tools.dialect import Dialect
from karat.text.tools.registry import FORMATS
from tests.receipts.keys import PUBLIC, SECRET, pem
from tests.server.conftest import Running

VERIFY = "/v1/receipts/verify"
COMPARE = "/v1/receipts/compare"
MESSAGES = [{"role": "user", "content": "Tell me a story."}]
SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "receipt.schema.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """The model of the server, in this process."""
    with LLM() as made:
        yield made


def wished(server: Running, route: str, body: dict[str, Any], *, stream: bool, by_header: bool = False) -> Any:
    """The field `karat` of an answer, or of the last event that has it."""
    headers = {"karat_receipt": "1"} if by_header else {}
    body = body | ({} if by_header else {"karat": {"receipt": True}}) | {"stream": stream}
    answer = server.ask(route, body, **headers)
    assert answer.status == 200, answer.content
    if not stream:
        return answer.json["karat"]
    data = [json.loads(line[6:]) for line in answer.content.decode().splitlines() if line.startswith("data: {")]
    found = [event.get("karat") or event.get("response", {}).get("karat") for event in data]
    with_receipt = [karat for karat in found if karat and "receipt" in karat]
    assert len(with_receipt) == 1, "one event has it"
    return with_receipt[0]


BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 12},
    "/v1/completions": {"prompt": "Once upon a time", "max_tokens": 12},
    "/v1/responses": {"input": "Tell me a story.", "max_output_tokens": 12},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 12},
}


@pytest.mark.drawn(4)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", BODIES)
def test_every_protocol_gives_receipts(server: Running, llm: LLM, route: str, stream: bool) -> None:
    body = BODIES[route] | {"seed": 3, "temperature": 1.1}
    karat = wished(server, route, body, stream=stream)
    jsonschema.validate(karat["receipt"], SCHEMA)
    receipt = read_receipt(json.dumps(karat["receipt"]).encode())
    assert karat["system_fingerprint"] == receipt.fingerprint.short == llm.fingerprint().short
    assert (receipt.seed, receipt.sampling.max_tokens, receipt.sampling.temperature) == ("3", 12, 1.1)
    assert receipt.prompt.text_sha256 is not None, "the text is known on every route"
    assert llm.verify(receipt).kind == "identical"  # another process, which has neither batch nor cache
    by_header = wished(server, route, body, stream=stream, by_header=True)["receipt"]
    assert by_header == karat["receipt"]
    verdict = server.ask(VERIFY, {"receipt": karat["receipt"]}).json
    assert verdict["verdict"] == "identical" and verdict["tokens"] == 12 and verdict["first_difference"] is None
    assert verdict["text"].startswith("identical, 12 tokens, ")
    assert route not in ("/v1/responses", "/v1/messages") or isinstance(receipt, Receipt)


@pytest.mark.parametrize("stream", [False, True])
def test_each_choice_has_its_receipt(server: Running, llm: LLM, stream: bool) -> None:
    form = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    body = {"messages": MESSAGES, "max_tokens": 16, "n": 3, "seed": 4, "structured_outputs": {"json": form}}
    made = wished(server, "/v1/chat/completions", body, stream=stream)["receipt"]
    receipts = [read_receipt(json.dumps(one).encode()) for one in made]
    assert [receipt.choice for receipt in receipts] == [0, 1, 2]
    assert all(llm.verify(receipt).kind == "identical" for receipt in receipts)
    two = {"prompt": ["Once", "One day"], "max_tokens": 4, "seed": 4}
    assert len(wished(server, "/v1/completions", two, stream=stream)["receipt"]) == 2


def test_system_fingerprint_is_the_same_in_all_events(server: Running, llm: LLM) -> None:
    found = llm.fingerprint().short
    server.until(lambda: server.chat(max_tokens=1).json["system_fingerprint"] == found)
    events = server.chat(max_tokens=6, stream=True).events
    assert {event["system_fingerprint"] for event in events} == {found}
    assert "receipt" not in server.chat(max_tokens=1).json["karat"]


@pytest.mark.slow
def test_other_activations_are_compared_in_the_engine_that_serves(start: Callable[..., Any]) -> None:
    how: Any = {"quantize": "q4_0", "activations": "int16"}
    with start("--quantize", "q4_0", "--activations", "int16") as running, LLM(**how) as llm:
        facts = running.ask("/v1/models").json["data"][0]["karat"]
        assert (facts["activations"], facts["comparable"]) == ("int16", list(llm.comparable))
        body = {"prompt": "Once upon a time", "max_tokens": 60, "seed": 3, "temperature": 1.2}
        receipt = wished(running, "/v1/completions", body, stream=False)["receipt"]
        for activations in ("int24", "int8"):
            found = running.ask(COMPARE, {"receipt": receipt, "activations": activations}).json
            here = llm.compare(read_receipt(json.dumps(receipt).encode()), activations)
            assert (found["activations"], found["other"], found["tokens"]) == ("int16", activations, here.num_tokens)
            assert found["parting"] == (None if here.parting is None else asdict(here.parting))
            assert found["text"].rsplit(",", 1)[0] == str(here).rsplit(",", 1)[0]
        same = running.ask(COMPARE, {"receipt": receipt, "activations": "int16"})
        assert same.status == 400 and same.json["error"]["param"] == "activations"
        assert "expected one of int24, int8" in same.json["error"]["message"]
        edited = running.ask(COMPARE, {"receipt": receipt | {"seed": "4"}, "activations": "int8"})
        assert edited.status == 400 and "changed after it was written: seed" in edited.json["error"]["message"]


def test_a_model_without_blocks_has_nothing_to_compare(server: Running) -> None:
    assert server.ask("/v1/models").json["data"][0]["karat"]["comparable"] == []
    receipt = wished(server, "/v1/completions", BODIES["/v1/completions"], stream=False)["receipt"]
    answer = server.ask(COMPARE, {"receipt": receipt, "activations": "int8"})
    assert answer.status == 400 and "weights in blocks" in answer.json["error"]["message"]
    assert server.ask(COMPARE, {"receipt": receipt}).status == 400
    assert server.ask(COMPARE, {"receipt": {}, "activations": "int8"}).json["error"]["param"] == "receipt"


@pytest.mark.slow
def test_made_and_verified_under_load_beside_prefix_hits(server: Running, llm: LLM) -> None:
    def one(number: int) -> tuple[Any, Any]:
        body = {"messages": MESSAGES, "max_tokens": 24, "seed": number, "temperature": 1.3}
        made = wished(server, "/v1/chat/completions", body, stream=number % 2 == 0)["receipt"]
        return made, server.ask(VERIFY, {"receipt": made}).json

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(one, range(16)))
    assert all(verdict["verdict"] == "identical" for _, verdict in found)
    assert all(llm.verify(read_receipt(json.dumps(made).encode())).kind == "identical" for made, _ in found)
    assert server.gauge("karat_prefix_cache_hits") > 0


def test_a_difference_is_shown(server: Running) -> None:
    from karat.receipts.receipt import sealed

    made = wished(server, "/v1/chat/completions", BODIES["/v1/chat/completions"] | {"seed": 1}, stream=False)["receipt"]
    changed = made | {"seed": "2"}
    verdict = server.ask(VERIFY, {"receipt": changed}).json
    assert verdict["text"] == "different: the receipt was changed after it was written: seed"
    ids = [*made["output"]["token_ids"][:4], 100, *made["output"]["token_ids"][5:]]
    forged = made | {"output": made["output"] | {"token_ids": ids}}
    for name in ("checksums", "sha256", "signature"):
        del forged[name]
    verdict = server.ask(VERIFY, {"receipt": json.loads(sealed(forged).to_json())}).json
    first = verdict["first_difference"]
    assert verdict["verdict"] == "different" and first["receipt_token"] == 100 and first["index"] == 4
    assert first["replayed_token"] == made["output"]["token_ids"][4] and first["margin"] > 0
    assert first["position"] == len(made["prompt"]["token_ids"]) + 4
    forged["fingerprint"] = forged["fingerprint"] | {"numeric_contract": 99}
    verdict = server.ask(VERIFY, {"receipt": json.loads(sealed(forged).to_json())}).json
    assert verdict["verdict"] == "other contract" and "numeric_contract (99, here" in verdict["text"]


@pytest.mark.parametrize("route", BODIES)
def test_digests_are_verified_beside_the_request(server: Running, route: str) -> None:
    body = BODIES[route] | {"seed": 8}
    made = server.ask(route, body, karat_receipt="digests").json["karat"]["receipt"]
    assert isinstance(made["prompt"]["token_ids"], str) and isinstance(made["output"]["token_ids"], str)
    alone = server.ask(VERIFY, {"receipt": made})
    assert alone.status == 400 and alone.json["error"]["param"] == "request"
    assert server.ask(VERIFY, {"receipt": made, "request": body}).json["text"].startswith("identical, 12 tokens, ")
    other = server.ask(VERIFY, {"receipt": made, "request": {"prompt": "Another"}}).json
    assert other["verdict"] == "different" and "not that of the request" in other["text"]


def test_a_whole_receipt_is_compared_with_the_request_too(server: Running) -> None:
    body = BODIES["/v1/completions"]
    made = server.ask("/v1/completions", body, karat_receipt="1").json["karat"]["receipt"]
    assert server.ask(VERIFY, {"receipt": made, "request": body}).json["verdict"] == "identical"
    other = server.ask(VERIFY, {"receipt": made, "request": {"prompt": "Another"}}).json
    assert other["text"] == "different: prompt.token_ids: they are not those of the request"


def test_digests_of_a_request_with_tools_and_effort() -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    asked = {"messages": MESSAGES, "tools": [tool], "reasoning_effort": "high"}
    dialect = Dialect(knows_tools=True, form=FORMATS["hermes"], variables=frozenset({"reasoning_effort"}))
    (messages, options), _ = chats_of(asked, dialect)
    assert messages[0]["content"] == MESSAGES[0]["content"]
    assert options["tools"][0]["function"]["name"] == "look" and options["chat_template_kwargs"]
    assert options["chat_template_kwargs"]["reasoning_effort"] == "high"
    with pytest.raises(ApiError, match="no place for tools"):
        next(chats_of(asked, Dialect()))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "receipt"),
        ({"receipt": {}}, "receipt"),
        ({"receipt": {"format": "karat-receipt/2"}}, "receipt"),
        ({"receipt": {}, "by": "reference"}, "by"),
        ({"receipt": {}, "by": "trust"}, "by"),
        ({"receipt": {}, "more": 1}, "more"),
    ],
)
def test_what_is_no_receipt_is_refused(server: Running, body: Any, param: str) -> None:
    answer = server.ask(VERIFY, body)
    assert answer.status == 400 and answer.json["error"]["param"] == param


@pytest.mark.parametrize(
    ("karat", "header", "param"),
    [
        ({"receipt": "all"}, None, "karat.receipt"),
        ({"nonsense": 1}, None, "karat.nonsense"),
        ({"resume": {}}, None, "karat.resume.tokens"),
        ({"resume": {"tokens": [1]}}, None, "karat.resume.seed"),
        ({"resume": {"tokens": [1], "seed": 5}}, None, "karat.resume.seed"),
        ({"resume": {"tokens": [1], "seed": 3, "choice": 2}}, None, "karat.resume.choice"),
        ({"resume": {"tokens": [1], "seed": 3}, "receipt": True}, None, "karat.resume"),
        ({"resume": {"tokens": [1], "seed": 3}}, "1", "karat.resume"),
        ({}, "yes", "karat-receipt"),
    ],
)
def test_wrong_wishes_are_refused(server: Running, karat: Any, header: str | None, param: str) -> None:
    body: dict[str, Any] = {"prompt": "Once", "karat": karat, "n": 2}
    if "seed" in karat.get("resume", {}):
        body["seed"] = 3
    headers = {} if header is None else {"karat_receipt": header}
    answer = server.ask("/v1/completions", body, **headers)
    assert answer.status == 400 and answer.json["error"]["param"] == param, answer.content


@pytest.mark.parametrize("route", ["/v1/responses", "/v1/messages"])
def test_only_openais_older_routes_resume(server: Running, route: str) -> None:
    answer = server.ask(route, BODIES[route] | {"karat": {"resume": {"tokens": [1], "seed": 3}}})
    assert answer.status == 400 and b"resume" in answer.content


@pytest.mark.drawn(2)
@pytest.mark.parametrize("form", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_resumed_has_the_receipt_of_the_whole(server: Running, stream: bool, form: bool) -> None:
    """Byte for byte that of the answer that nothing broke off. Held-back text, the end and the form included."""
    body = BODIES["/v1/chat/completions"] | {"n": 2, "seed": 6, "temperature": 1.2, "stop": ["zz", " and the"]}
    body |= {"structured_outputs": {"regex": "[a-m ]{3,9}[n-z]+"}} if form else {"max_tokens": 16}
    answer = server.chat(**body, return_token_ids=True, karat={"receipt": True}).json
    for choice, whole in zip(answer["choices"], answer["karat"]["receipt"], strict=True):
        ids = choice["token_ids"]
        for cut in (0, 1, len(ids) // 2, len(ids) - 1, len(ids)):
            asked = {"tokens": ids[:cut], "seed": 6, "choice": choice["index"]}
            made = server.chat(**body, stream=stream, karat={"resume": asked, "receipt": True})
            karat = made.events[-1]["karat"] if stream else made.json["karat"]
            assert karat["receipt"] == whole
        other = [(ids[0] + 1) % 200, *ids[1:]]
        refused = server.chat(**body, karat={"resume": {"tokens": other, "seed": 6}, "receipt": True})
        assert refused.status == 400 and b"a receipt is of an answer that the model drew whole" in refused.content


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("chat", [False, True])
def test_an_answer_is_resumed(server: Running, chat: bool, stream: bool) -> None:
    route = "/v1/chat/completions" if chat else "/v1/completions"
    body = BODIES[route] | {"n": 2, "seed": 6, "temperature": 1.2, "frequency_penalty": 0.5, "return_token_ids": True}

    def read(answer: Any, index: int) -> tuple[str, list[int], str]:
        assert answer.status == 200, answer.content
        if not stream:
            choice = answer.json["choices"][index]
            text = choice["message"]["content"] if chat else choice["text"]
            return text, choice["token_ids"], choice["finish_reason"]
        text, ids, reason = "", list[int](), ""
        for event in answer.events:
            for choice in event["choices"]:
                if choice["index"] == index:
                    text += (choice["delta"].get("content") or "") if chat else choice["text"]
                    ids += choice.get("token_ids") or []
                    reason = choice["finish_reason"] or reason
        return text, ids, reason

    whole = server.ask(route, body | {"stream": stream})
    for index in (0, 1):
        text, ids, reason = read(whole, index)
        for num in (0, 5, len(ids) - 1, len(ids)):
            resume = {"tokens": ids[:num], "seed": 6, "choice": index}
            answer = server.ask(route, body | {"stream": stream, "karat": {"resume": resume}})
            more, rest, end = read(answer, 0)
            assert rest == ids[num:] and end == reason and text.endswith(more)
            assert num > 0 or more == text
        too_many = server.ask(route, body | {"karat": {"resume": {"tokens": [*ids, 65], "seed": 6}}})
        assert too_many.status == 400 and b"resume" in too_many.content


@pytest.mark.slow
def test_receipts_of_a_server_with_a_key_are_signed(start: Callable[..., Any], tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    (tmp_path / "key.pem").write_bytes(pem(SECRET))
    with start("--receipt-key", str(tmp_path / "key.pem")) as server:
        made = wished(server, "/v1/completions", BODIES["/v1/completions"], stream=True)["receipt"]
        assert made["signature"]["public_key"] == PUBLIC
        verdict = server.ask(VERIFY, {"receipt": made}).json
        assert verdict["signer"] == PUBLIC and verdict["text"].endswith(f"signed by {PUBLIC}")
