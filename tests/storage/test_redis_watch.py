"""Waking waiters, on real servers: by this broker, by others, by hand, and after the connection was lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
import trio
import trio.testing
from attrs import define, field

from korvet.storage.redis.client import errors as redis_errors
from korvet.storage.redis.client.connection import RedisConnection, open_connection
from korvet.storage.redis.read import watch as redis_watch
from korvet.storage.redis.read.watch import (
    BLOCK_WITHOUT_UNBLOCK_MS,
    Change,
    FixedConnections,
    StreamWatch,
    Watcher,
    id_after,
    id_before,
    is_lower,
)
from tests.servers import RedisServer, StartServer

CHANGES = b"korvet:$changes"


@define
class Watching:
    """A running watcher, and another client's connection."""

    watcher: Watcher
    redis: RedisConnection
    changes: list[Change | None] = field(factory=list)

    async def add(self, key: bytes, entry_id: bytes = b"*") -> bytes:
        """Add an entry with XADD, and return its ID."""
        added = await self.redis.execute(b"XADD", key, entry_id, b"field", b"value")
        assert isinstance(added, bytes)
        return added

    async def reads(self) -> int:
        """Return the number of XREADs that the server has executed."""
        stats = await self.redis.execute(b"INFO", b"commandstats")
        assert isinstance(stats, bytes)
        lines = dict(line.split(":", 1) for line in stats.decode().splitlines() if ":" in line)
        return int(lines.get("cmdstat_xread", "calls=0,").partition("=")[2].partition(",")[0])


@asynccontextmanager
async def watching_on(url: str) -> AsyncIterator[Watching]:
    async with (
        open_connection(url, name="watch") as blocking,
        open_connection(url) as other,
        trio.open_nursery() as nursery,
    ):
        changes: list[Change | None] = []
        watcher = Watcher(FixedConnections(blocking, other), CHANGES, changes.append)
        await nursery.start(watcher.run)
        yield Watching(watcher, other, changes)
        nursery.cancel_scope.cancel()


@pytest.fixture
async def watching(redis_server: RedisServer) -> AsyncIterator[Watching]:
    async with watching_on(redis_server.url) as watching:
        yield watching


async def parked(watch: StreamWatch, nursery: trio.Nursery) -> trio.Event:
    """Wait in a separate task, and return when the server blocks for it. The event is set when the wait ends."""
    over = trio.Event()

    async def wait() -> None:
        await watch.wait()
        over.set()

    nursery.start_soon(wait)
    await settled()
    return over


async def settled() -> None:
    """Return when nothing moves any more: all tasks blocked, for longer than an answer takes."""
    await trio.testing.wait_all_tasks_blocked(0.02)


async def is_set_soon(event: trio.Event) -> bool:
    with trio.move_on_after(5):
        await event.wait()
    return event.is_set()


async def test_manually_added_entry_wakes_a_watcher(watching: Watching) -> None:
    async with trio.open_nursery() as nursery:
        with watching.watcher.watch([b"a", b"b"]) as watch:
            watching.watcher.note(b"a", b"0-0")
            watching.watcher.note(b"b", b"0-0")
            over = await parked(watch, nursery)
            was_over = over.is_set()
            await watching.add(b"b")

            assert (False, True) == (was_over, await is_set_soon(over))


async def test_growth_between_reading_and_waiting_is_not_missed(watching: Watching) -> None:
    with watching.watcher.watch([b"a"]) as watch:
        watching.watcher.note(b"a", b"0-0")
        await watching.add(b"a")
        with trio.fail_after(5):
            await watch.wait()


async def test_growth_is_not_missed_without_a_noted_read(watching: Watching) -> None:
    await watching.add(b"a")
    async with trio.open_nursery() as nursery:
        with watching.watcher.watch([b"a"]) as watch:
            await watching.add(b"a")
            with trio.fail_after(5):
                await watch.wait()
            over = await parked(watch, nursery)
            was_over = over.is_set()
            await watching.add(b"a")

            assert (False, True) == (was_over, await is_set_soon(over))


async def test_growth_by_this_broker_wakes_watchers_immediately(watching: Watching) -> None:
    with watching.watcher.watch([b"a"]) as watch:
        watching.watcher.grew(b"a", b"5-0")
        with trio.fail_after(5):
            await watch.wait()


async def test_own_growth_is_not_reported_again_by_redis(watching: Watching) -> None:
    async with trio.open_nursery() as nursery:
        with watching.watcher.watch([b"a"]) as watch:
            watching.watcher.note(b"a", b"0-0")
            over = await parked(watch, nursery)
            watching.watcher.grew(b"a", b"5-1")
            await over.wait()
            await watching.add(b"a", b"5-0")
            again = await parked(watch, nursery)
            was_over = again.is_set()
            await watching.add(b"a", b"5-1")

            assert (False, True) == (was_over, await is_set_soon(again))


