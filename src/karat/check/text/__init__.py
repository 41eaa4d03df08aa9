"""Before the arithmetic: whether token ids are those of the text, and whether the files of a model agree about them."""
