"""Which sequences compute how much in a step, and the batch that says so."""
