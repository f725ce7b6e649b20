"""Compaction as a user of Redis sees it: streams, groups and keys, before, after, and with other clients' commands."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import redis
import trio

from korvet.concurrency.time_slices import run_in_slices
from korvet.protocol.errors import KafkaStorageError, UnknownTopicOrPartition
from korvet.storage.interface import (
    LogOffsets,
    OffsetAndMetadata,
    Storage,
    StorageDefaults,
    Topic,
    TopicPartition,
)
from korvet.storage.redis.client.connection import Script
from korvet.storage.redis.client.replies import Argument
from korvet.storage.redis.compaction import compactor as redis_compaction
from korvet.storage.redis.compaction.compactor import Compactor, Run
from korvet.storage.redis.compaction.groups import CopiedGroups
from korvet.storage.redis.scripts import COMPACT_FINISH, COMPACT_GROUPS
from korvet.storage.redis_streams import open_redis_storage
from korvet.testing.contract.compaction import keyed, latest_of
from korvet.testing.records import Record, append, numbered, records_from
from tests.servers import RedisServer

pytestmark = pytest.mark.servers

ROOT = Path(__file__).parents[2]
TP = TopicPartition("orders", 0)
KEY = "korvet:orders:0"
STATE = f"{{{KEY}}}:$state"
INDEX = f"{{{KEY}}}:$index"
YEAR_2100 = 4_102_444_800_000


@pytest.fixture
async def storage(redis_server: RedisServer) -> AsyncIterator[Storage]:
    defaults = StorageDefaults(retention_check_interval_ms=0)
    async with open_redis_storage(redis_server.url, defaults=defaults) as storage:
        yield storage


@pytest.fixture(params=["record", "batch"])
async def topic(storage: Storage, request: pytest.FixtureRequest) -> Topic:
    return await create(storage, request.param)


async def create(storage: Storage, layout: str, **settings: str) -> Topic:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    return await storage.create_topic(
        "orders",
        1,
        {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "storage.layout": layout, **given},
    )


async def fill(storage: Storage, batches: int = 30, keys: int = 10) -> None:
    for number in range(batches):
        await append(storage, TP, keyed(range(keys), b"%d" % number))


def leftovers(client: redis.Redis) -> list[bytes]:
    return [key for key in client.scan_iter() if b"$compacted" in key]


@pytest.fixture
def after_step(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], Awaitable[object]]], None]:
    """`after_step(n, do)`: once the n-th script of a compaction was answered, before the next is sent."""
    monkeypatch.setattr(redis_compaction, "STEP_ENTRIES", 20)

    def interfere(number: int, do: Callable[[], Awaitable[object]]) -> None:
        steps = 0
        call = Compactor._call

        async def counted(self: Compactor, run: Run, script: Script, *own: Argument) -> Any:
            nonlocal steps
            answer = await call(self, run, script, *own)
            steps += 1
            if steps == number:
                await do()
            return answer

        monkeypatch.setattr(Compactor, "_call", counted)

    return interfere


# --- What is left -------------------------------------------------------------------------------------------


async def test_compacted_stream_uses_little_memory(
    storage: Storage, topic: Topic, client: redis.Redis
) -> None:
    await fill(storage, 100, 50)
    before: Any = client.memory_usage(KEY, samples=0)
    await storage.compact(TP)
    after: Any = client.memory_usage(KEY, samples=0)

    assert after < before / 10
    assert (50 if topic.settings["storage.layout"] == "record" else 1) == client.xlen(KEY)
    assert [] == leftovers(client)


async def test_compaction_keeps_the_last_generated_id(
    storage: Storage, topic: Topic, client: redis.Redis
) -> None:
    await fill(storage)
    before = client.xinfo_stream(KEY)["last-generated-id"]
    await storage.compact(TP)
    after = client.xinfo_stream(KEY)

    assert 1 == topic.partitions
    assert before == after["last-generated-id"]
    assert client.hget(STATE, "entries") == str(after.get("entries-added", after["length"])).encode()


async def test_state_and_index_match_the_stream_after_compaction(
    storage: Storage, topic: Topic, client: redis.Redis
) -> None:
    assert 1 == topic.partitions
    for number in range(40):
        await append(
            storage, TP, [Record(b"%d" % number * 3000, b"%d" % (key + number)) for key in range(10)]
        )
        if number % 13 == 12:
            check_state(client)
            await storage.compact(TP)
            check_state(client)
    await append(storage, TP, keyed(range(60), b"x" * 5000))
    check_state(client)


def check_state(client: redis.Redis) -> None:
    """Assert that the state has the stream's length and bytes, and that index entries count up to their IDs."""
    ids, contents = zip(*client.xrange(KEY), strict=True)
    state = client.hgetall(STATE)
    sizes = [sum(map(len, (*fields, *fields.values()))) for fields in contents]
    gone = int(state[b"trimmed"])

    assert int(state[b"length"]) == len(ids)
    assert int(state[b"bytes"]) - gone == sum(sizes)
    assert int(state[b"largest"]) >= max(sizes)
    for piece_id, piece in client.xrange(INDEX):
        covered = [size for each, size in zip(ids, sizes, strict=True) if id_of(each) <= id_of(piece_id)]
        assert int(piece[b"bytes"]) - gone == sum(covered)
        assert int(piece[b"entries"]) == len(covered)


