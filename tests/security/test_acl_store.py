"""The ACLs that brokers share."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Collection

import pytest
import trio
from trio.testing import MockClock

from korvet.protocol.errors import KafkaStorageError
from korvet.security.acl_store import AclStore
from korvet.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from korvet.security.shared_document import ATTEMPTS, KEY
from korvet.storage.interface import DocumentConflict
from korvet.storage.memory import MemoryStorage
from tests.handlers.support import Shim, away


def acl(name: str) -> Acl:
    return Acl(ResourceType.TOPIC, PatternType.LITERAL, name, "User:ä", "*", Operation.READ, Permission.ALLOW)


def adding(name: str) -> object:
    return lambda acls: acls | {acl(name)}


def ignore(_: Collection[Acl]) -> None:
    pass


async def test_change_by_another_broker_takes_effect_within_a_second(autojump_clock: MockClock) -> None:
    storage = MemoryStorage()
    used: list[Collection[Acl]] = []
    reader, writer = AclStore(storage, used.append), AclStore(storage, ignore)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.run)
        await trio.sleep(5.2)
        await writer.alter(adding("a"))
        await trio.sleep(1)
        nursery.cancel_scope.cancel()

    assert [{acl("a")}] == used


async def test_change_with_a_repeated_version_is_noticed() -> None:
    """A store that lost the last writes gives their versions to other ones."""
    storage, promoted = MemoryStorage(), MemoryStorage()
    reader = AclStore(storage, ignore)
    await AclStore(storage, ignore).alter(adding("lost"))
    before = await reader.refresh()
    await AclStore(promoted, ignore).alter(adding("stored instead"))
    reader.storage = promoted

    assert {acl("lost")} == before
    assert {acl("stored instead")} == await reader.refresh()


async def test_change_that_cannot_be_announced_is_stored() -> None:
    storage = MemoryStorage()
    await AclStore(Shim(storage, announce=away), ignore).alter(adding("a"))

    assert {acl("a")} == await AclStore(storage, ignore).refresh()


async def test_concurrent_changes_are_not_lost() -> None:
    storage = MemoryStorage()
    stores = [AclStore(storage, ignore) for _ in range(10)]
    async with trio.open_nursery() as nursery:
        for number, store in enumerate(stores):
            nursery.start_soon(store.alter, adding(str(number)))

    assert {acl(str(number)) for number in range(10)} == await stores[0].refresh()


async def test_change_without_effect_is_not_written() -> None:
    storage = MemoryStorage()
    store = AclStore(storage, ignore)
    await store.alter(adding("a"))
    await store.alter(adding("a"))

    assert 1 == (await storage.load(AclStore.kind, KEY)).version


async def test_repeated_conflicts_are_a_storage_error() -> None:
    attempts = []

    async def conflicting(*_: object, **__: object) -> int:
        attempts.append(1)
        raise DocumentConflict

    with pytest.raises(KafkaStorageError):
        await AclStore(Shim(MemoryStorage(), save=conflicting), ignore).alter(adding("a"))

    assert len(attempts) == ATTEMPTS


async def test_acls_remain_in_effect_while_the_store_is_unavailable(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    storage = MemoryStorage()
    store = AclStore(storage, ignore)
    await store.alter(adding("a"))
    store.storage = Shim(storage, load=away)
    with trio.move_on_after(10):
        await store.run()

    assert {acl("a")} == store.value
    assert ["the broker keeps the 1 ACLs it has: the store is away"] == caplog.messages
    with pytest.raises(KafkaStorageError):
        await store.refresh()


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"nonsense",
        AclStore.encoded(frozenset())[:-1],
        AclStore.encoded(frozenset({acl("a")})).replace(b"x", b"y", 1),
    ],
    ids=["empty", "nonsense", "cut", "other compression"],
)
async def test_damaged_document_changes_no_acl_and_is_not_replaced(
    value: bytes, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    storage = MemoryStorage()
    store = AclStore(storage, ignore)
    await store.alter(adding("a"))
    await storage.save(AclStore.kind, KEY, value, expected_version=1)
    with caplog.at_level(logging.WARNING), trio.move_on_after(10):
        await store.run()
    with pytest.raises(KafkaStorageError, match="damaged"):
        await store.alter(adding("b"))

    assert {acl("a")} == store.value
    assert len(caplog.messages) == 1
    assert value == (await storage.load(AclStore.kind, KEY)).value


@pytest.mark.parametrize(
    "text", ["[1]", '{"acls": [["TOPIC", "LITERAL", 1, "User:a", "*", "READ", "ALLOW"]]}']
)
def test_document_of_another_json_schema_is_damaged(text: str) -> None:
    with pytest.raises(KafkaStorageError, match="damaged"):
        AclStore.decoded(zlib.compress(text.encode()))


def test_document_contains_every_acl() -> None:
    acls = frozenset(
        Acl(resource, pattern, "näme", "User:a", "::1", operation, permission)
        for resource in ResourceType
        for pattern in PatternType
        for operation in Operation
        for permission in Permission
    )

    assert acls == AclStore.decoded(AclStore.encoded(acls))
