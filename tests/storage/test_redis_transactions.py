"""Transactions as Redis stores them: other clients' changes, lost states, and the high watermark."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest
import redis
import trio

from korvet.protocol.errors import InvalidProducerEpoch, KafkaStorageError, OffsetOutOfRange
from korvet.storage.interface import AbortedTransaction, Marker, Storage, StorageDefaults, TopicPartition
from korvet.storage.redis.read.reader import PartitionRead, Reader
from korvet.storage.redis_streams import open_redis_storage
from korvet.testing.contract.transactions import (
    ABORT,
    COMMIT,
    Client,
    committed_in,
    committed_values,
    read_committed,
)
from korvet.testing.records import Producer, Record, append, batches_of, numbered
from tests.sentinels import scripted_sentinel, sentinel_url
from tests.servers import VALKEY, RedisServer, ServerPair, on
from tests.storage.test_redis_failover import let_catch_up, promote

pytestmark = pytest.mark.servers

TP = TopicPartition("orders", 0)
STREAM = "korvet:orders:0"
STATE, PRODUCERS = f"{{{STREAM}}}:$state", f"{{{STREAM}}}:$producers"
TRANSACTIONS, OPEN, ABORTED = (f"{{{STREAM}}}:${name}" for name in ("transactions", "open", "aborted"))
HUGE = "9" * 30
EACH_LAYOUT = pytest.mark.parametrize("layout", ["record", "batch"])
EACH_TOPIC = pytest.mark.parametrize(
    "topic_settings",
    [
        {"storage.layout": layout, "offset.mapping": mapping}
        for layout in ("record", "batch")
        for mapping in ("timestamp", "dense")
    ],
    ids=lambda settings: "-".join(settings.values()),
)


@pytest.fixture
def topic_settings() -> dict[str, str]:
    return {}


@pytest.fixture
async def storage(redis_server: RedisServer, topic_settings: dict[str, str]) -> AsyncIterator[Storage]:
    async with open_redis_storage(redis_server.url) as storage:
        await storage.create_topic("orders", 1, topic_settings)
        yield storage


async def stable_and_high(storage: Storage) -> tuple[int, int]:
    bounds = await storage.latest(TP)
    return bounds.last_stable_offset, bounds.high_watermark


async def test_transactions_are_served(storage: Storage) -> None:
    assert storage.serves_transactions


@EACH_LAYOUT
async def test_reads_at_the_last_stable_offset_request_few_entries(
    storage: Storage, client: redis.Redis, layout: str
) -> None:
    """Long polls look again after each append, however much the open transaction has."""
    await storage.create_topic("others", 1, {"storage.layout": layout})
    tp = TopicPartition("others", 0)
    producer = Client(storage, tp)
    first = await producer.send(*[b"x" * 100] * 20)
    for _ in range(99):
        await producer.send(*[b"x" * 100] * 20)
    await read_committed(storage, tp, first.base_offset)
    before = sent_by(client)
    for _ in range(10):
        assert [] == batches_of(await read_committed(storage, tp, first.base_offset))
    sent = sent_by(client) - before
    await producer.end(COMMIT)

    limit = 20 * 150 if layout == "batch" else 300
    assert sent < 10 * 16 * limit
    assert 2000 == len(await committed_values(storage, tp))


def sent_by(client: redis.Redis) -> int:
    return int(client.info("stats")["total_net_output_bytes"])


# --- Keys that other clients have changed --------------------------------------------------------------------


@pytest.mark.parametrize(
    "stored",
    [
        "",
        "nonsense",
        "1 0 -1 open here 1000000000000",
        f"1 0 -1 open {HUGE}-0 1000000000000",
        f"{HUGE} 0 -1 commit - 1000000000000",
        f"1 {HUGE} -1 commit - 1000000000000",
        f"1 0 {HUGE} commit - 1000000000000",
        "1 0 -1 odd - 1000000000000",
    ],
)
async def test_damaged_transactions_are_replaced(
    storage: Storage, client: redis.Redis, stored: str, caplog: pytest.LogCaptureFixture
) -> None:
    client.hset(TRANSACTIONS, mapping={"7": stored, "8": stored})
    producer = Client(storage, TP)
    with caplog.at_level(logging.ERROR):
        await producer.send(b"a")
        await producer.end(ABORT)
        await Client(storage, TP, producer_id=8).end(COMMIT)
        await producer.send(b"b")
        await producer.end(COMMIT)

    assert [b"b"] == await committed_values(storage, TP)
    assert [7, 8] == [each.producer_id for each in await storage.active_producers(TP)]
    assert 1 == len([each for each in caplog.records if PRODUCERS in each.message])


@pytest.mark.parametrize("key", [OPEN, ABORTED])
async def test_overwritten_key_refuses_transactions_before_they_are_written(
    storage: Storage, client: redis.Redis, key: str
) -> None:
    await append(storage, TP, numbered(1))
    producer = Client(storage, TP)
    if key == ABORTED:
        await producer.send(b"a")
    client.delete(key)
    client.set(key, "nonsense")
    length = client.xlen(STREAM)
    with pytest.raises(KafkaStorageError):
        await (producer.send(b"b") if key == OPEN else producer.end(ABORT))

    assert length == client.xlen(STREAM)
    await append(storage, TP, [Record(b"plain")])
    await storage.truncate_before(TP, (await storage.latest(TP)).high_watermark)


async def test_foreign_entries_of_the_aborted_are_ignored(storage: Storage, client: redis.Redis) -> None:
    producer = Client(storage, TP)
    await producer.send(b"a")
    client.xadd(ABORTED, {"x": "y"}, id="1-0")
    await producer.end(ABORT)
    marker = client.xrange(ABORTED)[-1][0]
    for number, fields in enumerate(
        (
            {"producer": "me", "first": "1-0", "stable": "2-0"},
            {"producer": HUGE, "first": "1-0", "stable": "2-0"},
            {"producer": "7", "first": "here", "stable": "2-0"},
        )
    ):
        client.xadd(ABORTED, fields, id=f"{int(marker.split(b'-')[0])}-{1000 + number}")

    assert [] == await committed_values(storage, TP)


# --- A state that another client has deleted ---------------------------------------------------------------


@EACH_TOPIC
async def test_transactions_are_rebuilt_with_the_state(storage: Storage, client: redis.Redis) -> None:
    aborted, open_one, committed = (Client(storage, TP, producer_id=each) for each in (7, 8, 9))
    first = await aborted.send(b"a", b"b")
    await committed.send(b"c")
    await aborted.end(ABORT)
    first_open = (await open_one.send(b"d", b"e")).base_offset
    await committed.end(COMMIT, coordinator_epoch=3)
    await append(storage, TP, numbered(1))
    before = await stable_and_high(storage)
    client.delete(STATE, TRANSACTIONS, OPEN, ABORTED)
    found = await read_committed(storage, TP, first.base_offset)

    assert (first_open, before[1]) == before == await stable_and_high(storage)
    assert [AbortedTransaction(7, first.base_offset)] == list(found.aborted)
    assert [b"c"] == await committed_values(storage, TP)
    active = {each.producer_id: each for each in await storage.active_producers(TP)}
    assert [-1, first_open, -1] == [active[each].current_txn_start_offset for each in (7, 8, 9)]
    assert 3 == active[9].coordinator_epoch

    # The number of the open transaction is not known: it goes on, and ends, under the client's.
    open_one.number = 5
    await open_one.send(b"f")
    await open_one.end(COMMIT)
    assert [b"c", b"d", b"e", b"0", b"f"] == await committed_values(storage, TP)
    stable, high = await stable_and_high(storage)
    assert stable == high


@EACH_LAYOUT
@pytest.mark.parametrize("result", [COMMIT, ABORT])
async def test_rebuilt_transaction_is_ended_by_its_marker(
    storage: Storage, client: redis.Redis, layout: str, result: int
) -> None:
    await storage.create_topic("others", 1, {"storage.layout": layout})
    tp = TopicPartition("others", 0)
    producer = Client(storage, tp, number=4, version=2)
    await producer.send(b"a")
    client.delete("{korvet:others:0}:$state")
    await producer.end(COMMIT if result == COMMIT else ABORT)

    assert ([b"a"] if result == COMMIT else []) == await committed_values(storage, tp)
    late = Client(storage, tp, number=4, version=2)
    with pytest.raises(InvalidProducerEpoch):
        await late.send(b"late")


@EACH_LAYOUT
async def test_long_streams_are_rebuilt_in_steps(storage: Storage, client: redis.Redis, layout: str) -> None:
    await storage.create_topic("others", 1, {"storage.layout": layout})
    tp = TopicPartition("others", 0)
    open_one, other = Client(storage, tp, producer_id=8), Client(storage, tp)
    first = await open_one.send(b"open")
    for number in range(1300):
        await other.send(b"%d" % number)
        await other.end(ABORT)
    client.delete("{korvet:others:0}:$state")

    assert first.base_offset == (await storage.latest(tp)).last_stable_offset
    assert 1300 == client.xlen("{korvet:others:0}:$aborted")
    await open_one.end(COMMIT)
    assert [b"open"] == await committed_values(storage, tp)


async def test_large_entries_are_rebuilt_in_more_steps(storage: Storage, client: redis.Redis) -> None:
    """A step has some milliseconds: a megabyte, as where other clients' entries are adopted."""
    await storage.create_topic("others", 1, {})
    tp = TopicPartition("others", 0)
    open_one = Client(storage, tp)
    first = await open_one.send(b"open")
    for _ in range(400):
        client.xadd("korvet:others:0", {"value": bytes(70_000)})
    client.delete("{korvet:others:0}:$state")

    def calls() -> int:
        found: int = client.info("commandstats")["cmdstat_evalsha"]["calls"]
        return found

    before = calls()
    assert first.base_offset == (await storage.latest(tp)).last_stable_offset
    assert calls() - before > 40  # 25 steps to rebuild transactions, and 25 to adopt the entries


