"""Child processes of Karat: none imports from the current folder, none outlives its parent."""
