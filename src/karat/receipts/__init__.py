"""Receipts: what computed an answer, as a record that anyone with the model can verify (LLM.verify)."""

from karat.receipts.fingerprint import Fingerprint
from karat.receipts.receipt import Receipt, read_receipt, read_receipts
from karat.receipts.verdict import Difference, Verdict

__all__ = ["Difference", "Fingerprint", "Receipt", "Verdict", "read_receipt", "read_receipts"]
