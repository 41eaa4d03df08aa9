"""How long a search may go on."""

import time


class Budget:
    """Seconds from the moment on at which they are first asked about; None: without end."""

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
