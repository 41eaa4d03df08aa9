"""The two sides of a model on several processes."""
