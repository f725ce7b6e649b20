"""Announcements of changed documents to the other brokers on a Redis."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from time import monotonic

import pytest
import redis
import trio
import trio.testing

from korvet.security.acl_store import AclStore
from korvet.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from korvet.storage.interface import Document, DocumentConflict
from korvet.storage.redis import document_watches
from korvet.storage.redis_streams import open_redis_storage
from tests.servers import VALKEY, RedisServer, StartServer, on

pytestmark = pytest.mark.servers

DENIED = Acl(ResourceType.TOPIC, PatternType.LITERAL, "t", "User:*", "*", Operation.ALL, Permission.DENY)


async def test_announcement_lets_another_broker_read_the_acls(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, report: Callable[[str], None]
) -> None:
    monkeypatch.setattr(document_watches, "CHECK_EVERY_S", math.inf)
    used: list[Collection[Acl]] = []
    has_changed = trio.Event()

    def changed(acls: Collection[Acl]) -> None:
        used.append(acls)
        has_changed.set()

    async with (
        open_redis_storage(redis_server.url) as one,
        open_redis_storage(redis_server.url) as other,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(AclStore(other, changed).run)
        await trio.testing.wait_all_tasks_blocked(0.01)
        began = monotonic()
        await AclStore(one, changed=lambda _: None).alter(lambda acls: acls | {DENIED})
        with trio.fail_after(10):
            await has_changed.wait()
        took_ms = 1000 * (monotonic() - began)
        nursery.cancel_scope.cancel()
    report(f"another broker had the ACL {took_ms:.1f} ms after the alteration began")

    assert [{DENIED}] == used


async def test_lost_announcement_delays_a_change_by_some_seconds(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document_watches, "CHECK_EVERY_S", 0.05)
    async with open_redis_storage(redis_server.url) as storage:
        with storage.watch_documents("acls") as changes, trio.fail_after(10):
            await changes.wait()


async def test_reconnection_wakes_the_watches(
    redis_server: RedisServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Announcements may have been missed meanwhile."""
    monkeypatch.setattr(document_watches, "CHECK_EVERY_S", math.inf)
    async with open_redis_storage(redis_server.url) as storage:
        with storage.watch_documents("acls") as changes, trio.fail_after(10):
            client.client_kill_filter(_type="normal", skipme=True)
            await changes.wait()


# --- Incarnations -----------------------------------------------------------------------------------------


async def test_document_is_not_saved_in_another_incarnation(redis_server: RedisServer) -> None:
    async with open_redis_storage(redis_server.url) as storage:
        present = storage.incarnation("kind", "key")
        await storage.save_in(present, "kind", "key", b"one", expected_version=0)
        with pytest.raises(DocumentConflict) as conflict:
            await storage.save_in("0" * 40, "kind", "key", b"two", expected_version=1)

        assert Document(b"one", 1) == conflict.value.current
        assert present


async def test_restarted_server_is_another_incarnation_unless_it_loses_nothing(
    new_server: StartServer,
) -> None:
    for durable in (False, True):
        server = new_server(durable=durable)
        async with open_redis_storage(server.url) as storage:
            before = storage.incarnation("kind", "key")
            server.kill()
            server.start()
            await storage.load("kind", "key")

            assert (before == storage.incarnation("kind", "key")) is durable


@on(VALKEY)
async def test_server_that_syncs_every_second_may_lose_staged_offsets_with_acks_all_fsync(
    new_server: StartServer,
) -> None:
    """Appends wait for the disk then, documents and offsets do not."""
    server = new_server(options={"appendonly": "yes", "appendfsync": "everysec"})
    async with open_redis_storage(server.url, fsync=True) as storage:
        before = storage.incarnation("kind", "key")
        server.kill()
        server.start()
        await storage.load("kind", "key")

        assert before != storage.incarnation("kind", "key")
