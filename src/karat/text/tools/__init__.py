"""Calls of tools and reasoning in the text of an answer, in the form of each family of models."""
