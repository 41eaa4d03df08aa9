"""The report of a check: one page, and the pictures inside it."""
