"""OpenAI's protocol: from its requests to the inner form, and from outputs to its answers."""
