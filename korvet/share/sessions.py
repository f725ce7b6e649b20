"""Share sessions: the partitions that a member fetches, so that its requests name only those that change.

A session belongs to a member of a group and to the connection on which it began. Sessions are in memory; the broker
releases the records of a member whose session ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from attrs import define, field

from korvet.protocol.errors import InvalidShareSessionEpoch, ShareSessionLimitReached, ShareSessionNotFound

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
LARGEST_EPOCH = 2**31 - 1


class SessionKey(NamedTuple):
    """The member of a group."""

    group_id: str
    member_id: str


class Partition(NamedTuple):
    """A partition of a topic with an id."""

    topic_id: UUID
    number: int


@define(eq=False)
class ShareSession:
    """One session. `epoch` is that of its next request."""

    key: SessionKey
    epoch: int
    partitions: dict[Partition, None] = field(factory=dict)  # in order
    share_keys: set[str] = field(
        factory=set
    )  # of the share partitions from which the member may have records

    def rotated(self) -> list[Partition]:
        """Return the partitions, each request beginning with another one."""
        partitions = list(self.partitions)
        if not partitions:
            return []
        begin = self.epoch % len(partitions)
        return partitions[begin:] + partitions[:begin]


@define(eq=False)
class ShareSessions:
    """The sessions of a process. `ended` is called with each session that has ended without a last request."""

    most: int
    ended: Callable[[ShareSession], None]
    _sessions: dict[SessionKey, ShareSession] = field(factory=dict)

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, key: SessionKey) -> ShareSession:
        """Begin a session, instead of the member's previous one. Raises ShareSessionLimitReached."""
        before = self._sessions.pop(key, None)
        if len(self._sessions) >= self.most:
            if before is not None:
                self.ended(before)
            raise ShareSessionLimitReached
        session = self._sessions[key] = ShareSession(key, INITIAL_EPOCH + 1)
        if before is not None:
            session.share_keys = before.share_keys
        return session

    def next(self, key: SessionKey, epoch: int) -> ShareSession:
        """Return the session of a request, which has its epoch or is the last one.

        Raises ShareSessionNotFound, InvalidShareSessionEpoch.
        """
        session = self._sessions.get(key)
        if session is None:
            raise ShareSessionNotFound
        if epoch == FINAL_EPOCH:
            return session
        if epoch != session.epoch:
            raise InvalidShareSessionEpoch
        session.epoch = 1 if epoch == LARGEST_EPOCH else epoch + 1
        return session

    def close(self, session: ShareSession) -> None:
        """Forget a session."""
        if self._sessions.get(session.key) is session:
            del self._sessions[session.key]

    def disconnected(self, session: ShareSession) -> None:
        """End a session whose connection has ended."""
        if self._sessions.get(session.key) is session:
            del self._sessions[session.key]
            self.ended(session)
