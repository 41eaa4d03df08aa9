"""Receipts: what computed an answer, by name and digest."""

from karat.receipts.fingerprint import Fingerprint, begin_fingerprint, fingerprint_of

__all__ = ["Fingerprint", "begin_fingerprint", "fingerprint_of"]
