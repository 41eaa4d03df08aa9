"""What is known to go wrong: the catalogue of mistakes, and what each of them computes."""
