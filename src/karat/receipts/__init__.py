"""Receipts: what computed an answer, as a record that anyone with the model can verify."""

from karat.receipts.fingerprint import Fingerprint, begin_fingerprint, fingerprint_of
from karat.receipts.receipt import Receipt, read_receipt, read_receipts, receipt_of, receipts_of
from karat.receipts.verify import Verdict, verify

__all__ = [
    "Fingerprint",
    "Receipt",
    "Verdict",
    "begin_fingerprint",
    "fingerprint_of",
    "read_receipt",
    "read_receipts",
    "receipt_of",
    "receipts_of",
    "verify",
]
