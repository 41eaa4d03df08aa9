"""Tensor parallelism: the weights and results of each rank against one process."""
