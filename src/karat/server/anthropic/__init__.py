"""Anthropic's protocol, both ways."""
