"""Karat's kernels for NVIDIA GPUs. `karat --device cuda` and `karat.LLM(device="cuda")` use them."""