async def test_foreign_fields_of_the_producers_are_ignored(storage: Storage, client: redis.Redis) -> None:
    await append(storage, TP, numbered(1), producer=Producer(9))
    for key in (PRODUCERS, TRANSACTIONS):
        client.hset(key, mapping={"5": "1 2 x", "6": "", "7": "1 2 3:x", HUGE: "1 2", "x": "1 2"})

    assert [9] == [each.producer_id for each in await storage.active_producers(TP)]


async def test_foreign_entries_neither_begin_nor_end_transactions(
    storage: Storage, client: redis.Redis
) -> None:
    producer = Client(storage, TP)
    first = await producer.send(b"a")
    client.xadd(STREAM, {"$control": "commit", "timestamp": "1", "$coordinator": "0", "$producer": "7:0"})
    client.xadd(STREAM, {"value": "x", "$transactional": "1", "$producer": "8:0"})

    assert first.base_offset == (await storage.latest(TP)).last_stable_offset
    await producer.end(COMMIT)
    stable, high = await stable_and_high(storage)
    assert stable == high


# --- Trimming ------------------------------------------------------------------------------------------------


async def test_aborted_transactions_are_trimmed_with_entries_that_other_clients_remove(
    storage: Storage, client: redis.Redis
) -> None:
    producer = Client(storage, TP)
    for _ in range(5):
        await producer.send(b"x")
        await producer.end(ABORT)
    end = client.xrange(STREAM)[5][0]
    client.xtrim(STREAM, minid=end, approximate=False)
    await append(storage, TP, numbered(1))

    assert 3 == client.xlen(ABORTED)
    client.delete(STREAM)
    await append(storage, TP, numbered(1))
    assert 0 == client.xlen(ABORTED)


