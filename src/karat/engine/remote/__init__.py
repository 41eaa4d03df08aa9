"""The engine in a process of its own, and the client that asks it."""
