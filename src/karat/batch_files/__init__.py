"""Many requests from a file, and their answers in another: `karat batch` (docs/batch.md)."""
