"""Model families: one file each beside the shared decoder."""
