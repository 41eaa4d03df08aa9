"""A load generator for servers of OpenAI's protocol: prompts, traffic, figures."""
