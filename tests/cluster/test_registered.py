"""Registrations of brokers on one store: ids, renewal, death, pauses, and a clean end."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
import trio
from attrs import evolve
from trio.testing import MockClock

from korvet.cluster.membership import Membership, NodeIdTaken
from korvet.cluster.placement import NO_NODE
from korvet.cluster.registered import KIND, RegisteredMembership, new_incarnation, registered
from korvet.cluster.registration import Registration, UnreadableRegistration, read, written
from korvet.protocol.errors import CoordinatorNotAvailable, NotCoordinator
from korvet.storage.interface import Documents, TopicPartition
from korvet.storage.memory import MemoryStorage
from tests.handlers.support import Shim, away

SESSION_S = 9.0
LATE_S = 2.0  # of announcements here, since the storage has none and is polled


def broker(
    storage: Documents,
    host: str,
    node_id: int | None = None,
    *,
    registers: bool = True,
    incarnation: str | None = None,
    processes: int = 1,
) -> AbstractAsyncContextManager[RegisteredMembership]:
    name = incarnation or new_incarnation()
    own = Registration(node_id or 1, name, {"PLAINTEXT": (host, 9092)}, processes=processes)
    return registered(storage, own, node_id=node_id, session_s=SESSION_S, registers=registers)


@asynccontextmanager
async def killed(
    membership: AbstractAsyncContextManager[RegisteredMembership],
) -> AsyncIterator[RegisteredMembership]:
    """Run a broker for the block, whose end is that of a killed one."""
    async with membership as found:
        yield found
        found.storage = Shim(found.storage, save=away, load=away)


def ids(membership: Membership) -> list[int]:
    return list(membership.living)


async def test_ids_are_assigned_from_one_and_every_broker_sees_all(autojump_clock: MockClock) -> None:
    storage = MemoryStorage()
    async with broker(storage, "a") as a, broker(storage, "b") as b, broker(storage, "c") as c:
        assert [1, 2, 3] == [a.node_id, b.node_id, c.node_id]
        await trio.sleep(LATE_S)

        assert [[1, 2, 3]] * 3 == [ids(a), ids(b), ids(c)]
        assert {1} == {a.controller_id, b.controller_id, c.controller_id}
        tps = [TopicPartition("t", number) for number in range(50)]
        leaders = [a.leader_id(tp, "PLAINTEXT") for tp in tps]
        assert leaders == [c.leader_id(tp, "PLAINTEXT") for tp in tps]
        assert {1, 2, 3} == set(leaders)
        assert {NO_NODE} == {a.leader_id(tp, "SSL") for tp in tps}


async def test_broker_that_leaves_is_gone_at_once_and_gets_its_id_back(autojump_clock: MockClock) -> None:
    storage = MemoryStorage()
    async with broker(storage, "a") as a:
        async with broker(storage, "b"), broker(storage, "c"):
            pass
        await trio.sleep(LATE_S)
        assert [1] == ids(a)

        async with broker(storage, "c") as c, broker(storage, "d") as d:
            assert [3, 2] == [c.node_id, d.node_id]


async def test_killed_broker_is_declared_dead_after_its_session(autojump_clock: MockClock) -> None:
    storage = MemoryStorage()
    async with broker(storage, "a") as a:
        async with killed(broker(storage, "b")):
            await trio.sleep(LATE_S)
        killed_s = trio.current_time()
        while ids(a) == [1, 2]:
            await a.changed.wait()
        assert SESSION_S * 2 / 3 <= trio.current_time() - killed_s <= SESSION_S * 4 / 3

        async with broker(storage, "z") as z:
            assert 2 == z.node_id


async def test_killed_broker_takes_its_own_id_over_at_once(autojump_clock: MockClock) -> None:
    storage = MemoryStorage()
    async with killed(broker(storage, "a", 7)), killed(broker(storage, "b")):
        pass
    began_s = trio.current_time()
    async with broker(storage, "a", 7) as a, broker(storage, "b") as b:
        assert began_s == trio.current_time()
        assert [7, 1] == [a.node_id, b.node_id]


async def test_second_living_broker_with_a_given_id_is_refused(autojump_clock: MockClock) -> None:
    storage = MemoryStorage()
    async with broker(storage, "a", 7) as a:
        began_s = trio.current_time()
        with pytest.raises(NodeIdTaken, match=re.escape("PLAINTEXT://a:9092, which runs since 1970-01-01")):
            async with broker(storage, "b", 7):
                pass
        assert trio.current_time() - began_s <= SESSION_S / 3 + 1
        assert a.replaced_by is None


async def test_given_id_of_a_dead_broker_elsewhere_is_free_after_its_session(
    autojump_clock: MockClock,
) -> None:
    storage = MemoryStorage()
    async with killed(broker(storage, "a", 7)):
        pass
    began_s = trio.current_time()
    async with broker(storage, "b", 7) as b:
        assert SESSION_S <= trio.current_time() - began_s <= SESSION_S + 1
        assert 7 == b.node_id


async def test_older_run_at_the_same_addresses_ends(autojump_clock: MockClock) -> None:
    storage = MemoryStorage()
    async with broker(storage, "a") as older, broker(storage, "a") as newer:
        with trio.fail_after(SESSION_S / 3 + LATE_S):
            await older.ended.wait()
        assert older.node_id == newer.node_id
        with pytest.raises(NodeIdTaken, match="has taken over node.id 1"):
            older.check_not_replaced()
        await trio.sleep(SESSION_S)
        newer.check_not_replaced()
        assert newer.is_in_session


async def test_broker_without_the_store_ends_its_session_before_others_declare_it_dead(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    storage = MemoryStorage()
    caplog.set_level(logging.WARNING)
    async with broker(storage, "a") as a, broker(storage, "b") as b:
        await trio.sleep(LATE_S)
        group = next(f"group-{number}" for number in range(99) if b.coordinates(f"group-{number}"))
        b.check_coordinates(group)
        with pytest.raises(NotCoordinator):
            a.check_coordinates(group)
        b.storage = Shim(storage, save=away, load=away)
        while a.coordinator(group).node_id == 2:
            in_session = b.is_in_session
            await trio.sleep(0.1)
        assert not in_session
        with pytest.raises(CoordinatorNotAvailable):
            b.check_coordinates(group)
        a.check_coordinates(group)

        b.storage = storage
        tenure = b.tenure
        await trio.sleep(LATE_S)
        assert [tenure + 1, 2, [1, 2]] == [b.tenure, b.node_id, ids(a)]
        b.check_coordinates(group)
    assert "declared dead" in caplog.text


async def test_broker_that_was_declared_dead_announces_its_return(autojump_clock: MockClock) -> None:
    storage = MemoryStorage()
    announced: list[str] = []

    async def announce(kind: str) -> None:
        announced.append(kind)

    async with broker(storage, "a") as a, broker(storage, "b") as b:
        await trio.sleep(LATE_S)
        b.storage = Shim(storage, save=away, load=away)
        while ids(a) == [1, 2]:
            await a.changed.wait()
        b.storage = Shim(storage, announce=announce)
        await trio.sleep(LATE_S)

        assert [[1, 2], [1, 2]] == [ids(a), ids(b)]
        await trio.sleep(SESSION_S)
    assert [KIND, KIND] == announced  # its return, and its end


async def test_brokers_do_not_declare_each_other_dead_after_the_store_was_away(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    storage = MemoryStorage()
    async with broker(storage, "a") as a, broker(storage, "b") as b:
        await trio.sleep(LATE_S)
        a.storage = b.storage = Shim(storage, save=away, load=away)
        await trio.sleep(3 * SESSION_S)
        assert not a.is_in_session
        a.storage = storage
        await trio.sleep(LATE_S)
        b.storage = storage
        await trio.sleep(LATE_S)

        assert [[1, 2], [1, 2]] == [ids(a), ids(b)]
    assert "declared dead" not in caplog.text


async def test_brokers_stay_in_session_while_the_store_is_full(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    storage = MemoryStorage()
    async with broker(storage, "a") as a, broker(storage, "b") as b:
        await trio.sleep(LATE_S)
        tenures = [a.tenure, b.tenure]
        a.storage = b.storage = Shim(storage, save=away)
        for _ in range(100):
            await trio.sleep(SESSION_S / 10)
            assert [True, True] == [a.is_in_session, b.is_in_session]
        a.storage = storage
        await trio.sleep(LATE_S)
        b.storage = storage
        await trio.sleep(LATE_S)

        assert tenures == [a.tenure, b.tenure]
        assert [[1, 2], [1, 2]] == [ids(a), ids(b)]
    assert "declared dead" not in caplog.text


async def test_store_that_was_emptied_gets_the_registrations_again(autojump_clock: MockClock) -> None:
    storage = MemoryStorage()
    async with broker(storage, "a") as a, broker(storage, "b") as b:
        await trio.sleep(LATE_S)
        a.storage = b.storage = MemoryStorage()
        await trio.sleep(SESSION_S)

        assert [[1, 2], [1, 2]] == [ids(a), ids(b)]


async def test_processes_of_a_broker_are_one_member(autojump_clock: MockClock) -> None:
    storage, incarnation = MemoryStorage(), new_incarnation()
    async with (
        broker(storage, "a"),
        broker(storage, "b", incarnation=incarnation, processes=2) as first,
        broker(storage, "b", incarnation=incarnation, processes=2, registers=False) as second,
    ):
        tenures = [first.tenure, second.tenure]
        await trio.sleep(5 * SESSION_S)

        assert [2, 2] == [first.node_id, second.node_id]
        assert [[1, 2], [1, 2]] == [ids(first), ids(second)]
        assert tenures == [first.tenure, second.tenure]
        async with broker(
            storage, "b", incarnation=incarnation, processes=2
        ) as again:  # the first one, restarted
            await trio.sleep(SESSION_S)
            assert [2, True] == [again.node_id, second.is_in_session]
        await first.leave()
        await second.leave()
        assert [1] == ids(second)


async def test_last_broker_coordinates_its_groups_until_it_ends(autojump_clock: MockClock) -> None:
    storage = MemoryStorage()
    async with broker(storage, "a") as a:
        await a.leave()
        await trio.sleep(2 * SESSION_S)
        a.check_coordinates("g")
        assert [1] == ids(a)
        document = await storage.load(KIND, "1")
        assert document is not None
        assert not read(1, document.value).is_living


@pytest.mark.parametrize(
    "damaged",
    [b"", b"[]", b"{", b'{"format": 1}', b'{"format": 99}', b"[" * 100_000],
    ids=["empty", "array", "cut", "incomplete", "newer", "deep"],
)
async def test_damaged_registration_is_logged_and_replaced(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, damaged: bytes
) -> None:
    storage = MemoryStorage()
    await storage.save(KIND, "1", damaged, expected_version=0)
    await storage.save(KIND, "not a number", b"", expected_version=0)
    with pytest.raises(UnreadableRegistration):
        read(1, damaged)
    async with broker(storage, "a") as a:
        assert [1] == ids(a)
    assert 1 == caplog.text.count("it is ignored")


def test_registration_of_an_earlier_version_knows_no_transactions() -> None:
    values = json.loads(written(Registration(3, "", {})))
    assert values.pop("transactions")
    assert not read(3, json.dumps(values).encode()).knows_transactions


def test_document_is_read_as_it_was_written() -> None:
    own = Registration(3, "run", {"INSIDE": ("größe", 1), "OUT": ("::1", 2)}, "rack", "1.0", 17, 2)

    assert own == read(3, written(own))
    assert not read(3, written(evolve(own, is_living=False))).is_living
