"""Clients of simulated brokers: an idempotent, pipelined producer, and members of a group. Others are in their modules.

They are conversations on the codec over connections in memory. Each client is one task, which retries what Kafka's
clients retry, and reports to the history what it observed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from random import Random
from typing import Any, Protocol

import trio
from attrs import define, field, frozen

from korvet.client.groups import CONSUMER, assigned_partitions
from korvet.client.membership import RANGE, assign_ranges, assignment_of, subscription
from korvet.handlers import APIS
from korvet.protocol.buffers import Buffer
from korvet.protocol.errors import ErrorCode, error_for
from korvet.protocol.frames import FrameReader
from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from korvet.protocol.messages.find_coordinator import FindCoordinatorRequest
from korvet.protocol.messages.heartbeat import HeartbeatRequest
from korvet.protocol.messages.init_producer_id import InitProducerIdRequest
from korvet.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from korvet.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from korvet.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from korvet.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from korvet.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from korvet.protocol.record_batch import parse_batches
from korvet.protocol.requests import decode_response, encode_request
from korvet.protocol.schema import schema_of
from korvet.storage.interface import TopicPartition
from korvet.testing.records import Producer as ProducerFields
from korvet.testing.records import Record, batch, consumed, records_in
from korvet.testing.simulation.history import History

TOPIC = "orders"
REQUEST_LIMIT_S = 30.0
PAUSE_S = 5.0
IN_FLIGHT = 5
# Types of the keys that coordinators have.
OF_GROUP, OF_TRANSACTIONAL_ID = 0, 1
MAX_BYTES = 1 << 20
# The last versions that name topics, and have one group, key or transaction.
VERSIONS: Mapping[str, int] = {
    "Produce": 12,
    "Fetch": 12,
    "OffsetCommit": 9,
    "OffsetFetch": 7,
    "FindCoordinator": 3,
    "AddPartitionsToTxn": 3,
    "TxnOffsetCommit": 5,
}
#: The connection is lost, the broker does not answer in time, or it returned an error.
FAILURES = (OSError, trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError)


class Refused(OSError):  # noqa: N818  it is an answer
    """A response had an error code. The client connects again."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the broker answered {ErrorCode(code).name}")
        self.code: ErrorCode = ErrorCode(code)


def reason(error: Exception) -> str:
    """Return why a client connects again."""
    return str(error) or type(error).__name__


def check(code: int) -> None:
    """Raise Refused unless the code is 0."""
    if code:
        raise Refused(code)


class Stream(Protocol):
    """A client's side of a connection."""

    async def send_all(self, data: Buffer) -> None: ...

    async def receive_some(self) -> bytes: ...

    async def aclose(self) -> None: ...

    def lag(self, seconds: float) -> None:
        """Let what is sent from now on arrive that much later, also if the connection is closed before."""


class Connects(Protocol):
    """The way to the brokers."""

    async def connect(self, broker: str, client: str) -> Stream: ...

    def broker_at(self, host: str, port: int) -> str:
        """Return the name of the broker with that address."""


@define(eq=False)
class Talk:
    """A client's connection to one broker. Requests may be pipelined: their responses arrive in the same order."""

    stream: Stream
    client_id: str
    versions: Mapping[str, int] = VERSIONS
    _frames: FrameReader = field(factory=lambda: FrameReader(4 * MAX_BYTES))
    _numbers: count[int] = field(factory=count)
    _sent: deque[tuple[int, Any, int]] = field(factory=deque)

    async def send(self, request: Any) -> None:
        """Send a request in the newest version of `versions`."""
        api = APIS[schema_of(type(request)).key or 0]
        version = min(api.max_version, self.versions.get(api.name, api.max_version))
        number = next(self._numbers)
        self._sent.append((number, api.response, version))
        await self.stream.send_all(b"".join(encode_request(request, version, number, self.client_id)))

    async def receive(self) -> Any:
        """Return the response to the earliest request that has none."""
        number, response, version = self._sent.popleft()
        while (frame := self._frames.next_frame()) is None:
            data = await self.stream.receive_some()
            if not data:
                raise ConnectionResetError("the broker closed the connection")
            self._frames.receive_data(data)
        answered, message = decode_response(response, version, frame)
        assert answered == number, "responses are in the order of requests"
        return message

    async def ask(self, request: Any, limit_s: float = REQUEST_LIMIT_S) -> Any:
        """Send a request and return its response. Raises one of FAILURES."""
        with trio.fail_after(limit_s):
            await self.send(request)
            return await self.receive()


