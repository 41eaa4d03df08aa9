"""What an LLM loads, and whether there is room."""
