"""From wrong results to the names of mistakes."""
