"""The KV cache: its blocks, prefixes shared by sequences, and its memory."""
