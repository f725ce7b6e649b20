"""Incremental fetch sessions (KIP-227): the partitions of a consumer, so that its requests name only what has changed.

The cache evicts as Kafka's does: first a session that was not used for EVICTION_S, then one that is worth less than the
new one. Sessions of replicas (privileged) are worth more than those of consumers, then larger ones more than smaller.
A session belongs to no connection and no principal: a client is authorized by each request. A session lives in one
process; another one answers its id with FETCH_SESSION_ID_NOT_FOUND, as a broker does after a restart.

A session has a watch on its partitions. A fetch reads only those in `changed`: that the request names, that have grown,
or that the last response had not read to their end. So its cost does not depend on the number of idle partitions. Idle
partitions are read again every REREAD_S, since the log start moves without growth.

No function here reads a clock: callers pass the time in seconds.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

import trio
from attrs import define, field

from korvet.protocol.errors import FetchSessionIdNotFound, FetchSessionTopicIdError, InvalidFetchSessionEpoch
from korvet.protocol.schema import ZERO_UUID
from korvet.storage.interface import TopicPartition, Watch

if TYPE_CHECKING:
    from korvet.protocol.messages.fetch import (
        FetchableTopicResponse,
        FetchPartition,
        FetchRequest,
        PartitionData,
    )

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
LARGEST = 2**31 - 1  # session id and epoch
# Fetch requests name topics by id from this version on.
FIRST_VERSION_WITH_IDS = 13

# As in Kafka, where it is no setting.
EVICTION_S = 120.0
# Limits of the partitions of all sessions, some 900 bytes each, and of one. Beyond them a client gets no session, as
# if there were no slot.
PARTITIONS_AT_MOST = 100_000
PARTITIONS_OF_ONE = 10_000
# A session that was not used for so long has no watch; the next fetch reads all of its partitions.
UNWATCHED_AFTER_S = 10.0
# Interval at which an idle partition is read again, and limit of those that one fetch reads.
REREAD_S = 30.0
REREAD_AT_ONCE = 100

#: The topic, by name or by id, and the number of a partition.
Key = tuple[str | UUID, int]


class Watchable(Protocol):
    """The logs that a session watches."""

    def watch(self, tps: Collection[TopicPartition]) -> AbstractContextManager[Watch]:
        """Return a watch for growth."""


@define(eq=False)
class SessionPartition:
    """A partition of a session, and what the last response with it has said."""

    topic: str
    topic_id: UUID
    request: FetchPartition
    order: int  # rises; a partition with records moves to the end, so that others come first
    name: str = ""  # of the topic; empty until its id was found
    tp: TopicPartition | None = None  # None until the topic was looked up
    high_watermark: int = -1
    log_start_offset: int = -1
    read_at: float = 0.0

    @property
    def key(self) -> Key:
        return key_of(self.topic, self.topic_id, self.request.partition)

    def must_respond(self, data: PartitionData) -> bool:
        """Return True if a response has to contain the partition, by Kafka's rules."""
        return bool(
            data.records
            or data.error_code
            or data.diverging_epoch is not None
            or data.high_watermark != self.high_watermark
            or data.log_start_offset != self.log_start_offset
        )

    def note(self, data: PartitionData) -> None:
        """Note what a response says. After an error the partition is in the next response, whatever has changed."""
        self.high_watermark = -1 if data.error_code else data.high_watermark
        self.log_start_offset = data.log_start_offset


