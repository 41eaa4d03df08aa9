"""The server: protocols over HTTP on top of `karat.AsyncLLM`. `karat serve` starts it (docs/serving.md)."""
