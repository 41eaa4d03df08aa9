"""Facts about this machine: processor, cores, caches, memory, and what control groups leave of them."""
