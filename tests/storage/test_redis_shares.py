"""Share groups in the record layout, which are Redis consumer groups, on real servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis

from korvet.protocol.errors import (
    InvalidRecordState,
    InvalidRequest,
    KafkaError,
    NonEmptyGroup,
    UnknownTopicOrPartition,
)
from korvet.protocol.record_batch import parse_batches
from korvet.storage.interface import (
    IsolationLevel,
    Marker,
    OffsetAndMetadata,
    Storage,
    Topic,
    TopicPartition,
    TransactionNumber,
    TransactionResult,
)
from korvet.storage.redis.shares import SHARE_ACKNOWLEDGE, SHARE_ACQUIRE
from korvet.storage.redis_streams import open_redis_storage
from korvet.storage.shares import (
    Acknowledged,
    AckType,
    Acquired,
    Acquisition,
    InFlight,
    ShareLimits,
    ShareOffsets,
    SharePartitionKey,
)
from korvet.testing.records import Producer, Record, append, batch, numbered, records_in
from tests.servers import RedisServer
from tests.storage.relay import open_relay

pytestmark = pytest.mark.servers

TP = TopicPartition("jobs", 0)
STREAM = "korvet:jobs:0"
SHARES = "{korvet:jobs:0}:$shares"
LIMITS = ShareLimits(lock_ms=60_000, max_deliveries=3)
ENDED = ShareLimits(lock_ms=0, max_deliveries=3)  # every lock has ended


class Queue:
    """One partition of a topic, its share group and its members."""

    def __init__(self, storage: Storage, topic: Topic) -> None:
        self.storage = storage
        self.topic = topic
        self.key = SharePartitionKey(TP, topic.topic_id, "workers")

    async def acquire(
        self, member_id: str, most: int = 100, limits: ShareLimits = LIMITS, **others: Any
    ) -> Acquired:
        acquired = await self.storage.acquire_share(
            self.key, Acquisition(member_id, limits, most, others.pop("max_bytes", 1_000_000), **others)
        )
        assert acquired is not None
        return acquired

    async def values(self, *arguments: Any, **named: Any) -> list[str]:
        return values(await self.acquire(*arguments, **named))

    async def acknowledge(
        self, member_id: str, kind: AckType, *offsets: int, limits: ShareLimits = LIMITS
    ) -> None:
        batches = [Acknowledged(each, each, kind) for each in offsets]
        await self.storage.acknowledge_share(self.key, member_id, batches, limits)

    async def lag(self) -> int:
        found = (await self.storage.share_offsets("workers", [self.topic]))[self.key]
        assert isinstance(found, ShareOffsets)
        return found.lag


def values(acquired: Acquired) -> list[str]:
    """Return the values of acquired records, which must be all that the batches contain."""
    records = records_in(parse_batches(acquired.batches.joined()))
    assert [each.offset for each in records] == offsets(acquired)
    return [(each.value or b"").decode() for each in records]


def offsets(acquired: Acquired) -> list[int]:
    return [offset for run in acquired.runs for offset in range(run.first, run.last + 1)]


def counts(acquired: Acquired) -> list[int]:
    return [run.deliveries for run in acquired.runs for _ in range(run.size)]


@pytest.fixture(params=["dense", "timestamp"])
def mapping(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def opened(url: str, mapping: str = "dense", **settings: str) -> AsyncIterator[Queue]:
    """Open a storage with a topic whose group begins with the earliest record."""
    async with open_redis_storage(url) as storage:
        given = {"storage.layout": "record", "offset.mapping": mapping} | settings
        topic = await storage.create_topic("jobs", 1, given)
        queue = Queue(storage, topic)
        await storage.open_share(queue.key, 0)
        yield queue


@pytest.fixture
async def queue(redis_server: RedisServer, mapping: str) -> AsyncIterator[Queue]:
    async with opened(redis_server.url, mapping) as queue:
        yield queue


def pending(client: redis.Redis) -> list[tuple[str, int]]:
    """Return the consumers of pending entries, and the delivery counts."""
    found = client.xpending_range(STREAM, "workers", "-", "+", 100)
    return [(each["consumer"].decode(), each["times_delivered"]) for each in found]


def read_group(client: redis.Redis, name: str, count: int) -> list[tuple[bytes, str]]:
    """Read as a plain consumer; return IDs and values."""
    found: Any = client.xreadgroup("workers", name, {STREAM: ">"}, count=count)
    return [(each, fields[b"value"].decode()) for _, entries in found for each, fields in entries]


async def test_xpending_shows_what_members_have_acquired(queue: Queue, client: redis.Redis) -> None:
    await append(queue.storage, TP, numbered(4))

    assert ["0", "1"] == await queue.values("alice", 2)
    assert ["2", "3"] == await queue.values("bob")

    assert [("alice", 1), ("alice", 1), ("bob", 1), ("bob", 1)] == pending(client)
    assert 4 == await queue.lag()


@pytest.mark.parametrize("damaged", ["korvet:jobs:{}", "{{korvet:jobs:{}}}:$shares"])
async def test_share_partition_that_cannot_be_read_has_an_error(
    redis_server: RedisServer, client: redis.Redis, damaged: str
) -> None:
    async with open_redis_storage(redis_server.url) as storage:
        topic = await storage.create_topic("jobs", 2, {"storage.layout": "record"})
        keys = [
            SharePartitionKey(TopicPartition("jobs", number), topic.topic_id, "workers")
            for number in range(2)
        ]
        for key in keys:
            await storage.open_share(key, 0)
        client.delete(damaged.format(1))
        client.set(damaged.format(1), "by hand")
        found = await storage.share_offsets("workers", [topic])

    assert isinstance(found[keys[0]], ShareOffsets)
    assert isinstance(found[keys[1]], KafkaError)


async def test_records_in_flight_are_the_pending_entries(queue: Queue, client: redis.Redis) -> None:
    await append(queue.storage, TP, numbered(2_000))
    first = offsets(await queue.acquire("alice", 3))
    await queue.acknowledge("alice", AckType.RELEASE, first[1])
    read_group(client, "plain", 1_997)

    found = await queue.storage.share_in_flight(queue.key, LIMITS, 3)
    whole = await queue.storage.share_in_flight(queue.key, ENDED, 100)

    assert 2_000 == found.records == client.xpending(STREAM, "workers")["pending"]
    assert [(first[0], 1, "alice"), (first[1], 1, ""), (first[2], 1, "alice")] == [
        (each.first, each.records, each.member) for each in found.holdings
    ]
    last = whole.holdings[-1]
    assert ("plain", 997, 1, 0) == (last.member, last.records, last.deliveries, last.lock_ms)
    for each in found.holdings:
        assert not each.member or LIMITS.lock_ms == each.held_ms + each.lock_ms


async def test_a_group_that_others_have_destroyed_has_nothing_in_flight(
    queue: Queue, client: redis.Redis
) -> None:
    client.xgroup_destroy(STREAM, "workers")

    assert InFlight(0, []) == await queue.storage.share_in_flight(queue.key, LIMITS, 10)


async def test_plain_consumers_and_members_take_turns(queue: Queue, client: redis.Redis) -> None:
    await append(queue.storage, TP, numbered(6))

    first = await queue.acquire("alice", 2)
    plain = read_group(client, "plain", 2)
    third = await queue.acquire("alice")

    assert [["0", "1"], ["2", "3"], ["4", "5"]] == [values(first), [v for _, v in plain], values(third)]
    await queue.acknowledge("alice", AckType.ACCEPT, *offsets(first), *offsets(third))
    client.xack(STREAM, "workers", *[each for each, _ in plain])
    assert [] == pending(client)
    assert 0 == await queue.lag()
    assert [] == await queue.values("alice", limits=ENDED)


async def test_records_of_xadd_are_acquired(queue: Queue, client: redis.Redis) -> None:
    client.xadd(
        STREAM, {"value": "by hand"}, id="*" if queue.topic.config.mapping.value == "timestamp" else "1-0"
    )

    assert ["by hand"] == await queue.values("alice")


@pytest.mark.parametrize("limits", [LIMITS, ENDED], ids=["new", "pending"])
async def test_entries_whose_ids_have_no_offset_are_finished(
    queue: Queue, client: redis.Redis, limits: ShareLimits
) -> None:
    await append(queue.storage, TP, numbered(2))
    if limits is ENDED:
        read_group(client, "plain", 2)
    last_ms = client.xrevrange(STREAM, count=1)[0][0].partition(b"-")[0].decode()
    client.xadd(STREAM, {"value": "without an offset"}, id=f"{last_ms}-{2**40}")
    await append(queue.storage, TP, numbered(1, first=2))
    if limits is ENDED:
        read_group(client, "plain", 2)

    assert ["0", "1", "2"] == await queue.values("alice", limits=limits)
    assert 3 == client.xpending(STREAM, "workers")["pending"]


async def test_accepted_and_rejected_records_are_finished(queue: Queue, client: redis.Redis) -> None:
    await append(queue.storage, TP, numbered(3))
    found = offsets(await queue.acquire("alice"))

    await queue.acknowledge("alice", AckType.ACCEPT, found[1])
    await queue.acknowledge("alice", AckType.REJECT, found[2])

    assert [("alice", 1)] == pending(client)
    assert {queue.key: ShareOffsets(found[0], 1)} == await queue.storage.share_offsets(
        "workers", [queue.topic]
    )
    assert [] == await queue.values("bob")


async def test_released_records_keep_their_counts_up_to_the_limit(queue: Queue, client: redis.Redis) -> None:
    await append(queue.storage, TP, numbered(2))
    for count in (1, 2):
        acquired = await queue.acquire("alice")
        assert [count, count] == counts(acquired)
        await queue.acknowledge("alice", AckType.RELEASE, *offsets(acquired))
        assert [("$released", count)] * 2 == pending(client)
    for left in (1, 0):  # each last attempt is made alone
        acquired = await queue.acquire("alice")
        assert [3] == counts(acquired)
        await queue.acknowledge("alice", AckType.RELEASE, *offsets(acquired))
        assert [("$released", 2)] * left == pending(client)

    assert [] == await queue.values("bob")


async def test_attempts_near_the_limit_are_made_with_fewer_and_fewer_records(queue: Queue) -> None:
    limits = ShareLimits(lock_ms=60_000, max_deliveries=6)
    await append(queue.storage, TP, numbered(16))
    sizes = []
    for _ in range(6):
        acquired = await queue.acquire("alice", 16, limits)
        sizes.append(len(counts(acquired)))
        await queue.acknowledge("alice", AckType.RELEASE, *offsets(acquired), limits=limits)

    assert [16, 16, 16, 8, 4, 1] == sizes


async def test_released_records_above_a_lowered_limit_come_once_more_and_alone(
    queue: Queue, client: redis.Redis
) -> None:
    lowered = ShareLimits(lock_ms=60_000, max_deliveries=2)
    await append(queue.storage, TP, numbered(2))
    for _ in range(2):
        acquired = await queue.acquire("alice")
        await queue.acknowledge("alice", AckType.RELEASE, *offsets(acquired))

    for left in (1, 0):
        acquired = await queue.acquire("alice", 16, lowered)
        assert [3] == counts(acquired)
        await queue.acknowledge("alice", AckType.RELEASE, *offsets(acquired), limits=lowered)
        assert [("$released", 2)] * left == pending(client)


async def test_plain_consumers_claim_released_records_at_once(queue: Queue, client: redis.Redis) -> None:
    await append(queue.storage, TP, numbered(1))
    acquired = await queue.acquire("alice")
    await queue.acknowledge("alice", AckType.RELEASE, *offsets(acquired))

    _, entries, *_ = client.xautoclaim(STREAM, "workers", "plain", min_idle_time=LIMITS.lock_ms)

    assert [b"0"] == [fields[b"value"] for _, fields in entries]
    assert [("plain", 2)] == pending(client)
    assert [] == await queue.values("bob")


async def test_records_whose_lock_has_ended_go_to_another_member(queue: Queue, client: redis.Redis) -> None:
    await append(queue.storage, TP, numbered(2))
    found = offsets(await queue.acquire("alice"))
    read_group(client, "plain", 2)

    again = await queue.acquire("bob", 1, limits=ENDED)

    assert ([found[0]], [2]) == (offsets(again), counts(again))
    assert [("bob", 2), ("alice", 1)] == pending(client)
    for limits in (LIMITS, ENDED):
        with pytest.raises(InvalidRecordState):
            await queue.acknowledge("alice", AckType.ACCEPT, *found, limits=limits)


async def test_renewing_restarts_the_lock(queue: Queue, client: redis.Redis) -> None:
    await append(queue.storage, TP, numbered(1))
    found = offsets(await queue.acquire("alice"))
    (entry,) = client.xpending_range(STREAM, "workers", "-", "+", 1)
    client.xclaim(STREAM, "workers", "alice", 0, [entry["message_id"]], idle=50_000, justid=True)

    await queue.acknowledge("alice", AckType.RENEW, *found)

    (entry,) = client.xpending_range(STREAM, "workers", "-", "+", 1)
    assert int(entry["time_since_delivered"]) < 40_000
    assert ("alice", 1) == (entry["consumer"].decode(), entry["times_delivered"])
    with pytest.raises(InvalidRecordState):
        await queue.acknowledge("alice", AckType.RENEW, *found, limits=ShareLimits(can_renew=False))


async def test_acknowledgements_are_all_or_none(queue: Queue, client: redis.Redis) -> None:
    await append(queue.storage, TP, numbered(4))
    found = offsets(await queue.acquire("alice", 3))
    await queue.acquire("bob", 1)
    await queue.acknowledge("alice", AckType.ACCEPT, found[1])

    for each in ([found[0], found[1]], [found[0], found[2] + 1]):
        with pytest.raises(InvalidRecordState):
            await queue.acknowledge("alice", AckType.ACCEPT, *each)
    for last in (found[2] + 10_000_000_000, 2**63 - 1):
        with pytest.raises(InvalidRequest):
            await queue.storage.acknowledge_share(
                queue.key, "alice", [Acknowledged(found[0], last, AckType.ACCEPT)], LIMITS
            )

    assert [("alice", 1), ("alice", 1), ("bob", 1)] == pending(client)


async def test_records_below_the_start_offset_are_acknowledged_again(queue: Queue) -> None:
    await append(queue.storage, TP, numbered(3))
    found = offsets(await queue.acquire("alice"))
    await queue.acknowledge("alice", AckType.ACCEPT, found[0], found[1])

    await queue.acknowledge("alice", AckType.ACCEPT, *found)


async def test_limits_of_records_bytes_and_locks(queue: Queue) -> None:
    await append(queue.storage, TP, [Record(b"x" * 1000) for _ in range(20)])

    assert 1 == len(offsets(await queue.acquire("alice", max_bytes=1)))
    assert 3 == len(offsets(await queue.acquire("alice", max_bytes=3000)))
    assert 6 == len(offsets(await queue.acquire("alice", limits=ShareLimits(max_locks=10))))
    assert [] == offsets(await queue.acquire("alice", limits=ShareLimits(max_locks=10)))
    assert [] == offsets(await queue.acquire("alice", min_bytes=100_000))
    assert 10 == len(offsets(await queue.acquire("alice", min_bytes=5000)))


async def test_a_session_that_ends_releases_its_records(queue: Queue, client: redis.Redis) -> None:
    await append(queue.storage, TP, numbered(3))
    found = offsets(await queue.acquire("alice"))
    await queue.acknowledge("alice", AckType.ACCEPT, found[1])

    await queue.storage.release_share(queue.key, "alice", LIMITS)

    assert [("$released", 1)] * 2 == pending(client)
    assert {"$released"} == {each["name"].decode() for each in client.xinfo_consumers(STREAM, "workers")}
    assert [b"group:workers"] == client.hkeys(SHARES)
    assert ["0", "2"] == await queue.values("bob")


async def test_deleted_and_trimmed_records_are_finished(queue: Queue, client: redis.Redis) -> None:
    await append(queue.storage, TP, numbered(5))
    found = offsets(await queue.acquire("alice"))
    client.xdel(STREAM, client.xrange(STREAM)[3][0])
    await queue.storage.truncate_before(TP, found[2])

    assert ["2", "4"] == await queue.values("bob", limits=ENDED)
    assert 2 == len(pending(client))
    assert 2 == await queue.lag()


async def test_markers_and_aborted_records_are_not_delivered(queue: Queue, client: redis.Redis) -> None:
    storage = queue.storage
    committed = IsolationLevel.READ_COMMITTED

    async def begin(number: int, value: bytes) -> None:
        sent = batch([Record(value)], producer=Producer(9, sequence=number - 1), is_transactional=True)
        assert not isinstance(
            (await storage.append({TP: sent}, transactions={TP: TransactionNumber(1, number)}))[TP],
            KafkaError,
        )

    async def end(number: int, result: TransactionResult) -> None:
        await storage.write_markers({TP: Marker(9, 0, 0, result, number)})

    await begin(1, b"aborted")
    await append(storage, TP, [Record(b"plain")])
    assert [] == await queue.values("alice", isolation_level=committed)
    await end(1, TransactionResult.ABORT)
    await begin(2, b"kept")
    await end(2, TransactionResult.COMMIT)
    await begin(3, b"open")

    assert ["plain", "kept"] == await queue.values("alice", isolation_level=committed)
    assert [("alice", 1)] * 2 == pending(client)
    assert ["open"] == await queue.values("bob")


async def test_a_delayed_commit_does_not_move_a_share_group(queue: Queue) -> None:
    await append(queue.storage, TP, numbered(4))
    found = offsets(await queue.acquire("alice", 2))

    await queue.storage.ack("workers", {TP: OffsetAndMetadata(found[1] + 2)})

    assert 2 == len(offsets(await queue.acquire("bob")))
    assert 4 == await queue.lag()


async def test_a_group_of_plain_consumers_is_adopted(redis_server: RedisServer, client: redis.Redis) -> None:
    async with opened(redis_server.url) as queue:
        await queue.storage.forget_shares("workers", [queue.topic])
        await append(queue.storage, TP, numbered(4))
        client.xgroup_create(STREAM, "workers", 0)
        read_group(client, "plain", 1)
        assert {} == await queue.storage.share_offsets("workers", [queue.topic])
        assert None is await queue.storage.acquire_share(queue.key, Acquisition("a", LIMITS, 1, 1))
        await queue.storage.open_share(queue.key, 3)

        assert ["1", "2", "3"] == await queue.values("alice")
        assert ("plain", 1) == pending(client)[0]


async def test_a_destroyed_group_begins_again(queue: Queue, client: redis.Redis) -> None:
    await append(queue.storage, TP, numbered(2))
    client.xgroup_destroy(STREAM, "workers")

    assert None is await queue.storage.acquire_share(queue.key, Acquisition("a", LIMITS, 1, 1))
    with pytest.raises(InvalidRecordState):
        await queue.acknowledge("alice", AckType.ACCEPT, 0)
    await queue.storage.release_share(queue.key, "alice", LIMITS)
    await queue.storage.open_share(queue.key, 0)

    assert ["0", "1"] == await queue.values("alice")


async def test_resetting_forgets_records_in_flight(queue: Queue, client: redis.Redis) -> None:
    await append(queue.storage, TP, numbered(4))
    found = offsets(await queue.acquire("alice"))

    await queue.storage.reset_share(queue.key, found[2], LIMITS)

    assert 2 == await queue.lag()
    read_group(client, "plain", 1)
    with pytest.raises(NonEmptyGroup):
        await queue.storage.reset_share(queue.key, 0, LIMITS)
    assert ["3"] == await queue.values("bob")


async def test_deleting_offsets_destroys_the_redis_group(queue: Queue, client: redis.Redis) -> None:
    await append(queue.storage, TP, numbered(1))
    await queue.acquire("alice")

    await queue.storage.forget_shares("workers", [queue.topic])

    assert [] == client.xinfo_groups(STREAM)
    assert not client.exists(SHARES)


async def test_a_topic_that_is_created_again_has_no_state(queue: Queue, client: redis.Redis) -> None:
    await append(queue.storage, TP, numbered(1))
    await queue.acquire("alice")
    await queue.storage.delete_topic(queue.topic)
    assert not client.exists(SHARES)
    again = await queue.storage.create_topic("jobs", 1, {"storage.layout": "record"})

    for call in (
        queue.storage.acquire_share(queue.key, Acquisition("alice", LIMITS, 1, 1)),
        queue.acknowledge("alice", AckType.ACCEPT, 0),
        queue.storage.open_share(queue.key, 0),
    ):
        with pytest.raises(UnknownTopicOrPartition):
            await call
    assert {} == await queue.storage.share_offsets("workers", [again])


async def test_compaction_keeps_what_is_in_flight(redis_server: RedisServer, client: redis.Redis) -> None:
    compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    async with opened(redis_server.url, **compacted) as queue:
        await append(queue.storage, TP, [Record(b"%d" % n, b"key%d" % (n % 3)) for n in range(6)])
        found = offsets(await queue.acquire("alice", 5))
        await queue.acknowledge("alice", AckType.RELEASE, found[4])

        await queue.storage.compact(TP)

        assert [("alice", 1), ("$released", 1)] == pending(client)
        assert ["4", "5"] == await queue.values("bob")
        await queue.acknowledge("alice", AckType.ACCEPT, *found[:4])
        assert 2 == await queue.lag()


async def test_a_full_redis_still_delivers(redis_server: RedisServer, client: redis.Redis) -> None:
    async with opened(redis_server.url) as queue:
        await append(queue.storage, TP, numbered(3))
        client.config_set("maxmemory", 1)
        try:
            found = offsets(await queue.acquire("alice"))
            await queue.acknowledge("alice", AckType.ACCEPT, found[0])
            await queue.acknowledge("alice", AckType.RELEASE, found[1])
            again = offsets(await queue.acquire("bob"))
            await queue.storage.release_share(queue.key, "alice", LIMITS)
        finally:
            client.config_set("maxmemory", 0)

        assert found[1:2] == again
        assert [("bob", 2), ("$released", 1)] == pending(client)


async def test_calls_whose_answers_are_lost_are_executed_once(
    redis_server: RedisServer, client: redis.Redis, mapping: str
) -> None:
    async with open_relay(redis_server) as relay, opened(relay.url, mapping) as queue:
        await append(queue.storage, TP, numbered(3))
        await queue.storage.acquire_share(queue.key, Acquisition("warm", LIMITS, 1, 1))
        await queue.storage.release_share(queue.key, "warm", LIMITS)

        relay.lose_reply(SHARE_ACQUIRE.sha)
        acquired = await queue.acquire("alice", 2)
        assert (["0", "1"], [2, 1]) == (values(acquired), counts(acquired))
        relay.lose_reply(SHARE_ACKNOWLEDGE.sha)
        await queue.acknowledge("alice", AckType.RELEASE, *offsets(acquired)[:1])

        assert [("$released", 2), ("alice", 1)] == pending(client)


async def test_call_whose_answer_is_lost_returns_only_its_own_records(
    redis_server: RedisServer, client: redis.Redis, mapping: str
) -> None:
    async with open_relay(redis_server) as relay, opened(relay.url, mapping) as queue:
        await append(queue.storage, TP, numbered(6))
        first = offsets(await queue.acquire("alice", 4))
        for released in (first[0], first[2]):
            await queue.acknowledge("alice", AckType.RELEASE, released)

        relay.lose_reply(SHARE_ACQUIRE.sha)
        acquired = await queue.acquire("alice", 4)

        assert (["0", "2", "4", "5"], [2, 2, 1, 1]) == (values(acquired), counts(acquired))
        assert [("alice", 2), ("alice", 1), ("alice", 2), *[("alice", 1)] * 3] == pending(client)
