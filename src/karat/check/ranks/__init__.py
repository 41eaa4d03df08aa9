"""Tensor parallelism checked: what each rank holds and computes, against one process."""
