"""Two engines that were not tuned to the diagnosis, and what is said of their bugs.

Both were written by docs/trace-format.md: their authors had not read the diagnosis and its catalogue of mistakes.
`python -m tools.zoo strangers` counts. The rooms of the first: checkpoint, shards (weights of one rank), comm, cache,
ops, worker (one rank), scheduler, engine. A bug is a subclass of one of them. The second is in pytorch/. Of both are
recorder (the trace), judge, count, bug.Group and expected.Expect.
"""
