"""Share groups as handlers use them: their sessions, the acknowledgements in requests, and their share partitions.

`ShareFetch` and `ShareAcknowledge` have sessions and acknowledgements in common. A session ends with its connection;
`run` then releases the records of its member.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

import trio
from attrs import define, field

from korvet.broker.context import RequestContext
from korvet.broker.limits import share_of
from korvet.broker.share_settings import ShareSettings, share_settings
from korvet.config import Config
from korvet.groups.coordinator import GroupCoordinator
from korvet.protocol.errors import InvalidRecordState, InvalidRequest, KafkaError
from korvet.protocol.text import quoted
from korvet.share.coordinator import ShareCoordinator, share_routing
from korvet.share.partitions import SharePartitions
from korvet.share.sessions import INITIAL_EPOCH, Partition, SessionKey, ShareSession, ShareSessions
from korvet.storage.interface import Storage
from korvet.storage.shares import Acknowledged, AckType, ShareLimits, SharePartitionKey

if TYPE_CHECKING:
    from korvet.protocol.messages.share_fetch import AcknowledgementBatch

logger = logging.getLogger(__name__)

LONGEST_MEMBER_ID = 36  # characters
FIRST_VERSION_WITH_RENEW = 2

Acknowledgements = dict[Partition, "Sequence[Acknowledged] | KafkaError"]


class AcknowledgedPartition(Protocol):
    """A partition of a request with its acknowledgements."""

    partition_index: int
    acknowledgement_batches: list[AcknowledgementBatch]


@define(eq=False)
class Sharing:
    """See the module."""

    groups: GroupCoordinator
    coordinator: ShareCoordinator
    partitions: SharePartitions
    sessions: ShareSessions
    reading: dict[str, trio.Lock] = field(factory=dict)  # of the share partitions from which a request reads
    _ended: list[ShareSession] = field(factory=list)
    _has_ended: trio.Event = field(factory=trio.Event)

    def settings(self, group_id: str) -> ShareSettings:
        """Return the present settings of a group."""
        return share_settings(self.groups.config, self.groups.settings.get(group_id, {}))

    async def run(self) -> None:
        """Serve share partitions, and release the records of members whose connections have ended, forever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.coordinator.run)
            while True:
                await self._has_ended.wait()
                self._has_ended = trio.Event()
                ended, self._ended = self._ended, []
                for session in ended:
                    await self.release(session)

    def note_ended(self, session: ShareSession) -> None:
        """Let `run` release the records of a session's member."""
        self._ended.append(session)
        self._has_ended.set()

    async def release(self, session: ShareSession) -> None:
        """Release all records that a session's member has acquired. If that fails, their locks end."""
        for key in sorted(session.share_keys):
            try:
                await self.partitions.release(SharePartitionKey.parsed(key), session.key.member_id)
            except KafkaError as error:
                fields = {"_key": quoted(key), "share": key, "error": error.message}
                logger.warning("records of share partition %(_key)s stay locked: %(error)s", fields)
        session.share_keys = set()

    # --- Sessions ---------------------------------------------------------------------------------------

    def session_of(
        self, context: RequestContext, key: SessionKey, epoch: int, *, has_acknowledgements: bool
    ) -> ShareSession:
        """Return the session of a ShareFetch, a new one for the first epoch.

        Raises InvalidRequest, ShareSessionNotFound, InvalidShareSessionEpoch, ShareSessionLimitReached.
        """
        if epoch != INITIAL_EPOCH:
            return self.sessions.next(key, epoch)
        if has_acknowledgements:
            raise InvalidRequest("The first request of a share session cannot acknowledge records.")
        session = self.sessions.open(key)
        if context.at_disconnect is not None:
            context.at_disconnect[key] = partial(self.sessions.disconnected, session)
        return session

    async def end(self, context: RequestContext, session: ShareSession) -> None:
        """End a session at its client's request, and release its member's records."""
        self.sessions.close(session)
        if context.at_disconnect is not None:
            context.at_disconnect.pop(session.key, None)
        await self.release(session)


def validated_member(group_id: str | None, member_id: str | None) -> SessionKey:
    """Return the member that a request names. Raises InvalidRequest."""
    if group_id is None or member_id is None or not 0 < len(member_id) <= LONGEST_MEMBER_ID:
        raise InvalidRequest("GroupId and MemberId must be set.")
    return SessionKey(group_id, member_id)


def acknowledgements(
    topics: Iterable[tuple[UUID, Sequence[AcknowledgedPartition]]], version: int, *, renews: bool
) -> Acknowledgements:
    """Return the acknowledgements of a request by partition, or the error of those of a partition."""
    found: Acknowledgements = {}
    for topic_id, partitions in topics:
        for each in partitions:
            if each.acknowledgement_batches:
                key = Partition(topic_id, each.partition_index)
                try:
                    found[key] = _validated(each.acknowledgement_batches, version, renews=renews)
                except (InvalidRequest, InvalidRecordState) as error:
                    found[key] = error
    return found


def _validated(
    batches: Sequence[AcknowledgementBatch], version: int, *, renews: bool
) -> Sequence[Acknowledged]:
    most = AckType.RENEW if version >= FIRST_VERSION_WITH_RENEW else AckType.REJECT
    found: list[Acknowledged] = []
    first, last = -1, -1
    for batch in batches:
        types, size = batch.acknowledge_types, batch.last_offset - batch.first_offset + 1
        if batch.first_offset < 0 or size <= 0:
            raise InvalidRequest("The first offset of a batch is above its last one.")
        if batch.first_offset < first:
            raise InvalidRequest("The batches are not in ascending order.")
        if batch.first_offset <= last:  # as in Kafka
            raise InvalidRecordState("A batch contains offsets of the one before.")
        if len(types) not in (1, size):
            raise InvalidRequest("A batch has neither one type nor one for each offset.")
        if not all(AckType.GAP <= each <= most for each in types):
            raise InvalidRequest("The acknowledge type is unknown.")
        if AckType.RENEW in types and not renews:
            raise InvalidRequest("The request renews locks, but is not marked as one that does.")
        first, last = batch.first_offset, batch.last_offset
        found += _spans(batch)
    return found


def _spans(batch: AcknowledgementBatch) -> Iterable[Acknowledged]:
    """Yield the consecutive offsets of a batch that have the same type."""
    types = batch.acknowledge_types
    if len(types) == 1:
        yield Acknowledged(batch.first_offset, batch.last_offset, AckType(types[0]))
        return
    begin = 0
    for index in range(1, len(types) + 1):
        if index == len(types) or types[index] != types[begin]:
            first = batch.first_offset
            yield Acknowledged(first + begin, first + index - 1, AckType(types[begin]))
            begin = index


def open_sharing(storage: Storage, config: Config, groups: GroupCoordinator) -> Sharing:
    """Return the share groups of a broker."""

    def limits_of(group_id: str) -> ShareLimits:
        return sharing.settings(group_id).limits

    def ended(session: ShareSession) -> None:
        sharing.note_ended(session)

    coordinator = ShareCoordinator(storage, share_routing(groups.routing), limits_of)
    sessions = ShareSessions(share_of(config.group_share_max_share_sessions, config.processes), ended)
    sharing = Sharing(groups, coordinator, SharePartitions(coordinator), sessions)
    return sharing
