"""Share consumers of simulated brokers: members of a share group, which work on the records of a queue.

A worker accepts most records, releases some, leaves some alone until the lock ends, is sometimes too slow, and dies or
leaves from time to time, after which it joins as another member.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import trio
from attrs import define, field, frozen

from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from korvet.protocol.messages.share_acknowledge import (
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
)
from korvet.protocol.messages.share_fetch import (
    AcknowledgementBatch,
    FetchPartition,
    FetchTopic,
    ShareFetchRequest,
)
from korvet.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from korvet.storage.interface import TopicPartition
from korvet.storage.shares import AckType
from korvet.testing.queue_history import Delivered, Finished, Left, Lost, Released
from korvet.testing.records import acquired_records
from korvet.testing.simulation.clients import (
    FAILURES,
    MAX_BYTES,
    REQUEST_LIMIT_S,
    TOPIC,
    Client,
    Talk,
    check,
    reason,
)

MOST_RECORDS = 20
# Probabilities that a worker with new records dies or is too slow, and that it lets one of them alone or releases it.
DIES, SLOW, LET_ALONE, RELEASES = 0.02, 0.02, 0.05, 0.1
LEAVES = 0.05  # at each heartbeat


@frozen
class QueueSettings:
    """The settings that the workers of a queue share."""

    group: str
    partitions: int
    heartbeat_s: float
    lock_s: float


#: Offsets, values and acknowledgements of records, by partition.
Decided = dict[int, list[tuple[int, str, AckType]]]


class Over(OSError):  # noqa: N818  it is planned
    """The life of a member has ended, or its assignment is another one."""


@define(eq=False)
class Session:
    """A member's share session with one broker."""

    name: str
    talk: Talk
    topic_id: UUID
    numbers: list[int]
    epoch: int = 0
    answered_s: float = field(factory=trio.current_time)  # when the session was certainly there