def id_of(entry_id: bytes) -> tuple[int, ...]:
    return tuple(map(int, entry_id.split(b"-")))


# --- Groups -------------------------------------------------------------------------------------------------


async def test_groups_keep_offsets_consumers_and_pending_entries(
    storage: Storage, redis_server: RedisServer, client: redis.Redis
) -> None:
    await create(storage, "record")
    await fill(storage, 3, 5)
    ids = [entry_id for entry_id, _ in client.xrange(KEY)]
    client.xgroup_create(KEY, "plain", 0)
    client.xgroup_createconsumer(KEY, "plain", "idle")
    client.xreadgroup("plain", "alice", {KEY: ">"}, count=6)
    client.xreadgroup("plain", "bob", {KEY: ">"}, count=7)
    client.xclaim(KEY, "plain", "alice", 0, [ids[11]], idle=86_400_000, retrycount=5)
    client.xack(KEY, "plain", ids[12])
    await storage.ack("billing", {TP: OffsetAndMetadata((await storage.latest(TP)).high_watermark - 2)})
    await storage.compact(TP)

    groups = {group["name"]: group for group in client.xinfo_groups(KEY)}
    consumers = {each["name"]: each["pending"] for each in client.xinfo_consumers(KEY, "plain")}
    pending: dict[bytes, Any] = {
        each["message_id"]: each for each in client.xpending_range(KEY, "plain", "-", "+", 100)
    }
    assert ids[10:] == [entry_id for entry_id, _ in client.xrange(KEY)]
    assert {b"idle": 0, b"alice": 1, b"bob": 1} == consumers
    assert [ids[10], ids[11]] == list(pending)
    assert (b"bob", 1) == (pending[ids[10]]["consumer"], pending[ids[10]]["times_delivered"])
    assert (b"alice", 5) == (pending[ids[11]]["consumer"], pending[ids[11]]["times_delivered"])
    assert 86_400_000 <= pending[ids[11]]["time_since_delivered"] < 86_500_000
    assert (ids[12], ids[12]) == (
        groups[b"plain"]["last-delivered-id"],
        groups[b"billing"]["last-delivered-id"],
    )
    if redis_server.kind.id != "redis-6.2":
        assert [(3, 2)] * 2 == [(each["entries-read"], each["lag"]) for each in groups.values()]


async def test_pending_entries_of_few_remaining_entries_are_kept(
    storage: Storage, topic: Topic, client: redis.Redis
) -> None:
    """Then the entries are searched instead of the pending entries list."""
    assert 1 == topic.partitions
    await fill(storage, 60, 5)
    client.xgroup_create(KEY, "plain", 0)
    while client.xreadgroup("plain", "alice", {KEY: ">"}):
        pass
    ids = [entry_id for entry_id, _ in client.xrange(KEY)]
    client.xclaim(KEY, "plain", "bob", 0, [ids[-1]], idle=86_400_000, retrycount=5)
    await storage.compact(TP)
    left = [entry_id for entry_id, _ in client.xrange(KEY)]
    pending: list[Any] = client.xpending_range(KEY, "plain", "-", "+", 100)

    assert left == [each["message_id"] for each in pending]
    assert (b"bob", 5) == (pending[-1]["consumer"], pending[-1]["times_delivered"])