@define(eq=False)
class Client:
    """The common part of all clients."""

    name: str
    network: Connects
    history: History
    chance: Random
    brokers: tuple[str, ...]
    pause_s: float = field(default=PAUSE_S, kw_only=True)  # before a client connects again, at most

    async def connect(self, broker: str) -> Talk:
        """Connect to a broker. Raises one of FAILURES."""
        with trio.fail_after(REQUEST_LIMIT_S):
            return Talk(await self.network.connect(broker, self.name), self.name)

    async def connect_coordinator(self, key: str, key_type: int = OF_GROUP) -> Talk:
        """Connect to the coordinator of a group or a transactional id. Raises one of FAILURES."""
        talk = await self.connect(self.chance.choice(self.brokers))
        try:
            answer = await talk.ask(FindCoordinatorRequest(key=key, key_type=key_type))
            check(answer.error_code)
        finally:
            await self.close(talk)
        return await self.connect(self.network.broker_at(answer.host, answer.port))

    async def close(self, talk: Talk) -> None:
        """Close a connection, also if the client is cancelled."""
        with trio.CancelScope(shield=True):
            await talk.stream.aclose()


@frozen
class Fetched:
    """The records of a partition in a response, as offsets and values, and the offset at which the next one begins."""

    records: list[tuple[int, str]]
    end: int
    last_stable_offset: int


async def fetch(
    talk: Talk, positions: Mapping[TopicPartition, int], wait_s: float, *, is_committed: bool = False
) -> dict[TopicPartition, Fetched]:
    """Fetch partitions of one topic, only committed records if `is_committed`. Raises one of FAILURES."""
    (topic,) = {tp.topic for tp in positions}
    partitions = [
        FetchPartition(partition=tp.partition, fetch_offset=offset, partition_max_bytes=MAX_BYTES)
        for tp, offset in positions.items()
    ]
    request = FetchRequest(
        max_wait_ms=int(wait_s * 1000),
        min_bytes=1,
        isolation_level=int(is_committed),
        topics=[FetchTopic(topic=topic, partitions=partitions)],
    )
    answer = await talk.ask(request, wait_s + REQUEST_LIMIT_S)
    check(answer.error_code)
    fetched = {}
    for found in answer.responses[0].partitions:
        check(found.error_code)
        tp = TopicPartition(topic, found.partition_index)
        batches = parse_batches(b"".join(found.records or ()), truncated_end_ok=True)
        passing = consumed(batches, found.aborted_transactions or ())
        records = [(each.offset, (each.value or b"").decode()) for each in records_in(passing, positions[tp])]
        end = batches[-1].last_offset + 1 if batches else positions[tp]
        fetched[tp] = Fetched(records, end, found.last_stable_offset)
    return fetched


# --- Producers -----------------------------------------------------------------------------------------------


@define
class Batch:
    """A batch until it is acknowledged."""

    tp: TopicPartition
    sequence: int
    values: tuple[str, ...]


@define(eq=False)
class Producer(Client):
    """An idempotent producer with up to IN_FLIGHT requests under way. It sends each batch until it is acknowledged."""

    partitions: int
    between_s: float  # the mean time between two bursts of batches
    unsent: deque[Batch] = field(factory=deque)  # and those that were sent, until they are acknowledged
    is_stopping: bool = False
    _producer_id: int = -1
    _sequences: dict[TopicPartition, int] = field(factory=dict)

    async def run(self) -> None:
        """Produce until `is_stopping`, and until everything is acknowledged."""
        while not self.is_stopping or self.unsent:
            if not self.unsent:
                await trio.sleep(self.chance.expovariate(1 / self.between_s))
                self._make_batches()
            try:
                talk = await self.connect(self.chance.choice(self.brokers))
                try:
                    await self._talk(talk)
                finally:
                    await self.close(talk)
            except FAILURES as error:
                self.history.note(self.name, f"{reason(error)}")
                await trio.sleep(self.chance.random() * self.pause_s)

    async def _talk(self, talk: Talk) -> None:
        """Use a connection until all batches are acknowledged and a burst is over. Raises one of FAILURES."""
        if self._producer_id < 0:
            answer = await talk.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0))
            check(answer.error_code)
            self._producer_id = answer.producer_id
        for _ in range(self.chance.randrange(1, 30)):
            await self._send_all(talk)
            if self.is_stopping:
                break
            await trio.sleep(self.chance.expovariate(1 / self.between_s))
            self._make_batches()

    async def _send_all(self, talk: Talk) -> None:
        """Send all batches, with several requests under way."""
        sent = 0
        with trio.fail_after(REQUEST_LIMIT_S) as limit:
            while self.unsent:
                while sent < min(IN_FLIGHT, len(self.unsent)):
                    await talk.send(self._request(self.unsent[sent]))
                    sent += 1
                answer = (await talk.receive()).responses[0].partition_responses[0]
                self._check(answer.error_code)
                done = self.unsent.popleft()
                sent -= 1
                self.history.acknowledge(self.name, done.tp, answer.base_offset, done.values)
                limit.deadline = trio.current_time() + REQUEST_LIMIT_S

    def _check(self, code: int) -> None:
        if code and not error_for(code).retriable:
            self.history.fail(f"{self.name}: {ErrorCode(code).name} for {self.unsent[0]}")
        check(code)

    def _make_batches(self) -> None:
        for _ in range(self.chance.randrange(1, 8)):
            tp = TopicPartition(TOPIC, self.chance.randrange(self.partitions))
            first = self._sequences.get(tp, 0)
            self._sequences[tp] = end = first + self.chance.randrange(1, 4)
            values = tuple(f"{self.name}:{tp.partition}:{number}" for number in range(first, end))
            self.unsent.append(Batch(tp, first, values))

    def _request(self, made: Batch) -> ProduceRequest:
        records = [Record(value.encode()) for value in made.values]
        data = batch(records, producer=ProducerFields(self._producer_id, 0, made.sequence)).buffer
        partition = PartitionProduceData(index=made.tp.partition, records=[data])
        topic = TopicProduceData(name=TOPIC, partition_data=[partition])
        return ProduceRequest(acks=-1, timeout_ms=int(REQUEST_LIMIT_S * 1000), topic_data=[topic])


