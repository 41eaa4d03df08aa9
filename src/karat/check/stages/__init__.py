"""The stages of `karat check`, a file each, named as on the screen; each exports `run`."""