@define(eq=False)
class FetchSession:
    """The partitions of a session, in the order in which they are read."""

    session_id: int
    uses_topic_ids: bool
    is_privileged: bool
    created_at: float
    used_at: float
    epoch: int = 1
    partitions: dict[Key, SessionPartition] = field(factory=dict)
    changed: set[SessionPartition] = field(factory=set)
    # The properties of requests on which what a client may read depends. If they differ, all partitions have changed.
    terms: tuple[object, ...] = ()
    cached_size: int = 0  # as counted by the cache
    watch: Watch | None = None
    _watching: AbstractContextManager[Watch] | None = None
    _watched: dict[TopicPartition, SessionPartition | None] = field(factory=dict)
    _idle: dict[SessionPartition, None] = field(
        factory=dict
    )  # those not in `changed`, the one read first first
    _next_order: int = 0

    @property
    def value(self) -> tuple[bool, int, int]:
        """The rank among sessions that may be evicted; the lowest goes first."""
        return self.is_privileged, self.cached_size, self.session_id

    def add(self, request: FetchRequest) -> None:
        """Add and change the partitions that a request names."""
        for topic in request.topics:
            for partition in topic.partitions:
                self._set(topic.topic, topic.topic_id, partition)

    def update(self, request: FetchRequest) -> None:
        """Add, change and remove the partitions that a request names."""
        self.add(request)
        for forgotten in request.forgotten_topics_data:
            for number in forgotten.partitions:
                self._forget(key_of(forgotten.topic, forgotten.topic_id, number))

    def _set(self, topic: str, topic_id: UUID, request: FetchPartition) -> None:
        key = key_of(topic, topic_id, request.partition)
        known = self.partitions.get(key)
        if known is None:
            known = self.partitions[key] = SessionPartition(topic, topic_id, request, self._next())
        else:
            known.request = request
        self._change(known)

    def _forget(self, key: Key) -> None:
        known = self.partitions.pop(key, None)
        if known is None:
            return
        self.changed.discard(known)
        self._idle.pop(known, None)
        if known.tp in self._watched:
            # Java clients before 4.0 forget a partition while they have records of it, and add it again.
            self._watched[known.tp] = None

    def _next(self) -> int:
        self._next_order += 1
        return self._next_order

    def _change(self, partition: SessionPartition) -> None:
        self.changed.add(partition)
        self._idle.pop(partition, None)

    def begin(self, terms: tuple[object, ...], now: float) -> None:
        """Mark what has to be read again because of the time, or because the terms have changed."""
        if terms != self.terms:
            self.terms = terms
            self.changed.update(self.partitions.values())
            self._idle.clear()
        due: list[SessionPartition] = []
        for partition in self._idle:
            if partition.read_at > now - REREAD_S or len(due) == REREAD_AT_ONCE:
                break
            due.append(partition)
        for partition in due:
            self._change(partition)

    def note(self, topic: FetchableTopicResponse, name: str) -> None:
        """Note what the response that begins the session says about a topic. The name is empty if it is unknown."""
        for data in topic.partitions:
            partition = self.partitions[key_of(topic.topic, topic.topic_id, data.partition_index)]
            partition.name = name
            partition.note(data)

    def in_order(self, partitions: Iterable[SessionPartition]) -> list[SessionPartition]:
        """Return partitions in the order in which they are read."""
        return sorted(partitions, key=lambda each: each.order)

    def answered(
        self, partition: SessionPartition, data: PartitionData, now: float, *, is_idle: bool
    ) -> None:
        """Note the result of a read that the client receives; `is_idle` if another read would find the same."""
        partition.note(data)
        if partition.key not in self.partitions:
            return
        if data.records:
            partition.order = self._next()
        if is_idle:
            self.changed.discard(partition)
            self._idle.pop(partition, None)
            self._idle[partition] = None
            partition.read_at = now

    # --- The watch --------------------------------------------------------------------------------------

    def watch_partitions(self, log: Watchable, found: Iterable[SessionPartition]) -> Watch:
        """Watch these partitions, and all others; return the watch. Their topics were looked up."""
        is_new = self.watch is None or len(self._watched) > 2 * len(self.partitions) + REREAD_AT_ONCE
        for partition in found:
            if partition.tp is not None:
                is_new = is_new or partition.tp not in self._watched
                self._watched[partition.tp] = partition
        if is_new or self.watch is None:
            return self._watch_again(log)
        return self.watch

    def _watch_again(self, log: Watchable) -> Watch:
        watched = {each.tp: each for each in self.partitions.values() if each.tp is not None}
        watching = log.watch(watched)
        watch = watching.__enter__()
        if self.watch is not None:
            self.note_grown(self.watch.grown())
        self.unwatch()
        self.watch, self._watching = watch, watching
        self._watched.update(watched)
        return watch

    def note_grown(self, tps: Iterable[TopicPartition]) -> list[SessionPartition]:
        """Mark partitions that have grown, and return them."""
        grown = [found for tp in tps if (found := self._watched.get(tp)) is not None]
        for partition in grown:
            self._change(partition)
        return grown

    def unwatch(self) -> None:
        """End the watch. Unless another one follows immediately, all partitions have changed."""
        watching, self.watch, self._watching = self._watching, None, None
        self._watched.clear()
        if watching is not None:
            watching.__exit__(None, None, None)

    def rest(self) -> None:
        """End the watch of a session that is not used at present."""
        if self.watch is not None:
            self.unwatch()
            self.changed.update(self.partitions.values())
            self._idle.clear()


def key_of(topic: str, topic_id: UUID, partition: int) -> Key:
    """Return the key of a partition: a request has either the name or the id of a topic."""
    return (topic if topic_id == ZERO_UUID else topic_id), partition