async def test_too_many_pending_entries_are_reported_and_nothing_is_compacted(
    storage: Storage, client: redis.Redis
) -> None:
    await create(storage, "record")
    for first in range(0, 5_500, 500):
        await append(storage, TP, keyed(range(first, first + 500), b""))
    await append(storage, TP, keyed([1], b"again"))
    client.xgroup_create(KEY, "plain", 0)
    while client.xreadgroup("plain", "alice", {KEY: ">"}, count=5000):
        pass
    with pytest.raises(KafkaStorageError, match="5,501 of its entries are pending in Redis groups"):
        await storage.compact(TP)
    assert [] == leftovers(client)
    assert 5_501 == client.xlen(KEY)
    assert 5_501 == client.xpending(KEY, "plain")["pending"]

    client.xgroup_destroy(KEY, "plain")
    await storage.compact(TP)
    assert 5_500 == client.xlen(KEY)


async def test_plain_redis_consumers_continue_where_they_were(
    storage: Storage, topic: Topic, client: redis.Redis
) -> None:
    assert 1 == topic.partitions
    client.xgroup_create(KEY, "plain", 0, mkstream=True)
    await fill(storage, 3)
    read: Any = client.xreadgroup("plain", "alice", {KEY: ">"}, count=2)
    last_read, _ = read[0][1][-1]
    await storage.compact(TP)
    await append(storage, TP, numbered(1))
    rest: Any = client.xreadgroup("plain", "alice", {KEY: ">"})
    left = [entry_id for entry_id, _ in client.xrange(KEY) if id_of(entry_id) > id_of(last_read)]

    assert len(left) >= 2
    assert left == [entry_id for entry_id, _ in rest[0][1]]


async def test_blocked_redis_consumers_are_not_interrupted(
    storage: Storage, topic: Topic, redis_server: RedisServer, client: redis.Redis
) -> None:
    assert 1 == topic.partitions
    await fill(storage, 3)
    client.xgroup_create(KEY, "plain", "$")
    answers: list[Any] = []

    def block() -> None:
        with redis_server.client() as blocking:
            answers.append(blocking.xreadgroup("plain", "alice", {KEY: ">"}, block=10_000))

    def block_without_group() -> None:
        with redis_server.client() as blocking:
            answers.append(blocking.xread({KEY: "$"}, block=10_000))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, block)
        nursery.start_soon(trio.to_thread.run_sync, block_without_group)
        with trio.fail_after(5):
            # Ours, for the catalogue, is the third.
            while client.info("clients")["blocked_clients"] < 3:  # noqa: ASYNC110  another process's doing
                await trio.sleep(0.01)
        await storage.compact(TP)
        await append(storage, TP, [Record(b"new", b"new")])

    last = client.xrevrange(KEY, count=1)[0][0]
    assert [[last], [last]] == [[entry_id for entry_id, _ in answer[0][1]] for answer in answers]


# --- By hand ------------------------------------------------------------------------------------------------


async def test_manually_added_entries_are_compacted_by_key(
    storage: Storage, topic: Topic, client: redis.Redis
) -> None:
    assert 1 == topic.partitions
    await append(storage, TP, [Record(b"old", b"a"), Record(b"old", b"b")])
    client.xadd(KEY, {"key": "a", "name": "bob"})
    client.xadd(KEY, {"name": "nobody"})
    client.xadd(KEY, {"key": "b"})
    client.xadd(KEY, {"name": "nobody"})
    await storage.compact(TP)
    found = [(record.key, record.value) for record in await records_from(storage, TP)]

    nobody = (None, b'{"name":"nobody"}')
    assert [(b"a", b'{"name":"bob"}'), nobody, (b"b", None), nobody] == found


@pytest.mark.parametrize("mapping", ["timestamp", "dense"])
@pytest.mark.parametrize("layout", ["record", "batch"])
async def test_entries_without_offset_are_kept(
    storage: Storage, layout: str, mapping: str, client: redis.Redis
) -> None:
    await create(storage, layout, offset_mapping=mapping)
    await append(storage, TP, [Record(b"1", b"a")])
    last = client.xrevrange(KEY, count=1)[0][0].decode()
    hidden = f"{last.split('-')[0]}-5000"
    client.xadd(KEY, {"key": "a", "value": "hidden", "timestamp": "1"}, id=hidden)
    await append(storage, TP, [Record(b"2", b"b"), Record(b"3", b"b")])
    await storage.compact(TP)

    assert [b"1", b"3"] == [record.value for record in await records_from(storage, TP)]
    assert hidden.encode() in [entry_id for entry_id, _ in client.xrange(KEY)]


