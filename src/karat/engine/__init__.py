"""Generation: scheduling, sampling, the engine, and the LLM object around it."""
