"""Receipts: what computed an answer, as a record that anyone with the model can verify (LLM.verify)."""

from karat.receipts.comparison import Comparison, Parting
from karat.receipts.fingerprint import Fingerprint
from karat.receipts.receipt import Receipt, read_receipt, read_receipts
from karat.receipts.verdict import Difference, Verdict

__all__ = ["Comparison", "Difference", "Fingerprint", "Parting", "Receipt", "Verdict", "read_receipt", "read_receipts"]