async def test_entries_deleted_during_compaction_are_not_restored(
    storage: Storage, client: redis.Redis, after_step: Any
) -> None:
    await create(storage, "record")
    await fill(storage, 10, 30)
    removed = client.xrevrange(KEY, count=3)[2][0]

    async def remove() -> None:
        client.xdel(KEY, removed)

    after_step(2, remove)
    with pytest.raises(KafkaStorageError, match="entries were removed by hand"):
        await storage.compact(TP)
    assert 299 == client.xlen(KEY)
    assert [] == leftovers(client)

    await storage.compact(TP)
    assert 30 == client.xlen(KEY)  # one key's last record is the one before now
    assert removed not in [entry_id for entry_id, _ in client.xrange(KEY)]


async def test_entry_too_large_to_copy_is_reported_and_nothing_is_compacted(
    storage: Storage, topic: Topic, client: redis.Redis
) -> None:
    assert 1 == topic.partitions
    await fill(storage, 3)
    before = client.xlen(KEY)
    large = client.xadd(KEY, {f"field-{number}": "x" for number in range(4000)})
    with pytest.raises(KafkaStorageError, match=f"entry {large.decode()} has more fields"):
        await storage.compact(TP)

    assert before + 1 == client.xlen(KEY)
    assert [] == leftovers(client)


# --- What happens meanwhile -----------------------------------------------------------------------------------


async def test_records_trimmed_during_compaction_are_not_restored(
    storage: Storage, topic: Topic, client: redis.Redis, after_step: Any
) -> None:
    assert 1 == topic.partitions
    await fill(storage, 10, 30)
    bounds = await storage.latest(TP)
    expected = [
        record for record in await records_from(storage, TP) if record.offset >= bounds.high_watermark - 5
    ]

    async def trim() -> None:
        await storage.truncate_before(TP, bounds.high_watermark - 5)

    after_step(2, trim)
    await storage.compact(TP)
    start = bounds.high_watermark - 5

    assert LogOffsets(start, bounds.high_watermark, bounds.high_watermark) == await storage.latest(TP)
    assert expected == await records_from(storage, TP, start)
    assert client.hget(STATE, "length") == str(client.xlen(KEY)).encode()


async def test_log_truncated_to_its_end_during_compaction_stays_empty(
    storage: Storage, topic: Topic, client: redis.Redis, after_step: Any
) -> None:
    assert 1 == topic.partitions
    await fill(storage, 10, 30)
    bounds = await storage.latest(TP)
    client.xgroup_create(KEY, "plain", 0)

    async def trim() -> None:
        await storage.truncate_before(TP, bounds.high_watermark)

    after_step(1, trim)
    await storage.compact(TP)
    next_offset = (await append(storage, TP, keyed([1], b"new"))).base_offset

    assert next_offset >= bounds.high_watermark
    assert [b"new"] == [record.value for record in await records_from(storage, TP)]
    assert [b"plain"] == [group["name"] for group in client.xinfo_groups(KEY)]


async def test_topic_deleted_during_compaction_leaves_no_keys(
    storage: Storage, topic: Topic, client: redis.Redis, after_step: Any
) -> None:
    await fill(storage, 10, 30)
    after_step(2, lambda: storage.delete_topic(topic))
    with pytest.raises(UnknownTopicOrPartition):
        await storage.compact(TP)

    assert [] == [key for key in client.scan_iter() if b"orders" in key]


async def test_topic_recreated_during_compaction_is_not_modified(
    storage: Storage, topic: Topic, client: redis.Redis, after_step: Any
) -> None:
    await fill(storage, 10, 30)

    async def recreate() -> None:
        await storage.delete_topic(topic)
        await create(storage, topic.settings["storage.layout"])
        await append(storage, TP, keyed([1, 1], b"new"))

    after_step(2, recreate)
    with pytest.raises(UnknownTopicOrPartition):
        await storage.compact(TP)

    assert [b"new", b"new"] == [record.value for record in await records_from(storage, TP)]
    assert [] == leftovers(client)


