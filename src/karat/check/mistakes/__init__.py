"""What goes wrong in engines: the catalogue of mistakes, and what each of them computes."""
