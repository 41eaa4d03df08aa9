"""How fast a model runs here, against what the machine can do and against other engines."""
