"""The seed of tests that draw anew in each run: KARAT_SEED, or one drawn by the first process of the run for all."""

import os
import secrets

_DRAWN = "SEED_DRAWN_FOR_TESTS"  # workers inherit it

SEED = os.environ.get("KARAT_SEED") or os.environ.setdefault(_DRAWN, str(secrets.randbelow(2**31)))
