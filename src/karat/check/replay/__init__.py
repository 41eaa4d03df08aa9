"""Each op again, on its own recorded inputs, and the noise floor that its result is judged by."""
