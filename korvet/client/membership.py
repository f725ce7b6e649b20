"""Membership in a consumer group with the classic protocol: join, heartbeat, consume the assignment, commit, leave.

The member supports the assignor "range", which Java's consumers and librdkafka support by default as well, and computes
the assignment itself if it is the leader. At a rebalance it commits, gives up all its partitions, and joins again.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

import trio
from attrs import define, field

from korvet.client.client import Client
from korvet.client.cluster import raise_for
from korvet.client.consuming import Consumer
from korvet.client.groups import CONSUMER, Reader, assigned_partitions
from korvet.client.isolation import READ_COMMITTED, READ_UNCOMMITTED
from korvet.client.model import (
    EARLIEST,
    LATEST,
    ConsumedRecord,
    ListedOffset,
    OffsetAndMetadata,
    TopicPartition,
    by_topic,
)
from korvet.concurrency.background import background_nursery
from korvet.protocol.errors import (
    ErrorCode,
    IllegalGeneration,
    KafkaError,
    OffsetOutOfRange,
    RebalanceInProgress,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from korvet.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from korvet.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from korvet.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from korvet.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

RANGE = "range"
# The defaults of Java's consumer.
SESSION_TIMEOUT_MS = 45_000
REBALANCE_TIMEOUT_MS = 60_000
HEARTBEAT_INTERVAL_S = 3.0
COMMIT_INTERVAL_S = 5.0
# A member without partitions looks for a rebalance at this interval.
IDLE_INTERVAL_S = 0.5
LEAVE_LIMIT_S = 5.0
# The member has to join again.
REJOIN = (RebalanceInProgress, IllegalGeneration, UnknownMemberId)


@define(eq=False)
class GroupConsumer:
    """A member of a group, created by `group_consumer`. One task calls `poll` and then `processed`, in turns."""

    client: Client
    group_id: str
    topics: tuple[str, ...]
    start: int  # EARLIEST or LATEST, for partitions without a committed offset
    follows: bool  # False: read up to the ends that the log had when the member received its partitions
    # The id of a static member (KIP-345): it does not leave, and receives the same partitions when it comes back within
    # the session timeout.
    instance_id: str | None = None
    isolation_level: int = READ_UNCOMMITTED
    member_id: str = ""
    generation_id: int = -1
    rebalances: int = 0  # number of assignments received so far
    _consumer: Consumer | None = None
    _must_join: bool = True
    _processed: dict[TopicPartition, int] = field(factory=dict)  # offsets to commit
    _committed: dict[TopicPartition, int] = field(factory=dict)
    _next_commit_s: float = 0.0

    @property
    def assignment(self) -> tuple[TopicPartition, ...]:
        return () if self._consumer is None else tuple(sorted(self._consumer.positions))

    @property
    def is_joining(self) -> bool:
        """True while the member waits for the other members, at a rebalance."""
        return self._must_join

    @property
    def until(self) -> Mapping[TopicPartition, int] | None:
        """The end offset of each partition, or None if the member reads on."""
        if self.follows:
            return None
        return {} if self._consumer is None else self._consumer.until

    def unfinished(self) -> bool:
        """Return True if the member has to poll again."""
        return self.follows or self._must_join or bool(self._consumer and self._consumer.unfinished())

    async def poll(self) -> list[ConsumedRecord]:
        """Return the next records of the member's partitions. Commit and join again first if the group rebalances."""
        if self._must_join:
            await self._commit_if_possible()
            await self._join()
        consumer = self._consumer
        if consumer is None or not consumer.positions:
            await trio.sleep(IDLE_INTERVAL_S)
            return []
        try:
            return await consumer.poll()
        except OffsetOutOfRange:  # the records after the committed offset were deleted
            consumer.positions |= await self._starts(list(consumer.positions), consumer.positions)
            return []

    async def processed(self, left: Sequence[ConsumedRecord] = ()) -> None:
        """Record that all records returned by `poll` were processed except those in `left`.

        Commit at intervals. A commit that failed is repeated at the next one.
        """
        if self._consumer is None:
            return
        self._processed = dict(self._consumer.positions)
        for record in reversed(left):
            self._processed[TopicPartition(record.topic, record.partition)] = record.offset
        if trio.current_time() >= self._next_commit_s and not self._must_join:
            try:
                await self._commit_if_possible()
            except KafkaError as error:
                if not error.retriable:
                    raise

    async def commit(self) -> None:
        """Commit the offsets of what was processed. Raises RebalanceInProgress, UnknownMemberId, IllegalGeneration."""
        changed = {tp: offset for tp, offset in self._processed.items() if self._committed.get(tp) != offset}
        if changed:
            await self.client.commit(
                self.group_id,
                {tp: OffsetAndMetadata(offset) for tp, offset in changed.items()},
                member_id=self.member_id,
                generation_id=self.generation_id,
                group_instance_id=self.instance_id,
            )
            self._committed |= changed
        self._next_commit_s = trio.current_time() + COMMIT_INTERVAL_S

    async def leave(self) -> None:
        """Leave the group, so that the others receive its partitions without waiting for the session timeout.

        Does nothing for a static member. Raises UnsupportedVersion if the broker is older than Kafka 2.4.
        """
        if self.member_id and self.instance_id is None:
            await self.client.request(
                LeaveGroupRequest(
                    group_id=self.group_id,
                    members=[MemberIdentity(member_id=self.member_id, reason="the consumer ended")],
                ),
                LeaveGroupResponse,
                group_id=self.group_id,
            )

    async def heartbeats(self) -> None:
        """Send heartbeats until cancelled, and notice rebalances."""
        while True:
            await trio.sleep(HEARTBEAT_INTERVAL_S)
            if self._must_join:
                continue
            request = HeartbeatRequest(
                group_id=self.group_id,
                generation_id=self.generation_id,
                member_id=self.member_id,
                group_instance_id=self.instance_id,
            )
            try:
                answer = await self.client.request(request, HeartbeatResponse, group_id=self.group_id)
                raise_for(answer.error_code, self._name)
            except REJOIN as error:
                self._lose(error)
            except KafkaError as error:
                if not error.retriable:
                    raise

    @property
    def _name(self) -> str:
        return f"group {self.group_id}"

    def _lose(self, error: KafkaError) -> None:
        """Join again at the next poll. A member then reads records again that were not committed."""
        self._must_join = True
        if isinstance(error, UnknownMemberId):
            self.member_id = ""
        if not isinstance(error, RebalanceInProgress):
            self._processed = {}

    async def _commit_if_possible(self) -> None:
        try:
            await self.commit()
        except REJOIN as error:
            self._lose(error)

    async def _join(self) -> None:
        """Join until the member has an assignment, and start to read it."""
        while True:
            try:
                joined = await self.client.retrying(self._join_once)
                assignment = await self.client.retrying(lambda: self._sync(joined))  # noqa: B023  awaited here
            except REJOIN as error:
                self._lose(error)
            else:
                break
        tps = list(assigned_partitions(assignment))
        self._processed, self._committed = {}, {}
        self._consumer = await self._consumer_of(tps)
        self._must_join = False
        self.rebalances += 1

    async def _join_once(self) -> JoinGroupResponse:
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=CONSUMER,
            protocols=[JoinGroupRequestProtocol(name=RANGE, metadata=subscription(self.topics))],
        )
        joined = await self.client.request(
            request, JoinGroupResponse, group_id=self.group_id, wait_s=REBALANCE_TIMEOUT_MS / 1000
        )
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            return await self._join_once()
        raise_for(joined.error_code, self._name)
        self.member_id, self.generation_id = joined.member_id, joined.generation_id
        return joined

    async def _sync(self, joined: JoinGroupResponse) -> bytes:
        assignments: list[SyncGroupRequestAssignment] = []
        if joined.leader == joined.member_id and not joined.skip_assignment:
            assignments = await self._assignments(joined.members)
        synced = await self.client.request(
            SyncGroupRequest(
                group_id=self.group_id,
                generation_id=self.generation_id,
                member_id=self.member_id,
                group_instance_id=self.instance_id,
                protocol_type=CONSUMER,
                protocol_name=joined.protocol_name,
                assignments=assignments,
            ),
            SyncGroupResponse,
            group_id=self.group_id,
            wait_s=REBALANCE_TIMEOUT_MS / 1000,
        )
        raise_for(synced.error_code, self._name)
        return synced.assignment

    async def _assignments(
        self, members: Sequence[JoinGroupResponseMember]
    ) -> list[SyncGroupRequestAssignment]:
        """Return the assignment of every member, as its leader."""
        subscriptions = {member.member_id: subscribed_topics(member.metadata) for member in members}
        instances = {each.member_id: each.group_instance_id for each in members if each.group_instance_id}
        counts = {}
        for topic in sorted({topic for topics in subscriptions.values() for topic in topics}):
            with suppress(UnknownTopicOrPartition):
                counts[topic] = len((await self.client.topic(topic)).partitions)
        assigned = assign_ranges(subscriptions, counts, instances)
        return [
            SyncGroupRequestAssignment(member_id=member_id, assignment=assignment_of(tps))
            for member_id, tps in assigned.items()
        ]

    async def _consumer_of(self, tps: list[TopicPartition]) -> Consumer:
        """Return a consumer from the committed offsets on."""
        stable = self.isolation_level == READ_COMMITTED
        committed = await self.client.committed(self.group_id, tps, require_stable=stable) if tps else {}
        known = {tp: committed[tp].offset for tp in tps if tp in committed}
        missing = [tp for tp in tps if tp not in known]
        listed = await self._listed(missing, self.start) if missing else {}
        positions = known | {tp: at.offset for tp, at in listed.items()}
        self._committed = known
        if self.follows:
            return self.client.consume(positions, isolation_level=self.isolation_level)
        ends = await self._listed(tps, LATEST) if tps else {}
        until = {tp: at.offset for tp, at in ends.items()}
        return self.client.consume(positions, until=until, isolation_level=self.isolation_level)

    async def _listed(self, tps: list[TopicPartition], timestamp: int) -> dict[TopicPartition, ListedOffset]:
        return await self.client.list_offsets(
            dict.fromkeys(tps, timestamp), isolation_level=self.isolation_level
        )

    async def _starts(
        self, tps: list[TopicPartition], positions: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Return a new position for each partition whose position is not in the log."""
        first = await self._listed(tps, EARLIEST)
        following = await self._listed(tps, LATEST)
        bounds = first if self.start == EARLIEST else following
        return {
            tp: bounds[tp].offset
            for tp in tps
            if not first[tp].offset <= positions[tp] <= following[tp].offset
        }


@asynccontextmanager
async def group_consumer(
    client: Client,
    group_id: str,
    topics: Iterable[str],
    *,
    start: int = EARLIEST,
    follows: bool = True,
    instance_id: str | None = None,
    isolation_level: int = READ_UNCOMMITTED,
) -> AsyncIterator[GroupConsumer]:
    """Be a member of a group for the block. At its end, also if it is cancelled, commit what was processed, and leave.

    With an `instance_id` it is a static member, which does not leave. Raises FencedInstanceId if another member has
    the same one. The first `poll` joins the group. Commits that fail at the end are not reported.
    """
    member = GroupConsumer(client, group_id, tuple(topics), start, follows, instance_id, isolation_level)
    try:
        async with background_nursery() as nursery:
            nursery.start_soon(member.heartbeats)
            yield member
    finally:
        with trio.move_on_after(LEAVE_LIMIT_S, shield=True), suppress(KafkaError):
            with suppress(*REJOIN):
                await member.commit()
            await member.leave()


# --- Assignments ---------------------------------------------------------------------------------------------


def assign_ranges(
    subscriptions: Mapping[str, Sequence[str]],
    counts: Mapping[str, int],
    instances: Mapping[str, str] | None = None,
) -> dict[str, list[TopicPartition]]:
    """Return the partitions of each member, in ranges of each topic as Kafka's RangeAssignor has it.

    `counts` has the number of partitions of each topic that exists, `instances` the instance ids of static members.
    Static members are first, in the order of their instance ids, then the others in the order of their member ids. The
    first ones receive one partition more if the number does not divide.
    """
    known = instances or {}

    def order(member_id: str) -> tuple[bool, str]:
        return member_id not in known, known.get(member_id, member_id)

    assigned: dict[str, list[TopicPartition]] = {member_id: [] for member_id in subscriptions}
    for topic, count in counts.items():
        members = sorted((each for each, topics in subscriptions.items() if topic in topics), key=order)
        each, more = divmod(count, len(members))
        first = 0
        for index, member_id in enumerate(members):
            number = each + (index < more)
            assigned[member_id] += [TopicPartition(topic, p) for p in range(first, first + number)]
            first += number
    return assigned


def subscription(topics: Iterable[str]) -> bytes:
    """Return the metadata of a member: version 0, an array of topics, no user data."""
    names = list(topics)
    return struct.pack(">hi", 0, len(names)) + b"".join(map(_text, names)) + struct.pack(">i", -1)


def subscribed_topics(metadata: bytes) -> list[str]:
    """Return the topics in the metadata of a member; none if its format is unknown."""
    reader = Reader(metadata, 2)
    try:
        return [reader.text(reader.number(">h")) for _ in range(reader.number(">i"))]
    except (struct.error, ValueError):
        return []


def assignment_of(tps: Iterable[TopicPartition]) -> bytes:
    """Return the assignment of these partitions: version 0, an array of topic and array of int32, no user data."""
    topics = by_topic(tps)
    arrays = (
        _text(topic) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
        for topic, numbers in topics.items()
    )
    return struct.pack(">hi", 0, len(topics)) + b"".join(arrays) + struct.pack(">i", -1)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data
