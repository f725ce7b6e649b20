"""Commands that the network delays until after their connection was replaced: they change nothing any more."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import pytest
import redis
import trio
from attrs import frozen

from korvet.storage.interface import OffsetAndMetadata, TopicPartition
from korvet.storage.redis.groups import COMMIT, FOLLOW
from korvet.storage.redis.scripts import REPLACE, SAVE
from korvet.storage.redis_streams import RedisStreamsStorage, open_redis_storage
from korvet.testing.records import append, numbered
from tests.servers import RedisServer
from tests.storage.relay import Relay, open_relay

pytestmark = pytest.mark.servers

TP = TopicPartition("orders", 0)


@frozen
class Delayed:
    """A storage whose connections to Redis lead through a relay."""

    relay: Relay
    storage: RedisStreamsStorage

    async def delay(self, command: bytes, call: Callable[[], Awaitable[object]]) -> None:
        """Keep a call's command in the network, and return when the call was repeated over a new connection."""
        self.relay.hold(command)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await self.relay.wait_held()
            await self.relay.cut()


@pytest.fixture
async def delayed(redis_server: RedisServer) -> AsyncIterator[Delayed]:
    with trio.fail_after(30):
        async with open_relay(redis_server) as relay, open_redis_storage(relay.url) as storage:
            await storage.create_topic("orders", 1, {})
            yield Delayed(relay, storage)


async def test_delayed_commit_does_not_overwrite_a_newer_one(delayed: Delayed) -> None:
    storage = delayed.storage
    await storage.ack("billing", {TP: OffsetAndMetadata(1)}, generation_id=1)
    await delayed.delay(
        COMMIT.sha, partial(storage.ack, "billing", {TP: OffsetAndMetadata(5)}, generation_id=1)
    )
    repeated = await storage.committed("billing", [TP])
    newer = await storage.ack("billing", {TP: OffsetAndMetadata(6)}, generation_id=1)
    await delayed.relay.release()
    committed = await storage.committed("billing", [TP])

    assert repeated == {TP: OffsetAndMetadata(5)}
    assert newer == {TP: None}
    assert committed == {TP: OffsetAndMetadata(6)}


@pytest.mark.parametrize("tps", [[TP], None], ids=["one", "all"])
async def test_delayed_deletion_of_committed_offsets_does_not_remove_a_newer_one(
    delayed: Delayed, tps: list[TopicPartition] | None
) -> None:
    storage = delayed.storage
    await storage.ack("billing", {TP: OffsetAndMetadata(1)})
    await storage.topics()
    await delayed.delay(b"XGROUP", partial(storage.forget, "billing", tps))
    await storage.ack("billing", {TP: OffsetAndMetadata(6)})
    await delayed.relay.release()

    assert await storage.committed("billing", [TP]) == {TP: OffsetAndMetadata(6)}


async def test_delayed_commit_does_not_restore_a_deleted_group(delayed: Delayed, client: redis.Redis) -> None:
    storage = delayed.storage
    await delayed.delay(COMMIT.sha, partial(storage.ack, "billing", {TP: OffsetAndMetadata(5)}))
    await storage.forget("billing")
    await delayed.relay.release()

    assert await storage.committed("billing", [TP]) == {}
    assert client.keys("*billing*") == []


async def test_delayed_commit_does_not_set_the_redis_group_back(
    delayed: Delayed, client: redis.Redis
) -> None:
    storage = delayed.storage
    appended = await append(storage, TP, numbered(9))
    first = appended.base_offset
    await storage.ack("billing", {TP: OffsetAndMetadata(first + 1)})
    await delayed.delay(FOLLOW.sha, partial(storage.ack, "billing", {TP: OffsetAndMetadata(first + 5)}))
    await storage.ack("billing", {TP: OffsetAndMetadata(first + 9)})
    before = client.xinfo_groups("korvet:orders:0")
    await delayed.relay.release()

    assert client.xinfo_groups("korvet:orders:0") == before


async def test_delayed_creation_does_not_restore_a_deleted_topic(delayed: Delayed) -> None:
    storage = delayed.storage
    await delayed.delay(REPLACE.sha, partial(storage.create_topic, "payments", 1, {}))
    topic = await storage.topic("payments")
    assert topic is not None
    await storage.delete_topic(topic)
    await delayed.relay.release()

    async with open_redis_storage(delayed.relay.url) as other:
        assert [*await other.topics()] == ["orders"]


async def test_delayed_document_is_not_saved_after_its_deletion(delayed: Delayed) -> None:
    storage = delayed.storage
    await delayed.delay(SAVE.sha, partial(storage.save, "k", "x", b"1", expected_version=0))
    await storage.save("k", "x", None, expected_version=1)
    await delayed.relay.release()

    assert await storage.load("k", "x") is None
