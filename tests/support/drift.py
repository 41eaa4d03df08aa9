"""How far a healthy run may be from another in the end, in floors of the results."""

from math import prod
from typing import Any

from numpy.typing import NDArray


def most_drift(name: str, recorded: NDArray[Any]) -> float:
    """A floor is the largest move of a row in three draws: of a few numbers a row (gates of shared experts, decays) it
    may be far too low. A decay is a power of up to 16 times what came before.
    """
    return 50 if prod(recorded.shape[1:]) >= 8 and not name.endswith(".decay") else 800