async def test_later_of_two_concurrent_runs_succeeds(
    storage: Storage, topic: Topic, redis_server: RedisServer, client: redis.Redis, after_step: Any
) -> None:
    """This happens if a paused broker continues after another broker has acquired its lease."""
    assert 1 == topic.partitions
    await fill(storage, 10, 30)
    expected = latest_of(await records_from(storage, TP))
    async with open_redis_storage(redis_server.url) as other:
        after_step(2, lambda: other.compact(TP))
        with pytest.raises(KafkaStorageError, match="lost a race with another"):
            await storage.compact(TP)

    assert expected == await records_from(storage, TP)
    assert [] == leftovers(client)


async def test_cancelled_run_leaves_no_keys(
    storage: Storage, topic: Topic, client: redis.Redis, after_step: Any
) -> None:
    assert 1 == topic.partitions
    await fill(storage, 10, 30)
    before = await records_from(storage, TP)
    with trio.CancelScope() as scope:

        async def cancel() -> None:
            scope.cancel()

        after_step(2, cancel)
        await storage.compact(TP)

    assert scope.cancelled_caught
    assert before == await records_from(storage, TP)
    assert [] == leftovers(client)


async def test_compaction_on_a_full_redis_changes_no_records(
    storage: Storage, topic: Topic, client: redis.Redis, after_step: Any
) -> None:
    assert 1 == topic.partitions
    await fill(storage, 10, 30)
    before = await records_from(storage, TP)

    async def fill_up() -> None:
        client.config_set("maxmemory", 1)

    for step in (1, 2):
        after_step(step, fill_up)
        with pytest.raises(KafkaStorageError):
            await storage.compact(TP)
        client.config_set("maxmemory", 0)

    assert before == await records_from(storage, TP)
    assert [] == leftovers(client)


