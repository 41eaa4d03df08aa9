"""An engine that was not tuned to the diagnosis, and what is said of its bugs.

The engine was written by docs/trace-format.md alone: its author had not read the diagnosis and its catalogue of
mistakes. `python -m tools.zoo strangers` counts. The engine's rooms: checkpoint, shards (weights of one rank), comm,
cache, ops, worker (one rank), scheduler, engine, recorder (the trace). A bug is a subclass of one of them.
"""
