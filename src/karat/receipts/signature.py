"""Signatures of receipts: Ed25519 (RFC 8032) by the package `cryptography`, the extra `sign`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from karat.errors import ReceiptError, UsageError
from karat.receipts.receipt import Receipt, Signature
from karat.receipts.verdict import Difference

_MAX_KEY_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class Signer:
    """A private key. `public_key` is the public one's 32 bytes as hexadecimal digits."""

    public_key: str
    _key: Any

    def sign(self, receipt: Receipt) -> Receipt:
        """The receipt with a signature of this key, in place of another."""
        value = self._key.sign(receipt.signed_bytes).hex()
        return msgspec.structs.replace(receipt, signature=Signature("Ed25519", self.public_key, value))


def read_key(path: Path) -> Signer:
    """The signer of a private key as PEM (`openssl genpkey -algorithm ed25519`). UsageError for anything else."""
    ed25519, serialization = _library()
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_KEY_BYTES)
    except OSError as fault:
        raise UsageError(f"{path}: cannot be read ({fault.strerror}); expected a private key as PEM") from fault
    try:
        key = serialization.load_pem_private_key(text, password=None)
    except (ValueError, TypeError) as fault:
        raise UsageError(f"{path}: {fault}; expected an Ed25519 key as PEM without a password") from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise UsageError(f"{path}: a key of another kind; make one: openssl genpkey -algorithm ed25519 -out {path}")
    return Signer(key.public_key().public_bytes_raw().hex(), key)


def signer_of(receipt: Receipt) -> tuple[str | None, Difference | None]:
    """The public key that signed a receipt, None without a signature; and what is wrong with the signature.

    ReceiptError for a signature where `cryptography` is not installed.
    """
    signature = receipt.signature
    if signature is None:
        return None, None
    try:
        ed25519, _ = _library()
    except UsageError as fault:
        raise ReceiptError(f"the receipt is signed, and {fault}") from None
    from cryptography.exceptions import InvalidSignature

    try:
        public = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature.public_key))
        public.verify(bytes.fromhex(signature.value), receipt.signed_bytes)
    except (InvalidSignature, ValueError):
        wrong = f"the signature is not of this receipt by {signature.public_key}"
        return None, Difference(wrong)
    return signature.public_key, None


def _library() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise UsageError(
            "signatures need the package cryptography; install it, or Karat with the extra `sign`"
        ) from None
    return ed25519, serialization
