"""Comparing a run with the right computation: traces, noise floors, and the names of bugs."""