async def test_compaction_ends_despite_faster_writers(
    storage: Storage, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some patience the tail that is copied in the last step may be longer each time."""
    assert 1 == topic.partitions
    await fill(storage, 3)
    monkeypatch.setattr(redis_compaction, "FINISH_ENTRIES", 8)
    monkeypatch.setattr(redis_compaction, "MOST_AT_ONCE", 1)
    monkeypatch.setattr(redis_compaction, "PATIENCE_S", 0.0)
    call = Compactor._call
    written = 0

    async def writing(self: Compactor, run: Run, script: Script, *own: Argument) -> Any:
        nonlocal written
        for _ in range(12):
            await append(storage, TP, keyed([1000 + written], b"new"))
            written += 1
        return await call(self, run, script, *own)

    monkeypatch.setattr(Compactor, "_call", writing)
    with trio.fail_after(30):
        await storage.compact(TP)

    assert 10 + written == len(await records_from(storage, TP))


# --- Killed ---------------------------------------------------------------------------------------------------


def test_compaction_killed_at_any_step_keeps_the_stream_complete(
    redis_server: RedisServer, client: redis.Redis, report: Callable[[str], None]
) -> None:
    layouts = ("record", "batch")
    kills = {layout: trio.run(kill_at_every_step, redis_server, client, layout) for layout in layouts}
    report(f"killed with signal 9 after each of {kills} steps")

    assert all(number >= 3 for number in kills.values())


async def kill_at_every_step(server: RedisServer, client: redis.Redis, layout: str) -> int:
    client.flushall()
    async with open_redis_storage(server.url) as storage:
        await create(storage, layout)
        await fill(storage, 30, 12)
        await append(storage, TP, keyed(range(12), b"young", timestamp=YEAR_2100))
        topic = await storage.topic("orders")
        await storage.alter_topic(topic, settings={**topic.settings, "min.compaction.lag.ms": "1"})
        client.xgroup_create(KEY, "plain", 0)
        client.xreadgroup("plain", "alice", {KEY: ">"})
        for number in range(12):
            client.xgroup_create(KEY, f"group-{number}", "$" if number % 2 else 0)
        groups = described(client)
        pending = client.xpending(KEY, "plain")
        before = await records_from(storage, TP)
        expected = [*latest_of(before[:-12]), *before[-12:]]
        kills = 0
        while (finished := run_until(server, kills + 1)) != 0:
            assert -signal.SIGKILL == finished
            kills += 1
            found = await records_from(storage, TP)
            if found != before:
                break
            assert pending == client.xpending(KEY, "plain")

        assert expected == await records_from(storage, TP)
        assert [] == leftovers(client)
        assert {name: each[0] for name, each in groups.items()} == {
            name: each[0] for name, each in described(client).items()
        }
        await append(storage, TP, keyed([1], b"behind"))
        assert len(expected) + 1 == len(await records_from(storage, TP))
    return kills


def run_until(server: RedisServer, steps: int) -> int:
    """Compact in another process that kills itself after a number of steps. Return how it ended."""
    command = [sys.executable, "-m", "tests.storage.compacting", server.url, "orders", str(steps)]
    return subprocess.run(command, cwd=ROOT, env=os.environ, check=False, timeout=60).returncode


async def test_leftovers_of_a_killed_run_are_deleted_with_the_topic(
    storage: Storage, redis_server: RedisServer, client: redis.Redis
) -> None:
    topic = await create(storage, "record")
    await fill(storage, 10, 30)
    assert -signal.SIGKILL == run_until(redis_server, 2)
    left = leftovers(client)
    await storage.delete_topic(topic)

    assert len(left) >= 1
    assert [] == leftovers(client)


async def test_leftovers_of_a_killed_run_are_deleted_when_the_policy_changes(
    storage: Storage, redis_server: RedisServer, client: redis.Redis
) -> None:
    topic = await create(storage, "batch")
    await fill(storage, 10, 30)
    assert -signal.SIGKILL == run_until(redis_server, 2)
    await storage.alter_topic(topic, settings={**topic.settings, "cleanup.policy": "delete"})

    assert await storage.compact(TP) is None
    assert [] == leftovers(client)


# --- Many groups ----------------------------------------------------------------------------------------------


@pytest.fixture
def before_step(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Script], Awaitable[object]]], None]:
    """`before_step(do)`: before each script of a compaction is sent, await `do(script)`."""
    monkeypatch.setattr(redis_compaction, "STEP_ENTRIES", 20)

    def interfere(do: Callable[[Script], Awaitable[object]]) -> None:
        call = Compactor._call

        async def with_interference(self: Compactor, run: Run, script: Script, *own: Argument) -> Any:
            await do(script)
            return await call(self, run, script, *own)

        monkeypatch.setattr(Compactor, "_call", with_interference)

    return interfere


def calls_of(client: redis.Redis, command: str) -> int:
    """Return how often the server has executed a command, those of scripts included."""
    stats = client.info("commandstats").items()
    return sum(each["calls"] for name, each in stats if name.split("|")[0].casefold() == f"cmdstat_{command}")


async def test_no_script_creates_more_than_some_groups(
    storage: Storage, topic: Topic, client: redis.Redis, before_step: Any
) -> None:
    """Redis answers no other client during a script, and there may be tens of thousands of groups."""
    assert 1 == topic.partitions
    await fill(storage)
    groups = [f"group-{number}" for number in range(1200)]
    with client.pipeline(transaction=False) as creating:
        for group in groups:
            creating.xgroup_create(KEY, group, "$")
        creating.execute()
    client.config_resetstat()
    counts: list[tuple[Script, int]] = []

    async def count(script: Script) -> None:
        counts.append((script, calls_of(client, "xgroup")))

    before_step(count)
    await storage.compact(TP)
    await count(COMPACT_FINISH)
    created = [(script, after - before) for (script, before), (_, after) in pairwise(counts)]
    kept = {info["name"].decode(): info["last-delivered-id"] for info in client.xinfo_groups(KEY)}

    assert dict.fromkeys(groups, client.xinfo_stream(KEY)["last-generated-id"]) == kept
    assert [500, 500, 200] == [number for script, number in created if script is COMPACT_GROUPS]
    assert [0] == [number for script, number in created if script is COMPACT_FINISH]
    assert 0 == calls_of(client, "xpending")
    assert calls_of(client, "xinfo") < 20


@pytest.mark.parametrize("plain_clients", [False, True])
async def test_groups_that_change_during_compaction_are_current_afterwards(
    storage: Storage,
    topic: Topic,
    client: redis.Redis,
    before_step: Any,
    monkeypatch: pytest.MonkeyPatch,
    plain_clients: bool,
) -> None:
    assert 1 == topic.partitions
    monkeypatch.setattr(redis_compaction, "GROUPS_AT_ONCE", 7)
    await fill(storage, 20, 30)
    offsets = [record.offset for record in await records_from(storage, TP)]
    for number in range(30):
        await storage.ack(f"group-{number:02}", {TP: OffsetAndMetadata(offsets[number * 19])})
        client.xgroup_create(KEY, f"plain-{number:02}", "$")
    dice = random.Random(1)
    expected: dict[str, dict[bytes, tuple[bytes, int, int]]] = {}
    appended = 0

    async def interfere(script: Script) -> None:
        nonlocal appended
        appended += 1
        await append(storage, TP, keyed([1000 + appended], b"new"))
        for _ in range(5):
            offset = OffsetAndMetadata(dice.choice(offsets))
            await storage.ack(f"group-{dice.randrange(40):02}", {TP: offset})
        if plain_clients:
            await storage.forget(f"group-{dice.randrange(40):02}", [TP])
            client.xgroup_destroy(KEY, f"plain-{dice.randrange(60):02}")
            client.xgroup_create(KEY, f"plain-{30 + appended:02}", dice.choice([0, "$"]))
            reader = dice.choice(client.xinfo_groups(KEY))["name"]
            client.xreadgroup(reader, "alice", {KEY: ">"}, count=dice.randrange(1, 3))
        if script is COMPACT_FINISH:
            expected["before the last step"] = described(client)

    before_step(interfere)
    await storage.compact(TP)
    found = described(client)

    assert expected["before the last step"].keys() == found.keys()
    assert {name: each[:2] for name, each in expected["before the last step"].items()} == {
        name: each[:2] for name, each in found.items()
    }
    assert [] == leftovers(client)
    check_entries_read(client)


def described(client: redis.Redis) -> dict[bytes, tuple[bytes, int, int]]:
    """Return the last-delivered ID, the consumers and the pending entries of each group."""
    return {
        each["name"]: (each["last-delivered-id"], each["consumers"], each["pending"])
        for each in client.xinfo_groups(KEY)
    }


def check_entries_read(client: redis.Redis) -> None:
    """Assert that the entries a group has read are those of the stream up to its last-delivered ID."""
    ids = [id_of(entry_id) for entry_id, _ in client.xrange(KEY)]
    for group in client.xinfo_groups(KEY):
        if (entries_read := group.get("entries-read")) is not None:
            assert entries_read == bisect_right(ids, id_of(group["last-delivered-id"]))


async def test_many_groups_that_change_are_copied_before_the_last_step(
    storage: Storage, topic: Topic, client: redis.Redis, before_step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 1 == topic.partitions
    monkeypatch.setattr(redis_compaction, "FINISH_GROUPS", 20)
    await fill(storage)
    offsets = [record.offset for record in await records_from(storage, TP)]
    for number in range(30):
        client.xgroup_create(KEY, f"group-{number}", "$")
    finishes = 0

    async def interfere(script: Script) -> None:
        nonlocal finishes
        if script is COMPACT_FINISH:
            finishes += 1
            for number in range(30 if finishes == 1 else 20):
                offset = OffsetAndMetadata(offsets[-1] if finishes == 1 else offsets[0])
                await storage.ack(f"group-{number}", {TP: offset})

    before_step(interfere)
    await storage.compact(TP)

    assert 2 == finishes
    ids = [each[0] for each in described(client).values()]
    assert [10, 20] == sorted(map(ids.count, set(ids)))
    check_entries_read(client)


async def test_groups_are_copied_in_the_order_of_their_ids_without_those_at_the_tail() -> None:
    copied = CopiedGroups({b"same": b"5-0", b"moved": b"5-0", b"gone": b"1-0"})
    last_ids = {b"beyond": b"99-0", b"moved": b"10-0", b"new": b"7-3", b"same": b"5-0", b"tail": b"20-1"}
    groups = [
        {b"name": name, b"consumers": 0, b"last-delivered-id": last_id} for name, last_id in last_ids.items()
    ]
    changes = await run_in_slices(copied.compare(groups, b"(20-0", b"30-0"))
    copied.note(changes)

    assert [(b"gone", b""), (b"new", b"7-3"), (b"moved", b"10-0"), (b"beyond", b"99-0")] == changes
    assert [(b"tail", b"20-1")] == copied.at_tail
    assert {b"beyond": b"99-0", b"moved": b"10-0", b"new": b"7-3", b"same": b"5-0"} == copied.last_ids