async def test_many_aborted_transactions_are_listed_however_retention_trims_them(
    storage: Storage, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("korvet.storage.redis.read.reader.FIRST_ABORTED", 4)
    monkeypatch.setattr("korvet.storage.redis.read.reader.ABORTED_AT_ONCE", 4)
    long_one = Client(storage, TP, producer_id=8)
    await long_one.send(b"long")
    producer = Client(storage, TP)
    offsets = []
    for _ in range(30):
        offsets.append((await producer.send(b"x")).base_offset)
        await producer.end(ABORT)
    await long_one.end(COMMIT)
    found = await read_committed(storage, TP, (await storage.latest(TP)).log_start_offset)

    assert offsets == [each.first_offset for each in found.aborted]
    assert [b"long"] == await committed_values(storage, TP)


@EACH_LAYOUT
@pytest.mark.parametrize("is_compacted", [True, False])
async def test_records_removed_while_the_aborted_are_read(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, layout: str, *, is_compacted: bool
) -> None:
    """The list of aborted transactions has several replies; what is removed between them is not returned."""
    monkeypatch.setattr("korvet.storage.redis.read.reader.FIRST_ABORTED", 4)
    monkeypatch.setattr("korvet.storage.redis.read.reader.ABORTED_AT_ONCE", 4)
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "storage.layout": layout}
    await storage.create_topic("others", 1, settings)
    tp = TopicPartition("others", 0)
    long_one, producer = Client(storage, tp, producer_id=8), Client(storage, tp)
    await long_one.send_keyed(b"long", b"long")
    for _ in range(30):
        await producer.send_keyed(b"key", b"aborted")
        await producer.end(ABORT)
    await long_one.end(COMMIT)
    last = await append(storage, tp, [Record(b"last", b"last")])
    start = (await storage.latest(tp)).log_start_offset
    read_more = Reader._has_read_aborted
    removed: list[bool] = []

    async def interrupted(self: Reader, read: PartitionRead) -> bool:
        if not removed:
            removed.append(True)
            await (storage.compact(tp) if is_compacted else storage.truncate_before(tp, last.base_offset))
        return await read_more(self, read)

    monkeypatch.setattr(Reader, "_has_read_aborted", interrupted)
    if not is_compacted:
        with pytest.raises(OffsetOutOfRange):
            await read_committed(storage, tp, start)
    else:
        found = await read_committed(storage, tp, start)
        assert [b"long", b"last"] == committed_in(found, start)
    assert removed


