"""Ranks that run one model together: their processes, and the exchange of their results."""
