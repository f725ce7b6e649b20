"""Count and log data under the broker's own keys that the broker did not write."""

from __future__ import annotations

import logging
from collections import Counter

from attrs import define, field

logger = logging.getLogger(__name__)


@define(eq=False)
class Damage:
    """Counter and log of keys that another client of the same Redis has overwritten."""

    found: Counter[str] = field(factory=Counter)  # by topic

    def note(self, topic: str, message: str, count: int = 1) -> None:
        """Count damaged items, and log the first of each topic."""
        self.found[topic] += count
        if self.found[topic] == count:
            fields = {"topic": topic, "error": message}
            logger.error("topic %(topic)s: %(error)s; other topics are not affected", fields)
