"""How one recorded result compares with the right one, and the limit from which on it is called wrong."""

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
    """How one recorded result compares with the right computation from its recorded inputs.

    ratio is the largest error of a row in multiples of the row's floor (inf: NaN or infinity differ); error the
    largest absolute error, of what is beyond the limit if anything is (under a mistake: of the same values); where the
    row of the largest ratio; scale the largest magnitude of the right result; by_token the largest ratio of each token
    that the result has a row for (nothing where all are equal); odd the first place of NaN or infinity in what was
    recorded, masks aside (nothing: there is none).
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
