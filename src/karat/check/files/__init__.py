"""Stored values: whether blocks hold what a quantiser makes of an original, and how far they lie from it."""
