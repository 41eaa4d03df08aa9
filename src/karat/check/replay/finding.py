"""A finding: one recorded result beside the right one, and the limit beyond which it is called wrong."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]

F64, F32 = np.dtype(np.float64), np.dtype(np.float32)
# A row within this multiple of its floor is explained by rounding. On healthy runs the largest ratio stays below 4
# (docs/diagnosis.md has the distribution); a bug counts as visible from here on.
LIMIT = 10.0


@dataclass(frozen=True, slots=True, eq=False)
class Finding:
    """One recorded result beside the right computation from its recorded inputs.

    ratio     the largest error in multiples of its row's floor; infinite if NaN or infinity differ
    error     the largest absolute error, of the values beyond the limit if any are (under a mistake: of those values)
    scale     the largest magnitude of the right result
    where     the index of the largest ratio; () if all are equal
    exact     all values are equal
    segment   the nodes that were computed, the result last
    by_token  the largest ratio of each token that the result has a row for; () if all are equal
    odd       the first index of NaN or infinity in the recorded result, masks aside; () if there is none
    """

    name: str
    ratio: float
    error: float
    scale: float
    where: tuple[int, ...]
    exact: bool
    segment: tuple[str, ...] = field(default=())
    by_token: tuple[float, ...] = field(default=(), repr=False)
    odd: tuple[int, ...] = ()

    @property
    def is_wrong(self) -> bool:
        return self.ratio > LIMIT
