"""Ranks that run one model together: what they exchange, and the processes they are."""
