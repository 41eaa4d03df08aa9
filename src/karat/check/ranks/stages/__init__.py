"""The stages of `karat check --tensor-parallel-size`, one file each."""
