"""Model families, one file each, and the decoder that they share."""
