"""Redis is killed around each script of share groups: before it is executed, and after it, before its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
import redis
import trio

from korvet.protocol.errors import KafkaStorageError
from korvet.storage.redis import shares
from korvet.storage.redis.client.connection import Script
from korvet.storage.shares import AckType
from korvet.testing.records import append, numbered
from tests.servers import RedisServer
from tests.storage.relay import Relay, open_relay
from tests.storage.test_redis_shares import LIMITS, STREAM, TP, Queue, offsets, opened, pending

pytestmark = pytest.mark.servers

LIMIT_S = 60.0
Call = Callable[[Queue, list[int]], Awaitable[object]]
State = tuple[set[str], list[tuple[str, int]], int]

#: Alice has acquired the first three of four records, and released the second one.
BEFORE = [("alice", 1), ("$released", 1), ("alice", 1)]

#: The script, the call, and the groups, pending entries and new records after it.
CALLS: dict[str, tuple[Script, Call, State]] = {
    "open": (
        shares.SHARE_OPEN,
        lambda queue, _: queue.storage.open_share(queue.key._replace(group_id="others"), 0),
        ({"workers", "others"}, BEFORE, 1),
    ),
    "acquire": (
        shares.SHARE_ACQUIRE,
        lambda queue, _: queue.acquire("bob"),
        ({"workers"}, [("alice", 1), ("bob", 2), ("alice", 1), ("bob", 1)], 0),
    ),
    "acknowledge": (
        shares.SHARE_ACKNOWLEDGE,
        lambda queue, found: queue.acknowledge("alice", AckType.ACCEPT, found[0]),
        ({"workers"}, BEFORE[1:], 1),
    ),
    "release": (
        shares.SHARE_RELEASE,
        lambda queue, _: queue.storage.release_share(queue.key, "alice", LIMITS),
        ({"workers"}, [("$released", 1)] * 3, 1),
    ),
    "reset": (
        shares.SHARE_RESET,
        lambda queue, found: queue.storage.reset_share(queue.key, found[2], LIMITS),
        ({"workers"}, [], 2),
    ),
    "forget": (
        shares.SHARE_FORGET,
        lambda queue, _: queue.storage.forget_shares("workers", [queue.topic]),
        (set(), [], 0),
    ),
}


def state_of(client: redis.Redis) -> State:
    groups = {each["name"].decode(): each for each in client.xinfo_groups(STREAM)}
    if "workers" not in groups:
        return set(groups), [], 0
    delivered = groups["workers"]["last-delivered-id"].decode()
    return set(groups), pending(client), len(client.xrange(STREAM, f"({delivered}", "+"))


async def restarted(server: RedisServer, relay: Relay, *, is_executed: bool) -> None:
    """Kill the server while it has the request that the relay holds, or has executed it, and start it again."""
    await relay.wait_held()
    if is_executed:
        await relay.release()
    server.kill()
    server.start()
    await relay.cut()


async def until_done(call: Callable[[], Awaitable[object]]) -> None:
    """Repeat a call, as members do, until the store has executed it."""
    with trio.fail_after(LIMIT_S):
        while True:
            with suppress(KafkaStorageError):
                await call()
                return


@pytest.mark.parametrize("is_executed", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name", CALLS)
async def test_call_is_executed_once_although_redis_is_killed(
    durable_server: RedisServer, name: str, is_executed: bool
) -> None:
    script, call, expected = CALLS[name]
    async with open_relay(durable_server) as relay, opened(relay.url) as queue:
        await append(queue.storage, TP, numbered(4))
        found = offsets(await queue.acquire("alice", 3))
        await queue.acknowledge("alice", AckType.RELEASE, found[1])
        relay.hold(script.sha)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(until_done, lambda: call(queue, found))
            await restarted(durable_server, relay, is_executed=is_executed)
        with durable_server.client() as client:
            state = state_of(client)

    assert expected == state
