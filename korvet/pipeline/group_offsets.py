"""Commit archived offsets to a group, for tools that show lag. The tables do not depend on these offsets."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

from attrs import define, field

from korvet.client import OffsetAndMetadata, TopicPartition
from korvet.pipeline.cluster import Connecting
from korvet.protocol.errors import KafkaError

# Brokers forget offsets that were not committed for long: a week by default (offsets.retention.minutes).
RENEW_EVERY_S = 3600.0

log = logging.getLogger(__name__)


@define
class GroupOffsets:
    """The committed offsets of a group. Errors are only logged."""

    connecting: Connecting
    group_id: str
    renew_every_s: float = RENEW_EVERY_S
    #: With the times of the commits.
    _committed: dict[TopicPartition, tuple[OffsetAndMetadata, float]] = field(factory=dict, init=False)
    #: Error of the last commit.
    _error: str = field(default="", init=False)

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> bool:
        """Commit those that differ from the last commit, or whose commit is old. Return False if that failed."""
        now = time.monotonic()
        due = {tp: each for tp, each in offsets.items() if self._is_due(tp, each, now)}
        if not due:
            return True
        try:
            async with self.connecting.open() as client:
                await client.commit(self.group_id, due)
        except KafkaError as error:
            if str(error) != self._error:  # a login without permission fails in every round: log it once
                log.warning("tools will not show how far the archive is: %(error)s", {"error": error})
            self._error = str(error)
            return False
        self._committed |= {tp: (each, now) for tp, each in due.items()}
        self._error = ""
        return True

    def _is_due(self, tp: TopicPartition, offset: OffsetAndMetadata, now: float) -> bool:
        before, committed_s = self._committed.get(tp, (None, 0.0))
        return offset != before or now - committed_s >= self.renew_every_s

    async def committed(self, tps: Sequence[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the offset of each partition: the group's, else 0. Return none if the brokers do not answer."""
        try:
            async with self.connecting.open() as client:
                found = await client.committed(self.group_id, tps)
        except KafkaError:
            return {}
        return {tp: found.get(tp, OffsetAndMetadata(0)) for tp in tps}
