"""What a model family is built from."""
