"""A second engine of strangers, in plain PyTorch: Qwen2 and Llama, ranks in lockstep, left-padded batches.

It was written by docs/trace-format.md, docs/check.md and the first part of docs/diagnosis.md. Its bugs and what is
expected of each were committed before any of them was diagnosed. Rooms: models, engine, bug, bugs_*, runs.
"""
