"""From what is asked to a checked request, and what is new of it."""
