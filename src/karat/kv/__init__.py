"""The KV cache's bookkeeping: which block holds which positions of which sequence."""
