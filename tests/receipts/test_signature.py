"""Signatures of receipts: who signed is told, and any change is found."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from karat import LLM, SamplingParams
from karat.errors import UsageError
from karat.receipts import Receipt, read_receipt
from karat.receipts.receipt import Signature
from karat.receipts.signature import read_key, signer_of
from tests.engine.tiny import write_model
from tests.receipts.keys import PUBLIC, SECRET, pem

pytest.importorskip("cryptography")


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with LLM(write_model(tmp_path_factory.mktemp("model"))) as made:
        yield made


@pytest.fixture(scope="module")
def receipt(llm: LLM) -> Receipt:
    (output,) = llm.generate("Once", SamplingParams(max_tokens=8, seed=1), receipt=True)
    found: Receipt = output.outputs[0].receipt
    return found


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key.pem"
    path.write_bytes(pem(SECRET))
    return path


def test_who_signed_is_told(receipt: Receipt, llm: LLM, key: Path) -> None:
    signer = read_key(key)
    assert signer.public_key == PUBLIC
    signed = signer.sign(receipt)
    assert read_receipt(signed.to_json()) == signed and signed.sha256 == receipt.sha256
    assert signer_of(signed) == (PUBLIC, None) and signer_of(receipt) == (None, None)
    assert str(llm.verify(signed)).endswith(f" s, signed by {PUBLIC}")
    assert llm.verify(receipt).signer is None


def test_the_signature_is_over_the_canonical_json_of_all_else(receipt: Receipt, key: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    signed = read_key(key).sign(receipt)
    assert signed.signature is not None
    text = signed.to_json()
    begin, end = text.index(b',"signature":{'), text.index(b',"versions":')
    public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(PUBLIC))
    public.verify(bytes.fromhex(signed.signature.value), text[:begin] + text[end:])  # or it raises


@pytest.mark.parametrize("change", ["value", "public_key", "seed"])
def test_a_signature_that_is_not_right_is_found(receipt: Receipt, llm: LLM, key: Path, change: str) -> None:
    signed = read_key(key).sign(receipt)
    assert signed.signature is not None
    if change == "seed":
        changed = msgspec.structs.replace(signed, seed="2")
    else:
        right = getattr(signed.signature, change)
        wrong = {"value": signed.signature.value, "public_key": PUBLIC} | {
            change: f"{int(right, 16) ^ 1:0{len(right)}x}"
        }
        changed = msgspec.structs.replace(signed, signature=Signature("Ed25519", wrong["public_key"], wrong["value"]))
    verdict = llm.verify(changed)
    assert verdict.kind == "different" and verdict.signer is None
    expected = (
        "the receipt was changed after it was written: seed" if change == "seed" else "the signature is not of this"
    )
    assert str(verdict.finding).startswith(expected)


@pytest.mark.parametrize("content", [b"", b"no key", pem(SECRET)[:80]])
def test_what_is_no_key_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="expected an Ed25519 key"):
        read_key(path)
    with pytest.raises(UsageError, match="cannot be read"):
        read_key(tmp_path / "absent")


def test_a_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = generate_private_key(SECP256R1())
    path = tmp_path / "key"
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(UsageError, match="openssl genpkey -algorithm ed25519"):
        read_key(path)
