"""Each kind of node: what is right, as functions of their arguments that mistakes can replace, and the arguments."""