async def test_watcher_waiting_again_before_the_echo_of_own_growth_is_woken(
    watching: Watching,
) -> None:
    async with trio.open_nursery() as nursery:
        with watching.watcher.watch([b"a"]) as watch:
            watching.watcher.note(b"a", b"0-0")
            over = await parked(watch, nursery)
            watching.watcher.grew(b"a", b"5-1")
            await over.wait()
            again = await parked(watch, nursery)
            await watching.add(b"a", b"5-0")
            await settled()
            was_over = again.is_set()
            await watching.add(b"a", b"5-1")

            assert (False, True) == (was_over, await is_set_soon(again))


async def test_stream_added_during_a_blocking_xread_is_watched(watching: Watching) -> None:
    async with trio.open_nursery() as nursery:
        with watching.watcher.watch([b"a"]) as first, watching.watcher.watch([b"b"]) as second:
            watching.watcher.note(b"a", b"0-0")
            first_over = await parked(first, nursery)
            watching.watcher.note(b"b", b"0-0")
            second_over = await parked(second, nursery)
            await watching.add(b"b")
            second_woken = await is_set_soon(second_over)
            first_woken = first_over.is_set()
            await watching.add(b"a")

            assert (True, False, True) == (second_woken, first_woken, await is_set_soon(first_over))


async def test_consecutive_polls_send_no_command(watching: Watching) -> None:
    keys = [b"stream:%d" % number for number in range(1000)]

    async def poll(key: bytes, limit_s: float) -> None:
        with watching.watcher.watch([key]) as watch:
            watching.watcher.note(key, b"0-0")
            with trio.move_on_after(limit_s):
                await watch.wait()

    async def poll_all(limit_s: float) -> None:
        async with trio.open_nursery() as nursery:
            for key in keys:
                nursery.start_soon(poll, key, limit_s)

    await poll_all(0.2)
    before = await watching.reads()
    for _ in range(5):
        await poll_all(0.02)

    assert before == await watching.reads()


async def test_growing_stream_without_watchers_is_removed_from_xread(watching: Watching) -> None:
    with watching.watcher.watch([b"a"]) as watch:
        watching.watcher.note(b"a", b"0-0")
        with trio.move_on_after(0.05):
            await watch.wait()
    left = watching.watcher.watched()
    await watching.add(b"a")
    await settled()
    before = await watching.reads()
    await watching.add(b"a")
    await settled()

    assert ([b"a"], []) == (left, watching.watcher.watched())
    assert before == await watching.reads()


@pytest.mark.parametrize("are_deserted", [True, False])
async def test_abandoned_streams_are_removed_together(
    watching: Watching, monkeypatch: pytest.MonkeyPatch, are_deserted: bool
) -> None:
    monkeypatch.setattr(redis_watch, "DESERTED_AFTER_S", -1.0 if are_deserted else 60.0)
    keys = [b"stream:%d" % number for number in range(50)]
    with watching.watcher.watch(keys) as watch:
        for key in keys:
            watching.watcher.note(key, b"0-0")
        with trio.move_on_after(0.05):
            await watch.wait()
    await watching.add(keys[7])
    await settled()

    assert ([] if are_deserted else [key for key in keys if key != keys[7]]) == watching.watcher.watched()


async def test_reader_behind_another_reader_is_woken(watching: Watching) -> None:
    with watching.watcher.watch([b"a"]) as watch:
        watching.watcher.note(b"a", b"5-0")
        watching.watcher.note(b"a", b"6-0")
        with trio.fail_after(5):
            await watch.wait()


async def test_stream_that_lost_entries_is_watched_from_its_new_end(watching: Watching) -> None:
    async with trio.open_nursery() as nursery:
        with watching.watcher.watch([b"a"]) as watch:
            watching.watcher.note(b"a", b"9-0")
            over = await parked(watch, nursery)
            watching.watcher.note(b"a", b"4-0")
            await is_set_soon(over)
            again = await parked(watch, nursery)
            was_over = again.is_set()
            await watching.add(b"a", b"4-0")

            assert (False, True) == (was_over, await is_set_soon(again))


async def test_forgotten_streams_wake_their_watchers(watching: Watching) -> None:
    async with trio.open_nursery() as nursery:
        with watching.watcher.watch([b"a"]) as watch:
            watching.watcher.note(b"a", b"9-0")
            over = await parked(watch, nursery)
            watching.watcher.forget([b"a", b"unknown"])

            assert await is_set_soon(over)