# --- Members of a group --------------------------------------------------------------------------------------


@define
class GroupSettings:
    """The settings that the members of a group share."""

    group: str
    partitions: int
    session_s: float
    rebalance_s: float
    heartbeat_s: float


@define(eq=False)
class Member(Client):
    """A consumer in a group. It joins, reads and commits until it is cancelled, or leaves when `is_leaving`."""

    settings: GroupSettings
    is_leaving: bool = False
    #: Processes new records and commits the offsets behind them. Returns False if they have to be read again.
    process: Callable[[Mapping[TopicPartition, Fetched]], Awaitable[bool]] | None = None
    positions: dict[TopicPartition, int] = field(factory=dict)
    _member_id: str = ""
    _generation: int = -1

    @property
    def membership(self) -> tuple[int, str]:
        """The member's generation or epoch, and its id, which fence its commits."""
        return self._generation, self._member_id

    async def run(self) -> None:
        """Be a member until `is_leaving`."""
        while not self.is_leaving:
            try:
                await self._be_member()
            except FAILURES as error:
                self.history.note(self.name, f"{reason(error)}")
                if isinstance(error, Refused):
                    self._take_refusal(error.code)
                if not isinstance(error, Refused) or error.code is not ErrorCode.REBALANCE_IN_PROGRESS:
                    await trio.sleep(self.chance.random() * self.pause_s)

    def _take_refusal(self, code: ErrorCode) -> None:
        """Forget what the coordinator has forgotten."""
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self._member_id = ""

    async def _be_member(self) -> None:
        talk = await self.connect_coordinator(self.settings.group)
        try:
            while not self.is_leaving:
                self.positions = {}
                await self._join(talk)
                await self._consume(talk)
            await self._leave(talk)
            self.history.note(self.name, "left the group")
        finally:
            self.positions = {}
            await self.close(talk)

    async def _leave(self, talk: Talk) -> None:
        member = MemberIdentity(member_id=self._member_id)
        await talk.ask(LeaveGroupRequest(group_id=self.settings.group, members=[member]))

    async def _join(self, talk: Talk) -> None:
        """Join until the member is in a generation with an assignment."""
        group = self.settings.group
        while True:
            before = self.history.generation(group)
            protocol = JoinGroupRequestProtocol(name=RANGE, metadata=subscription([TOPIC]))
            request = JoinGroupRequest(
                group_id=group,
                session_timeout_ms=int(self.settings.session_s * 1000),
                rebalance_timeout_ms=int(self.settings.rebalance_s * 1000),
                member_id=self._member_id,
                protocol_type=CONSUMER,
                protocols=[protocol],
            )
            joined = await talk.ask(request, self.settings.rebalance_s + REQUEST_LIMIT_S)
            if joined.error_code != ErrorCode.MEMBER_ID_REQUIRED:
                break
            self._member_id = joined.member_id
        check(joined.error_code)
        self._member_id, self._generation = joined.member_id, joined.generation_id
        self.history.join(self.name, group, joined.generation_id, before)
        await self._sync(talk, joined)

    async def _sync(self, talk: Talk, joined: Any) -> None:
        """Receive the assignment, and the committed offsets of its partitions."""
        group, assignments = self.settings.group, []
        if joined.leader == joined.member_id and not joined.skip_assignment:
            members = {each.member_id: [TOPIC] for each in joined.members}
            assigned = assign_ranges(members, {TOPIC: self.settings.partitions})
            assignments = [
                SyncGroupRequestAssignment(member_id=member_id, assignment=assignment_of(tps))
                for member_id, tps in assigned.items()
            ]
        request = SyncGroupRequest(
            group_id=group,
            generation_id=self._generation,
            member_id=self._member_id,
            protocol_type=CONSUMER,
            protocol_name=joined.protocol_name,
            assignments=assignments,
        )
        synced = await talk.ask(request, self.settings.rebalance_s + REQUEST_LIMIT_S)
        check(synced.error_code)
        tps = [TopicPartition(*each) for each in assigned_partitions(synced.assignment)]
        self.history.assign(f"{self.name} ({self._member_id})", group, self._generation, tps)
        self.positions = await self._committed(talk, tps)

    async def _committed(self, talk: Talk, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        if not tps:
            return {}
        group = self.settings.group
        floors = {tp: self.history.floor(group, tp) for tp in tps}
        wanted = OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[tp.partition for tp in tps])
        request = OffsetFetchRequest(group_id=group, topics=[wanted], require_stable=True)
        while True:
            answer = await talk.ask(request)
            check(answer.error_code)
            results = answer.topics[0].partitions
            if all(each.error_code != ErrorCode.UNSTABLE_OFFSET_COMMIT for each in results):
                break
            await trio.sleep(self.pause_s)
        positions = {}
        for found in results:
            check(found.error_code)
            tp = TopicPartition(TOPIC, found.partition_index)
            self.history.committed(self.name, group, tp, found.committed_offset, floors[tp])
            positions[tp] = max(found.committed_offset, 0)
        return positions

    async def _consume(self, talk: Talk) -> None:
        """Read and commit until the group rebalances. Raises one of FAILURES, also for errors of the group."""
        reading = await self.connect(self.chance.choice(self.brokers))
        try:
            beaten_s = -1.0
            while not self.is_leaving:
                if self.positions:
                    await self._fetch_and_commit(talk, reading)
                else:
                    await trio.sleep(self.settings.heartbeat_s)
                if trio.current_time() - beaten_s >= self.settings.heartbeat_s:
                    beaten_s = trio.current_time()
                    if not await self._is_stable(talk):
                        return
        finally:
            await self.close(reading)

    async def _is_stable(self, talk: Talk) -> bool:
        """Send a heartbeat. Return False if the group rebalances."""
        request = HeartbeatRequest(
            group_id=self.settings.group, generation_id=self._generation, member_id=self._member_id
        )
        code = (await talk.ask(request)).error_code
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            return False
        check(code)
        return True

    def _owned_since(self, _tp: TopicPartition) -> int:
        """Return the generation since which the member owns a partition."""
        return self._generation

    async def _fetch_and_commit(self, talk: Talk, reading: Talk) -> None:
        wait_s = self.settings.heartbeat_s * (0.5 + self.chance.random() / 2)
        fetched = await fetch(reading, self.positions, wait_s)
        for tp, found in fetched.items():
            self.history.read(self.name, tp, found.records)
        new = {tp: found for tp, found in fetched.items() if found.records}
        if not new:
            return
        if self.process is None:
            await self._commit(talk, {tp: found.end for tp, found in new.items()})
        elif not await self.process(new):
            return  # the next fetch returns the same records
        self.positions |= {tp: found.end for tp, found in new.items()}

    async def _commit(self, talk: Talk, offsets: dict[TopicPartition, int]) -> None:
        group = self.settings.group
        partitions = [
            OffsetCommitRequestPartition(
                partition_index=tp.partition, committed_offset=offset, committed_metadata=""
            )
            for tp, offset in offsets.items()
        ]
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=self._generation,
            member_id=self._member_id,
            topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=partitions)],
        )
        self.note_commit(offsets, is_known=False)
        answer = await talk.ask(request)
        results = answer.topics[0].partitions
        acknowledged = [
            TopicPartition(TOPIC, each.partition_index) for each in results if not each.error_code
        ]
        self.note_commit({tp: offsets[tp] for tp in acknowledged}, is_known=True)
        self.history.note(self.name, f"committed {len(acknowledged)} of {len(offsets)} offsets")
        for each in results:
            check(each.error_code)

    def note_commit(self, offsets: Mapping[TopicPartition, int], *, is_known: bool) -> None:
        """Record a commit that was acknowledged, or one that is about to be sent, and may happen at any time."""
        for tp, offset in offsets.items():
            self.history.commit(self.settings.group, self._owned_since(tp), tp, offset, is_known=is_known)
