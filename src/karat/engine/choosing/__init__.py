"""From logits to tokens: samplers, forms kept, what is told of a token."""