@define(eq=False)
class Worker(Client):
    """See the module. A worker runs until the caller cancels it, and accepts every record once `is_stopping`."""

    settings: QueueSettings
    is_stopping: bool = False
    _member_id: str = ""
    _epoch: int = 0
    _assigned: list[int] = field(factory=list)

    async def run(self) -> None:
        """Be one member after the other, forever."""
        while True:
            try:
                await self._be_member()
            except FAILURES as error:
                self.history.note(self.name, reason(error))
                await trio.sleep(self.chance.random() * self.pause_s)

    async def create_group(self) -> None:
        """Create the group, which begins with the first record of each partition."""
        partitions = [
            AlterShareGroupOffsetsRequestPartition(partition_index=number, start_offset=0)
            for number in range(self.settings.partitions)
        ]
        topic = AlterShareGroupOffsetsRequestTopic(topic_name=TOPIC, partitions=partitions)
        request = AlterShareGroupOffsetsRequest(group_id=self.settings.group, topics=[topic])
        while True:
            try:
                talk = await self.connect_coordinator(self.settings.group)
                try:
                    answer = await talk.ask(request)
                finally:
                    await self.close(talk)
                check(answer.error_code)
                for each in answer.responses[0].partitions:
                    check(each.error_code)
            except FAILURES as error:
                self.history.note(self.name, reason(error))
                await trio.sleep(self.pause_s)
            else:
                return

    def _rolls(self, probability: float) -> bool:
        """Return True with that probability, unless the worker accepts everything."""
        return self.chance.random() < probability and not self.is_stopping

    # --- Members ----------------------------------------------------------------------------------------

    async def _be_member(self) -> None:
        """Be a member until it dies or leaves. Raises one of FAILURES."""
        self._member_id = f"{self.name}-{self.chance.getrandbits(32):08x}"
        self._epoch, self._assigned = 0, []
        talk = await self.connect_coordinator(self.settings.group)
        try:
            await self._beat(talk)
            while True:
                await self._work(talk)
        finally:
            await self.close(talk)

    async def _beat(self, talk: Talk) -> bool:
        """Send a heartbeat. Return True if the assignment has changed."""
        request = ShareGroupHeartbeatRequest(
            group_id=self.settings.group,
            member_id=self._member_id,
            member_epoch=self._epoch,
            subscribed_topic_names=None if self._epoch else [TOPIC],
        )
        answer = await talk.ask(request)
        check(answer.error_code)
        self._epoch = answer.member_epoch
        if answer.assignment is None:
            return False
        before = self._assigned
        self._assigned = sorted(n for each in answer.assignment.topic_partitions for n in each.partitions)
        return self._assigned != before

    async def _work(self, talk: Talk) -> None:
        """Work on the assigned partitions, until there are others. Raises one of FAILURES."""
        topic = MetadataRequestTopic(name=TOPIC)
        metadata = await talk.ask(MetadataRequest(topics=[topic], allow_auto_topic_creation=False))
        (found,) = metadata.topics
        check(found.error_code)
        hosts = {each.node_id: each.host for each in metadata.brokers}
        led: dict[str, list[int]] = {}
        for each in sorted(found.partitions, key=lambda each: each.partition_index):
            if each.partition_index in self._assigned and each.leader_id in hosts:
                led.setdefault(hosts[each.leader_id], []).append(each.partition_index)
        failures: list[Exception] = []
        async with trio.open_nursery() as nursery:
            for host, numbers in led.items():
                nursery.start_soon(self._serve, host, found.topic_id, numbers, failures, nursery.cancel_scope)
            try:
                await self._stay(talk)
            except FAILURES as error:
                failures.append(error)
            nursery.cancel_scope.cancel()
        if failures:
            raise failures[0]

    async def _stay(self, talk: Talk) -> None:
        """Send heartbeats until the assignment is another one. Raises one of FAILURES, Over after leaving."""
        while True:
            await trio.sleep(self.settings.heartbeat_s)
            if self._rolls(LEAVES):
                self._epoch = -1
                await self._beat(talk)
                raise Over("left the group")
            if await self._beat(talk):
                return

    async def _serve(
        self,
        host: str,
        topic_id: UUID,
        numbers: list[int],
        failures: list[Exception],
        scope: trio.CancelScope,
    ) -> None:
        """Work on the partitions that one broker leads, until that fails."""
        try:
            session = Session(f"{self._member_id}@{host}", await self.connect(host), topic_id, numbers)
            try:
                while True:
                    await self._work_once(session)
            finally:
                self.history.queue.append(Left(session.name, session.answered_s))
                await self.close(session.talk)
        except FAILURES as error:
            failures.append(error)
            scope.cancel()

    # --- Records ----------------------------------------------------------------------------------------

    async def _work_once(self, session: Session) -> None:
        """Acquire records and acknowledge them. Raises one of FAILURES."""
        records = await self._acquire(session)
        if not records:
            return
        if self._rolls(DIES):
            raise Over("dies with records")
        if self._rolls(SLOW):
            await trio.sleep(self.settings.lock_s * 1.2)
        decided: Decided = {}
        for number, offset, value in records:
            if not self._rolls(LET_ALONE):
                kind = AckType.RELEASE if self._rolls(RELEASES) else AckType.ACCEPT
                decided.setdefault(number, []).append((offset, value, kind))
        if decided:
            await self._acknowledge(session, decided)

    async def _acquire(self, session: Session) -> list[tuple[int, int, str]]:
        """Return the partition, offset and value of acquired records."""
        wait_s = self.settings.heartbeat_s * (0.5 + self.chance.random() / 2)
        most = self.chance.randrange(1, MOST_RECORDS)
        partitions = [FetchPartition(partition_index=n, acknowledgement_batches=[]) for n in session.numbers]
        topic = FetchTopic(topic_id=session.topic_id, partitions=partitions)
        request = ShareFetchRequest(
            group_id=self.settings.group,
            member_id=self._member_id,
            share_session_epoch=session.epoch,
            max_wait_ms=int(wait_s * 1000),
            min_bytes=1,
            max_bytes=MAX_BYTES,
            max_records=most,
            batch_size=most,
            topics=[] if session.epoch else [topic],
            forgotten_topics_data=[],
        )
        asked_s = trio.current_time()
        try:
            answer = await self._ask(session, request, wait_s + REQUEST_LIMIT_S)
            found = [each for topic in answer.responses for each in topic.partitions]
            for each in found:
                check(each.error_code)
        except BaseException:
            self.history.queue.append(Lost(session.name))
            raise
        records = []
        for each in found:
            tp = TopicPartition(TOPIC, each.partition_index)
            values = [
                (offset, count, (value or b"").decode()) for offset, count, value in acquired_records(each)
            ]
            self.history.read(session.name, tp, [(offset, value) for offset, _, value in values])
            for offset, count, value in values:
                self.history.note(session.name, f"got {value}, delivery {count}")
                self.history.queue.append(Delivered(session.name, value, asked_s, trio.current_time(), count))
                records.append((each.partition_index, offset, value))
        return records

    async def _acknowledge(self, session: Session, decided: Decided) -> None:
        """Acknowledge records. A worker that was too slow is refused, with all records of a partition."""
        partitions = [
            AcknowledgePartition(
                partition_index=number,
                acknowledgement_batches=[
                    AcknowledgementBatch(
                        first_offset=offset, last_offset=offset, acknowledge_types=[int(kind)]
                    )
                    for offset, _, kind in records
                ],
            )
            for number, records in decided.items()
        ]
        request = ShareAcknowledgeRequest(
            group_id=self.settings.group,
            member_id=self._member_id,
            share_session_epoch=session.epoch,
            topics=[AcknowledgeTopic(topic_id=session.topic_id, partitions=partitions)],
        )
        queue = self.history.queue
        for records in decided.values():
            for _, value, kind in records:
                if kind is AckType.RELEASE:
                    queue.append(Released(session.name, value, trio.current_time()))
        answer = await self._ask(session, request, REQUEST_LIMIT_S)
        for each in answer.responses[0].partitions:
            if each.error_code == ErrorCode.INVALID_RECORD_STATE:
                continue
            check(each.error_code)
            for _, value, kind in decided[each.partition_index]:
                if kind is AckType.ACCEPT:
                    self.history.note(session.name, f"finished {value}")
                    queue.append(Finished(session.name, value, trio.current_time()))

    async def _ask(self, session: Session, request: Any, limit_s: float) -> Any:
        answer = await session.talk.ask(request, limit_s)
        check(answer.error_code)
        session.epoch += 1
        session.answered_s = trio.current_time()
        return answer