async def test_changes_are_reported_in_order(watching: Watching) -> None:
    for number in range(3):
        await watching.redis.execute(b"XADD", CHANGES, b"*", b"topic", number)
    await settled()

    assert [None, {b"topic": b"0"}, {b"topic": b"1"}, {b"topic": b"2"}] == watching.changes


async def test_changes_before_the_start_are_not_reported(redis_server: RedisServer) -> None:
    with redis_server.client() as client:
        client.xadd(CHANGES, {"topic": "old"})
    async with watching_on(redis_server.url) as watching:
        await settled()

        assert [None] == watching.changes


async def test_key_that_is_not_a_stream_affects_only_its_own_watch(watching: Watching) -> None:
    await watching.redis.execute(b"SET", b"bad", b"text")
    async with trio.open_nursery() as nursery:
        with watching.watcher.watch([b"bad"]) as bad, watching.watcher.watch([b"good"]) as good:
            watching.watcher.note(b"good", b"0-0")
            good_over = await parked(good, nursery)
            bad_over = await parked(bad, nursery)
            was_over = good_over.is_set()
            await watching.add(b"good")

            assert (True, False, True) == (bad_over.is_set(), was_over, await is_set_soon(good_over))


async def test_all_watchers_are_woken_after_a_lost_connection(durable_server: RedisServer) -> None:
    async with watching_on(durable_server.url) as watching, trio.open_nursery() as nursery:
        with watching.watcher.watch([b"a"]) as watch:
            watching.watcher.note(b"a", b"0-0")
            over = await parked(watch, nursery)
            durable_server.kill()
            durable_server.start()
            woken = await is_set_soon(over)
            watching.watcher.note(b"a", b"0-0")
            again = await parked(watch, nursery)
            was_over = again.is_set()
            await watching.redis.wait_connected()
            await watching.add(b"a")

            assert (True, False, True) == (woken, was_over, await is_set_soon(again))
            assert [None, None] == watching.changes


async def test_killed_client_is_replaced(watching: Watching) -> None:
    async with trio.open_nursery() as nursery:
        with watching.watcher.watch([b"a"]) as watch:
            watching.watcher.note(b"a", b"0-0")
            over = await parked(watch, nursery)
            await watching.redis.execute(b"CLIENT", b"KILL", b"TYPE", b"normal", b"SKIPME", b"yes")

            assert await is_set_soon(over)


async def test_watchers_are_woken_without_the_right_to_unblock(new_server: StartServer) -> None:
    server = new_server()
    with server.client() as admin:
        admin.execute_command(
            *(
                "ACL",
                "SETUSER",
                "app",
                "on",
                ">pass",
                "~*",
                "+@all",
                "-client",
                "+client|id",
                "+client|setname",
            )
        )
    async with (
        watching_on(f"unix://app:pass@{server.socket}") as watching,
        trio.open_nursery() as nursery,
    ):
        with watching.watcher.watch([b"a"]) as watch:
            watching.watcher.note(b"a", b"0-0")
            over = await parked(watch, nursery)
            with pytest.raises(redis_errors.NoPermissionError):
                await watching.redis.execute(b"CLIENT", b"UNBLOCK", 1)
            await trio.sleep(BLOCK_WITHOUT_UNBLOCK_MS / 1000 * 2)
            await watching.add(b"a")

            assert await is_set_soon(over)


async def test_growth_of_many_streams_wakes_all_watchers(watching: Watching) -> None:
    keys = [b"stream:%d" % number for number in range(300)]
    woken: list[bytes] = []

    async def wait(key: bytes) -> None:
        with watching.watcher.watch([key]) as watch:
            watching.watcher.note(key, b"0-0")
            await watch.wait()
            woken.append(key)

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            for key in keys:
                nursery.start_soon(wait, key)
            for key in keys:
                await watching.add(key)

    assert sorted(woken) == sorted(keys)


@pytest.mark.parametrize(
    "entry_id,before,after",
    [
        (b"5-3", b"5-2", b"5-4"),
        (b"5-0", b"4-18446744073709551615", b"5-1"),
        (b"0-0", b"0-0", b"0-1"),
    ],
)
def test_next_and_previous_entry_id(entry_id: bytes, before: bytes, after: bytes) -> None:
    assert (id_before(entry_id), id_after(entry_id)) == (before, after)


def test_ids_are_compared_by_their_numbers() -> None:
    ordered = [b"", b"0-0", b"0-9", b"0-10", b"9-0", b"10-0"]

    assert [True] * 5 == [is_lower(a, b) for a, b in pairwise(ordered)]
    assert not is_lower(b"9-0", b"9-0")
