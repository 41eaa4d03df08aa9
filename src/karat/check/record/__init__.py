"""Recorders: traces of the executors of Karat, of transformers and of llama.cpp, and runs that mix two of them."""
