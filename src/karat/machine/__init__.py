"""Facts about this machine: processor, cores, caches, memory, and the limits of control groups."""
