"""Receipts verified, and settings compared, by generators without input or output."""