async def test_transactions_expire_with_producers_but_not_while_they_are_open(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    defaults = StorageDefaults(producer_id_expiration_ms=1)
    async with open_redis_storage(redis_server.url, defaults=defaults) as storage:
        await storage.create_topic("orders", 1, {})
        open_one = Client(storage, TP, producer_id=5)
        await open_one.send(b"open")
        for producer_id in range(100, 400):
            producer = Client(storage, TP, producer_id=producer_id)
            await producer.send(b"x")
            await producer.end(COMMIT)

        assert 100 > client.hlen(TRANSACTIONS)
        assert client.hexists(TRANSACTIONS, "5")
        await open_one.send(b"more")
        await open_one.end(COMMIT)
        assert b"open" in await committed_values(storage, TP)


# --- min.insync.replicas -------------------------------------------------------------------------------------


@on(VALKEY)
@EACH_LAYOUT
async def test_transaction_with_an_unconfirmed_marker_is_open(replica_pair: ServerPair, layout: str) -> None:
    """A failover can lose the marker (KAFKA-5121)."""
    primary, replica = replica_pair
    async with open_redis_storage(primary.url) as storage, open_redis_storage(primary.url) as other:
        settings = {"min.insync.replicas": "2", "offset.mapping": "dense", "storage.layout": layout}
        await storage.create_topic("orders", 1, settings)
        producer, later = Client(storage, TP), Client(storage, TP, producer_id=8)
        await producer.send(b"a")
        await later.send(b"b")
        confirmed = [await stable_and_high(each) for each in (storage, other)]
        replica.pause()
        try:
            marker = await storage.write_markers({TP: marker_of(producer)}, timeout_s=0.3)
            hidden = [await stable_and_high(each) for each in (storage, other)]
            values = [await committed_values(each, TP) for each in (storage, other)]
            async with open_redis_storage(primary.url) as restarted:
                hidden.append(await stable_and_high(restarted))
        finally:
            replica.resume()
        with trio.fail_after(20):
            woken = [await committed_when_woken(each, 1) for each in (storage, other)]
        visible = [await stable_and_high(each) for each in (storage, other)]

    assert isinstance(marker[TP], Exception)
    assert [(0, 2)] * 2 == confirmed
    assert [(0, 2)] * 3 == hidden
    assert [[], []] == values
    assert [[b"a"]] * 2 == woken
    assert [(1, 3)] * 2 == visible


@on(VALKEY)
async def test_records_stay_unstable_when_a_topic_requires_replicas_later(replica_pair: ServerPair) -> None:
    primary, replica = replica_pair
    async with open_redis_storage(primary.url) as storage:
        settings = {"offset.mapping": "dense"}
        topic = await storage.create_topic("orders", 1, settings)
        producer = Client(storage, TP)
        await producer.send(b"a")
        replica.pause()
        try:
            await storage.alter_topic(topic, settings={**settings, "min.insync.replicas": "2"})
            await storage.write_markers({TP: marker_of(producer)}, timeout_s=0.3)
            found = await stable_and_high(storage)
        finally:
            replica.resume()

    assert (0, 1) == found


# --- Failover --------------------------------------------------------------------------------------------------


@on(VALKEY)
@EACH_LAYOUT
async def test_promoted_replica_without_the_marker_has_the_transaction_open(
    replica_pair: ServerPair, layout: str
) -> None:
    named = replica_pair[0].port
    async with (
        scripted_sentinel(lambda: named) as port,
        open_redis_storage(sentinel_url(port)) as storage,
    ):
        await storage.create_topic("orders", 1, {"storage.layout": layout})
        producer, aborted = Client(storage, TP, version=2), Client(storage, TP, producer_id=8)
        await aborted.send(b"aborted")
        await aborted.end(ABORT)
        first = await producer.send(b"a")
        let_catch_up(replica_pair)
        before = await producer.end(COMMIT)
        assert [b"a"] == await committed_values(storage, TP)
        named = promote(replica_pair).port
        await storage.monitor.check()

        bounds = await storage.latest(TP)
        assert bounds.last_stable_offset == first.base_offset
        assert bounds.high_watermark > before.base_offset  # offsets do not repeat
        assert [] == await committed_values(storage, TP)
        # The coordinator repeats the marker.
        again = await storage.write_markers({TP: Marker(7, 1, 0, COMMIT, 1, 2)})
        assert [b"a"] == await committed_values(storage, TP)
        async with open_redis_storage(sentinel_url(port)) as other:
            assert [b"a"] == await committed_values(other, TP)
        assert not isinstance(again[TP], Exception)
        await producer.send(b"b")
        await producer.end(COMMIT)
        assert [b"a", b"b"] == await committed_values(storage, TP)


@on(VALKEY)
async def test_confirmed_markers_survive_a_failover(replica_pair: ServerPair) -> None:
    named = replica_pair[0].port
    async with (
        scripted_sentinel(lambda: named) as port,
        open_redis_storage(sentinel_url(port)) as storage,
    ):
        await storage.create_topic("orders", 1, {"min.insync.replicas": "2", "offset.mapping": "dense"})
        producer, other = Client(storage, TP), Client(storage, TP, producer_id=8)
        await producer.send(b"a")
        await producer.end(COMMIT)
        await other.send(b"open")
        confirmed = await stable_and_high(storage)
        values = await committed_values(storage, TP)
        let_catch_up(replica_pair)
        named = promote(replica_pair).port
        await storage.monitor.check()
        async with open_redis_storage(sentinel_url(port)) as new:
            found = [await stable_and_high(each) for each in (storage, new)]
            again = [await committed_values(each, TP) for each in (storage, new)]

    assert (2, 3) == confirmed
    assert [(2, 3)] * 2 == found
    assert [[b"a"]] * 2 == again
    assert [b"a"] == values


def marker_of(producer: Client) -> Marker:
    """Return the marker that commits the producer's transaction."""
    return Marker(producer.producer_id, producer.epoch, 0, COMMIT, producer.number)


async def committed_when_woken(storage: Storage, count: int) -> list[bytes | None]:
    """Read as a long poll with `read_committed` does, until there are `count` records."""
    with storage.watch([TP]) as watch:
        while len(values := await committed_values(storage, TP)) < count:
            await watch.wait()
    return values
