"""What is right: the graph of a model, its tensors and tokens, and each op in float64."""
