"""The same Produce, Fetch and OffsetCommit requests and heartbeats to brokers that handle them in different ways.

One answers without waiting if it can. To another one, the store answers by a notification. A third one waits for
everything. See `tests.server.ways`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest
import trio
from attrs import define, evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from korvet.protocol.compression import Codec
from korvet.protocol.errors import ErrorCode
from korvet.protocol.frames import FrameReader
from korvet.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from korvet.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)
from korvet.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from korvet.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from korvet.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from korvet.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from korvet.protocol.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from korvet.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from korvet.protocol.record_batch import RecordBatch, build_batch
from korvet.protocol.requests import decode_response, encode_request
from korvet.server.connection import ServedConnection
from korvet.storage.interface import TopicPartition
from tests.handlers.quotas import set_quotas
from tests.server.ways import (
    IDS,
    NAMES,
    NOW_MS,
    SESSION_MS,
    TOPICS,
    Alter,
    Delete,
    Deny,
    Leave,
    Outcome,
    Served,
    Step,
    Way,
    outcomes,
)

WAYS = [Way.AS_SERVED, Way.NOTIFIED, Way.WAITS]
# Longer than a rebalance and a long poll, and much shorter than the session of a member.
WAIT_S = 20.0
MEMBER = f"me-{UUID(int=1)}"


def frame_of(request: object, version: int) -> bytes:
    return b"".join(encode_request(request, version, 7, "me"))


async def append(served: Served, topic: str, partition: int) -> None:
    """Append a record as another client does, if the topic exists."""
    data = build_batch([(0, NOW_MS, b"k", b"value", ())])
    tp = TopicPartition(topic, partition)
    await served.broker._storage.append({tp: RecordBatch(data)})


def batch_of(records: int = 1, **options: Any) -> bytes:
    return bytes(build_batch([(i, NOW_MS, b"k", b"value", ()) for i in range(records)], **options))


BATCHES = {
    "small": batch_of(),
    "of many records": batch_of(250),
    "idempotent": batch_of(producer_id=5, producer_epoch=0, base_sequence=0),
    "out of order": batch_of(producer_id=5, producer_epoch=0, base_sequence=7),
    "compressed": batch_of(codec=Codec.GZIP),
    "without key": bytes(build_batch([(0, NOW_MS, None, b"value", ())])),
    "old": bytes(build_batch([(0, 0, b"k", b"value", ())])),
    "transactional": batch_of(producer_id=6, producer_epoch=0, base_sequence=0, is_transactional=True),
    "damaged": batch_of()[:-1] + b"x",
    "cut": batch_of()[:-1],
    "empty": b"",
}


@define
class Produce:
    """A Produce request with batches for partitions of topics: their names, numbers and keys of BATCHES."""

    batches: Sequence[tuple[str, int, str]]
    version: int = 11
    acks: int = -1

    async def apply(self, served: Served) -> None:
        topics = [
            TopicProduceData(
                name=name,
                topic_id=IDS.get(name, UUID(int=99)),
                partition_data=[
                    PartitionProduceData(index=index, records=[BATCHES[batch]]) for _, index, batch in found
                ],
            )
            for name, found in groupby(self.batches, itemgetter(0))
        ]
        request = ProduceRequest(acks=self.acks, timeout_ms=1000, topic_data=topics)
        await served.ask(frame_of(request, self.version), WAIT_S)


@define
class Append:
    """Another client appends a record."""

    topic: str
    partition: int = 0

    async def apply(self, served: Served) -> None:
        await append(served, self.topic, self.partition)


@define
class Fetch:
    """A Fetch request. `meanwhile` is a partition to which another client appends while the request may wait."""

    topics: tuple[str, ...] = ("plain",)
    version: int = 12
    partitions: tuple[int, ...] = (0,)
    offset: int = 0
    session: str = "none"  # or "begins", or "goes on"
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 1 << 20
    isolation_level: int = 0
    epochs: tuple[int, int] = (-1, -1)
    forgets: bool = False
    replica_id: int = -1
    meanwhile: tuple[str, int] | None = None

    async def apply(self, served: Served) -> None:
        session_id, epoch = 0, -1
        if self.session == "begins":
            epoch = 0
        elif self.session == "goes on":
            session_id, epoch = served.session_id, served.session_epoch
        partitions = [
            FetchPartition(
                partition=each,
                fetch_offset=self.offset,
                partition_max_bytes=self.max_bytes,
                current_leader_epoch=self.epochs[0],
                last_fetched_epoch=self.epochs[1] if self.version >= 12 else -1,
            )
            for each in self.partitions
        ]
        topics = [
            FetchTopic(topic=each, topic_id=IDS.get(each, UUID(int=99)), partitions=partitions)
            for each in self.topics
        ]
        forgotten = [
            ForgottenTopic(topic=each.topic, topic_id=each.topic_id, partitions=[0])
            for each in topics
            if self.forgets and self.version >= 7
        ]
        is_old = self.version < 15
        request = FetchRequest(
            replica_id=self.replica_id if is_old else -1,
            replica_state=None if is_old else ReplicaState(replica_id=self.replica_id),
            max_wait_ms=self.max_wait_ms,
            min_bytes=self.min_bytes,
            max_bytes=self.max_bytes,
            isolation_level=self.isolation_level,
            session_id=session_id,
            session_epoch=epoch,
            topics=topics,
            forgotten_topics_data=forgotten,
        )
        before = len(served.transport.sent)
        if self.meanwhile is None:
            await served.ask(frame_of(request, self.version), WAIT_S)
        else:
            await served.ask(frame_of(request, self.version), self.max_wait_ms / 2000)
            await append(served, *self.meanwhile)
            await trio.sleep(WAIT_S)
        frame = served.transport.sent[before + 4 :]
        if frame and self.session != "none":
            _, response = decode_response(FetchResponse, self.version, frame)
            served.session_id = response.session_id or served.session_id
            served.session_epoch = 1 if epoch == 0 else epoch + 1


@define
class Commit:
    """An OffsetCommit request."""

    group: str = "g"
    topics: tuple[str, ...] = ("plain",)
    version: int = 8
    partitions: tuple[int, ...] = (0,)
    generation: int = -1
    member: str = ""
    instance: str | None = None
    offset: int = 3
    metadata: str | None = None

    async def apply(self, served: Served) -> None:
        partitions = [
            OffsetCommitRequestPartition(
                partition_index=each, committed_offset=self.offset, committed_metadata=self.metadata
            )
            for each in self.partitions
        ]
        topics = [
            OffsetCommitRequestTopic(name=each, topic_id=IDS.get(each, UUID(int=99)), partitions=partitions)
            for each in self.topics
        ]
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member,
            group_instance_id=self.instance if self.version >= 7 else None,
            topics=topics,
        )
        await served.ask(frame_of(request, self.version), WAIT_S)


@define
class Heartbeat:
    """A Heartbeat request."""

    group: str = "g"
    version: int = 3
    generation: int = 1
    member: str = MEMBER
    instance: str | None = None

    async def apply(self, served: Served) -> None:
        request = HeartbeatRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member,
            group_instance_id=self.instance if self.version >= 3 else None,
        )
        await served.ask(frame_of(request, self.version), WAIT_S)


@define
class Join:
    """JoinGroup and SyncGroup of the only member of a group."""

    group: str = "g"
    instance: str | None = None
    member: str = MEMBER

    async def apply(self, served: Served) -> None:
        metadata = b"\0\0\0\0\0\1\0\5plain\xff\xff\xff\xff"
        join = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=SESSION_MS,
            member_id="",
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
        )
        await served.ask(frame_of(join, 5 if self.instance else 3), WAIT_S)
        sync = SyncGroupRequest(
            group_id=self.group,
            generation_id=1,
            member_id=self.member,
            group_instance_id=self.instance,
            assignments=[SyncGroupRequestAssignment(member_id=self.member, assignment=b"")],
        )
        await served.ask(frame_of(sync, 3), WAIT_S)


@define
class ConsumerHeartbeat:
    """A ConsumerGroupHeartbeat: the member joins with epoch 0, and leaves with -1.

    It names its topics, if any, when it joins and after that.
    """

    group: str = "g"
    epoch: int = 0
    member: str = MEMBER
    topics: tuple[str, ...] | None = ("plain",)
    expression: str | None = None
    owned: tuple[int, ...] | None = None
    version: int = 1

    async def apply(self, served: Served) -> None:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member,
            member_epoch=self.epoch,
            rebalance_timeout_ms=SESSION_MS if self.epoch == 0 else -1,
            subscribed_topic_names=None if self.topics is None or self.epoch < 0 else list(self.topics),
            subscribed_topic_regex=self.expression if self.version >= 1 else None,
            topic_partitions=self._owned(),
        )
        await served.ask(frame_of(request, self.version), WAIT_S)

    def _owned(self) -> list[TopicPartitions] | None:
        if self.epoch == 0:
            return []
        if self.owned is None:
            return None
        return [TopicPartitions(topic_id=IDS["plain"], partitions=list(self.owned))]


@define
class ShareBeat:
    """A ShareGroupHeartbeat: the member joins with epoch 0, and leaves with -1."""

    group: str = "s"
    epoch: int = 0
    member: str = MEMBER
    topics: tuple[str, ...] | None = None

    async def apply(self, served: Served) -> None:
        request = ShareGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member,
            member_epoch=self.epoch,
            subscribed_topic_names=None if self.topics is None else list(self.topics),
        )
        await served.ask(frame_of(request, 1), WAIT_S)


@define
class Widen:
    """Another client adds partitions to a topic."""

    topic: str
    partitions: int

    async def apply(self, served: Served) -> None:
        topic = await served.broker.find_topic(self.topic)
        await served.broker.alter_topic(topic, partitions=self.partitions, settings={})


@define
class Wait:
    """Time passes."""

    seconds: float

    async def apply(self, served: Served) -> None:
        await trio.sleep(self.seconds)


@define
class LimitFetches:
    """Another client sets a quota in bytes per second."""

    bytes_per_second: float

    async def apply(self, served: Served) -> None:
        await set_quotas(served.broker, {"client-id": "me"}, consumer_byte_rate=self.bytes_per_second)


def everywhere(*steps: Step) -> Outcome:
    """Return the outcome of the steps, which is the same in each way, with and without traces and faults."""
    outcomes(*steps, ways=WAYS, is_wrapped=True)
    return outcomes(*steps, ways=WAYS)


topic_names = st.lists(st.sampled_from([*NAMES, "plain", "plain"]), min_size=1, max_size=2, unique=True).map(
    tuple
)
numbers = st.sampled_from([(0,), (0,), (0, 1), (1, 0), (0, 0), (2,), (-1,)])
fetches = st.builds(
    Fetch,
    topics=topic_names,
    version=st.sampled_from([4, 7, 9, 12, 13, 16]),
    partitions=numbers,
    offset=st.sampled_from([0, 0, 1, 2, 9, -1]),
    session=st.sampled_from(["none", "begins", "goes on", "goes on"]),
    max_wait_ms=st.sampled_from([500, 500, 0]),
    min_bytes=st.sampled_from([1, 1, 0, 1000]),
    max_bytes=st.sampled_from([1 << 20, 1 << 20, 1, 0, 100]),
    isolation_level=st.sampled_from([0, 0, 1, 2]),
    epochs=st.sampled_from([(-1, -1), (-1, -1), (0, -1), (0, 0), (1, -1), (0, 1)]),
    forgets=st.sampled_from([False, False, False, True]),
    replica_id=st.sampled_from([-1, -1, -1, 5]),
    meanwhile=st.none() | st.tuples(st.sampled_from(["plain", "stamped"]), st.sampled_from([0, 1])),
).map(lambda each: evolve(each, session="none") if each.version < 7 else each)
groups = st.sampled_from(["g", "g", "other", ""])
members = st.sampled_from([MEMBER, MEMBER, "", "nobody"])
commits = st.builds(
    Commit,
    group=groups,
    topics=topic_names,
    version=st.sampled_from([2, 7, 8, 9, 10]),
    partitions=numbers,
    generation=st.sampled_from([-1, -1, 0, 1, 1, 2]),
    member=members,
    instance=st.sampled_from([None, None, "i"]),
    offset=st.integers(0, 9),
    metadata=st.sampled_from([None, "", "seen", "x" * 5000]),
)
heartbeats = st.builds(
    Heartbeat,
    group=groups,
    version=st.sampled_from([0, 3, 4]),
    generation=st.sampled_from([1, 1, 1, 0, 2, -1]),
    member=members,
    instance=st.sampled_from([None, None, "i"]),
)
others = (
    st.builds(Append, st.sampled_from(["plain", "stamped"]), st.sampled_from([0, 1]))
    | st.builds(Delete, st.sampled_from(NAMES))
    | st.builds(Alter, st.sampled_from(NAMES), st.sampled_from([*TOPICS.values()]))
    | st.builds(Deny, st.lists(st.sampled_from(NAMES), max_size=3))
    | st.builds(Leave)
    | st.builds(LimitFetches, st.sampled_from([10.0, 1e9]))
    | st.builds(Join, st.sampled_from(["g", "other"]), st.sampled_from([None, "i"]))
    | st.builds(
        ConsumerHeartbeat,
        st.sampled_from(["g", "other"]),
        st.sampled_from([0, 0, 1, -1]),
        members.filter(bool),
        st.sampled_from([("plain",), ("plain", "stamped")]),
    )
)


# Of one member mostly, so that its epochs are often right.
consumer_beats = st.builds(
    ConsumerHeartbeat,
    group=st.sampled_from(["g", "g", "g", "s", ""]),
    epoch=st.sampled_from([0, 2, 2, 2, 3, 3, -1, -2]),
    member=st.sampled_from([MEMBER, MEMBER, MEMBER, "nobody", ""]),
    topics=st.sampled_from([None, None, None, (), ("plain",), ("plain", "stamped"), ("denied",)]),
    expression=st.sampled_from([None, None, None, None, "", "pl.*", "("]),
    owned=st.sampled_from([None, None, None, (), (0,)]),
    version=st.sampled_from([0, 1, 1]),
)
share_beats = st.builds(
    ShareBeat,
    group=st.sampled_from(["s", "s", "s", "g", ""]),
    epoch=st.sampled_from([0, 1, 2, 2, 2, 3, -1, -2]),
    member=st.sampled_from([MEMBER, MEMBER, MEMBER, "nobody", ""]),
    topics=st.sampled_from([None, None, None, (), ("plain",), ("plain", "stamped"), ("denied",)]),
)
joins = st.just(ConsumerHeartbeat()) | st.just(ShareBeat(topics=("plain",)))
changes = (
    st.builds(Delete, st.just("plain"))
    | st.builds(Deny, st.lists(st.sampled_from(NAMES), max_size=3))
    | st.builds(Wait, st.sampled_from([1.0, 2000.0]))
    | st.just(Join())
)


@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(joins | consumer_beats | share_beats | consumer_beats | share_beats | changes, max_size=10)
)
def test_heartbeats_have_the_same_outcome_in_each_way(steps: list[Step]) -> None:
    outcomes(*steps, ways=WAYS)


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(fetches | fetches | commits | heartbeats | others, max_size=10))
def test_requests_have_the_same_outcome_in_each_way(steps: list[Step]) -> None:
    outcomes(*steps, ways=WAYS)


@settings(max_examples=15, deadline=None)
@given(steps=st.lists(fetches | commits | heartbeats | others, max_size=6))
def test_requests_have_the_same_outcome_in_each_way_with_traces_and_faults(steps: list[Step]) -> None:
    outcomes(*steps, ways=WAYS, is_wrapped=True)


produces = st.builds(
    Produce,
    st.lists(
        st.tuples(
            st.sampled_from([*NAMES, *["plain"] * 9]),
            st.sampled_from([0, 0, 1, 1, 2, -1]),
            st.sampled_from([*BATCHES, *["small"] * 9]),
        ),
        max_size=4,
    ),
    version=st.sampled_from([3, 8, 11, 13]),
    acks=st.sampled_from([-1, -1, 1, 0, 2]),
)


@settings(max_examples=40, deadline=None)
@given(steps=st.lists(produces | produces | others, max_size=8))
def test_produces_have_the_same_outcome_in_each_way(steps: list[Step]) -> None:
    outcomes(*steps, ways=WAYS)


@pytest.mark.parametrize("count", [2, 16, 17, 40])
def test_batches_of_many_partitions_are_appended_in_each_way(count: int) -> None:
    kinds = ["small", "of many records", "compressed", "damaged"] if count == 40 else ["small"]
    batches = [("plain", index, kinds[index % len(kinds)]) for index in range(count)]
    outcome = everywhere(Widen("plain", 40), Produce(batches))

    (frame,) = frames_in(outcome)
    _, response = decode_response(ProduceResponse, 11, bytearray(frame))
    codes = [each.error_code for each in response.responses[0].partition_responses]
    assert [ErrorCode.CORRUPT_MESSAGE if kind == "damaged" else 0 for *_, kind in batches] == codes


def test_transactional_batch_refuses_all_batches_of_its_request() -> None:
    outcome = everywhere(Produce([("plain", 0, "small"), ("plain", 1, "transactional")]))

    (frame,) = frames_in(outcome)
    _, response = decode_response(ProduceResponse, 11, bytearray(frame))
    codes = [each.error_code for each in response.responses[0].partition_responses]
    assert [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED] * 2 == codes
    assert not any(outcome.records.values())


def frames_in(outcome: Outcome) -> list[bytes]:
    reader = FrameReader(10**6)
    reader.receive_data(outcome.sent)
    frames = []
    while (frame := reader.next_frame()) is not None:
        frames.append(bytes(frame))
    return frames


def fetched(frame: bytes, version: int = 12) -> list[tuple[int, int]]:
    """Return error code and bytes of each partition in a response."""
    _, response = decode_response(FetchResponse, version, bytearray(frame))
    return [
        (data.error_code, sum(map(len, data.records or ())))
        for topic in response.responses
        for data in topic.partitions
    ]


def test_record_that_is_appended_meanwhile_ends_the_wait() -> None:
    outcome = everywhere(Fetch(meanwhile=("plain", 0)), Fetch(offset=1, meanwhile=("plain", 0)))

    assert [[0], [0]] == [[code for code, _ in fetched(each)] for each in frames_in(outcome)]
    assert all(size for each in frames_in(outcome) for _, size in fetched(each))


def test_session_returns_partitions_that_have_grown() -> None:
    begins = Fetch(("plain", "stamped"), partitions=(0, 1), session="begins", max_wait_ms=0)
    goes_on = Fetch((), session="goes on")
    reads_on = Fetch(offset=1, session="goes on", meanwhile=("stamped", 1))
    outcome = everywhere(begins, Append("plain"), goes_on, reads_on, goes_on)

    sizes = [[size > 0 for _, size in fetched(each)] for each in frames_in(outcome)]
    assert [[False] * 4, [True], [True], [True]] == sizes


@pytest.mark.parametrize(
    "between, code",
    [
        (Delete("plain"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (Deny(["plain"]), ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ],
    ids=["deleted", "denied"],
)
def test_change_between_two_fetches_and_commits_applies_to_the_second(between: Step, code: ErrorCode) -> None:
    outcome = everywhere(Append("plain"), Commit(), Fetch(), Commit(), between, Fetch(), Commit())

    *_, first, _, second, commit = frames_in(outcome)
    _, committed = decode_response(OffsetCommitResponse, 8, bytearray(commit))
    assert [0, code, code] == [
        fetched(first)[0][0],
        fetched(second)[0][0],
        committed.topics[0].partitions[0].error_code,
    ]


def test_member_commits_and_beats() -> None:
    outcome = everywhere(
        Join(),
        Heartbeat(),
        Commit(generation=1, member=MEMBER),
        Commit(generation=0, member=MEMBER),
        Heartbeat(generation=0),
        Heartbeat(member="nobody"),
    )

    _, _, first, commit, old, *beats = frames_in(outcome)
    codes = [
        decode_response(OffsetCommitResponse, 8, bytearray(each))[1].topics[0].partitions[0].error_code
        for each in (commit, old)
    ]
    assert [0, ErrorCode.ILLEGAL_GENERATION] == codes
    assert [0, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID] == [
        decode_response(HeartbeatResponse, 3, bytearray(each))[1].error_code for each in (first, *beats)
    ]
    committed, _, _ = outcome.records["g"]
    assert 3 == committed[TopicPartition("plain", 0)].offset


def test_member_of_a_consumer_group_commits_with_its_epoch() -> None:
    commits = [Commit(version=9, generation=each, member=MEMBER) for each in (1, 2, 3)]
    outcome = everywhere(
        ConsumerHeartbeat(),  # the member's epoch is 2
        *commits,
        ConsumerHeartbeat(epoch=2, topics=("plain", "stamped")),  # now it is 3
        *commits,
        Commit(version=9, generation=3, member="nobody"),
        Commit(version=8, generation=3, member=MEMBER),
        Commit(version=9),
        ConsumerHeartbeat(epoch=-1),
        Commit(version=9),
    )

    frames = frames_in(outcome)
    versions = {**dict.fromkeys((1, 2, 3, 5, 6, 7, 8), 9), 9: 8, 10: 9, 12: 9}
    answers = [
        decode_response(OffsetCommitResponse, version, bytearray(frames[index]))[1]
        for index, version in versions.items()
    ]
    stale, unknown = ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID
    assert [
        *(stale, 0, stale),
        *(stale, 0, 0),
        *(unknown, ErrorCode.UNSUPPORTED_VERSION, unknown, 0),
    ] == [each.topics[0].partitions[0].error_code for each in answers]


@pytest.mark.parametrize(
    "between, expected",
    [
        ([], (2, 0)),
        ([Widen("plain", 3)], (3, 0)),
        ([Delete("plain")], (2, 0)),
        ([Leave()], (2, 0)),
        ([ConsumerHeartbeat(epoch=-1)], (0, ErrorCode.UNKNOWN_MEMBER_ID)),
        ([Wait(2000.0)], (0, ErrorCode.UNKNOWN_MEMBER_ID)),
    ],
    ids=["nothing", "wider topic", "topic deleted", "session", "left", "session over"],
)
def test_member_of_a_consumer_group_beats(between: list[Step], expected: tuple[int, int]) -> None:
    beat = ConsumerHeartbeat(epoch=2, topics=None)
    outcome = everywhere(ConsumerHeartbeat(), beat, beat, *between, beat)

    beats = [
        decode_response(ConsumerGroupHeartbeatResponse, 1, bytearray(each))[1] for each in frames_in(outcome)
    ]
    assert [(2, 0), (2, 0), expected] == [
        (each.member_epoch, each.error_code) for each in (*beats[1:3], beats[-1])
    ]


@pytest.mark.parametrize(
    "between, expected",
    [
        ([], (2, 0)),
        ([Widen("plain", 3)], (3, 0)),
        ([ShareBeat(epoch=-1)], (0, ErrorCode.UNKNOWN_MEMBER_ID)),
    ],
    ids=["nothing", "wider topic", "left"],
)
def test_member_of_a_share_group_beats(between: list[Step], expected: tuple[int, int]) -> None:
    beat = ShareBeat(epoch=2)
    outcome = everywhere(ShareBeat(topics=("plain",)), beat, beat, *between, beat)

    beats = [
        decode_response(ShareGroupHeartbeatResponse, 1, bytearray(each))[1] for each in frames_in(outcome)
    ]
    assert [(2, 0), (2, 0), expected] == [
        (each.member_epoch, each.error_code) for each in (*beats[1:3], beats[-1])
    ]


def test_requests_are_answered_without_another_task() -> None:
    steps = [
        *(Append("plain"), Join(), Fetch(), Heartbeat(), Commit(generation=1, member=MEMBER)),
        *(ConsumerHeartbeat("other"), Commit("other", version=9, generation=2, member=MEMBER)),
        *(ConsumerHeartbeat("other", epoch=2, topics=None), ShareBeat(topics=("plain",)), ShareBeat(epoch=2)),
    ]
    with patch.object(
        ServedConnection, "_serve", autospec=True, side_effect=ServedConnection._serve
    ) as serve:
        outcome = outcomes(*steps, ways=[Way.AS_SERVED])

    assert 10 == len(frames_in(outcome))
    assert ["JoinGroup", "SyncGroup", "ConsumerGroupHeartbeat", "ShareGroupHeartbeat"] == [
        each.args[1].request.api.name for each in serve.call_args_list
    ]
