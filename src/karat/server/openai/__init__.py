"""OpenAI's protocol: requests made into the inner form, and outputs into OpenAI's answers."""
