"""Limit how many log lines clients can cause."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic

from attrs import define


@define(eq=False)
class LogLimit:
    """Log at most `lines` messages in `period_s` seconds, and the number left out after that."""

    logger: logging.Logger
    lines: int = 10
    period_s: float = 60.0
    clock: Callable[[], float] = monotonic  # seconds
    _began_s: float = -float("inf")
    _logged: int = 0
    _left_out: int = 0

    def warning(self, message: str, *arguments: object) -> None:
        """Log a warning, or count it if there were too many."""
        now_s = self.clock()
        if now_s - self._began_s >= self.period_s:
            if self._left_out:
                fields = {"left_out": self._left_out}
                self.logger.warning("%(left_out)d warnings about connections were not logged", fields)
            self._began_s, self._logged, self._left_out = now_s, 0, 0
        if self._logged < self.lines:
            self._logged += 1
            self.logger.warning(message, *arguments)
        else:
            self._left_out += 1
