"""The time that a search may take."""

import time


class SearchBudget:
    """Seconds, counted from the first question whether they are spent; None: no bound."""

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds
        self._until: float | None = None

    @property
    def is_spent(self) -> bool:
        """Whether the time is up."""
        if self.seconds is None:
            return False
        if self._until is None:
            self._until = time.monotonic() + self.seconds
        return time.monotonic() > self._until