@define(eq=False)
class FetchSessions:
    """`max.incremental.fetch.session.cache.slots`: the sessions of this process."""

    slots: int
    partitions_at_most: int = PARTITIONS_AT_MOST
    partitions_of_one: int = PARTITIONS_OF_ONE
    evicted: int = 0  # number of sessions evicted so far
    partition_count: int = 0
    _sessions: dict[int, FetchSession] = field(factory=dict)  # the one used first first

    def __len__(self) -> int:
        return len(self._sessions)

    def of(self, request: FetchRequest, version: int, now: float) -> FetchSession | None:
        """Return the session of an incremental request, updated. Return None for a full one, which closes its session.

        Return None also if no partitions are left: the session is closed.
        Raises FetchSessionIdNotFound, InvalidFetchSessionEpoch, FetchSessionTopicIdError.
        """
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if request.session_id in self._sessions:
                self._remove(self._sessions[request.session_id])
            return None
        session = self._sessions.get(request.session_id)
        if session is None:
            raise FetchSessionIdNotFound
        if session.epoch != request.session_epoch:
            raise InvalidFetchSessionEpoch
        if session.uses_topic_ids != (version >= FIRST_VERSION_WITH_IDS):
            raise FetchSessionTopicIdError
        if not self._has_room(len(session.partitions) + size_of(request), session.cached_size):
            self._remove(session)
            raise FetchSessionIdNotFound
        session.update(request)
        if not session.partitions:
            self._remove(session)
            return None
        self._touch(session, now)
        session.epoch = next_epoch(session.epoch)
        return session

    def create(
        self, request: FetchRequest, version: int, now: float, *, is_privileged: bool
    ) -> FetchSession | None:
        """Return a new session with the partitions of a full request, or None if there is no room for it."""
        size = size_of(request)
        if not self._make_room(size, now, is_privileged=is_privileged):
            return None
        session = FetchSession(self._new_id(), version >= FIRST_VERSION_WITH_IDS, is_privileged, now, now)
        session.add(request)  # as in Kafka, a full request forgets nothing
        self._touch(session, now)
        return session

    def _make_room(self, size: int, now: float, *, is_privileged: bool) -> bool:
        if size > self.partitions_of_one:
            return False
        while len(self._sessions) >= self.slots or not self._has_room(size):
            session = self._evictable(size, now, is_privileged=is_privileged)
            if session is None:
                return False
            self._remove(session)
            self.evicted += 1
        return True

    def _has_room(self, size: int, without: int = 0) -> bool:
        """Return True if a session may have `size` partitions, instead of `without`."""
        return (
            size <= self.partitions_of_one
            and self.partition_count - without + size <= self.partitions_at_most
        )

    def _evictable(self, size: int, now: float, *, is_privileged: bool) -> FetchSession | None:
        """Return the session to evict for a new one of that size: one that is stale, or else worth less. Or None."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or now - oldest.used_at > EVICTION_S:
            return oldest
        candidates = (
            each
            for each in self._sessions.values()
            if now - each.created_at > EVICTION_S or (is_privileged and not each.is_privileged)
        )
        least = min(candidates, key=lambda each: each.value, default=None)
        if least is None or (is_privileged, size, 0) < least.value:
            return None
        return least

    def _touch(self, session: FetchSession, now: float) -> None:
        """Note that a session is used, and its size."""
        self._sessions.pop(session.session_id, None)
        self._sessions[session.session_id] = session
        session.used_at = now
        self.partition_count += len(session.partitions) - session.cached_size
        session.cached_size = len(session.partitions)

    def _remove(self, session: FetchSession) -> None:
        if self._sessions.pop(session.session_id, None) is not None:
            self.partition_count -= session.cached_size
            session.unwatch()

    def _new_id(self) -> int:
        while True:
            session_id = 1 + secrets.randbelow(LARGEST)
            if session_id not in self._sessions:
                return session_id

    def rest(self, now: float) -> None:
        """End the watches of sessions that are not used at present."""
        for session in self._sessions.values():
            if session.used_at > now - UNWATCHED_AFTER_S:
                continue
            session.rest()

    async def run(self) -> None:
        """End the watches of sessions that are not used, until cancelled."""
        while True:
            await trio.sleep(UNWATCHED_AFTER_S / 2)
            self.rest(trio.current_time())


def size_of(request: FetchRequest) -> int:
    """Return the number of partitions that a request names."""
    size = 0
    for topic in request.topics:
        size += len(topic.partitions)
    return size


def next_epoch(epoch: int) -> int:
    """Return the epoch of the next request. Epoch 0 only begins a session."""
    return 1 if epoch == LARGEST else epoch + 1
