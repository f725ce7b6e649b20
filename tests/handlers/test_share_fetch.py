from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from korvet.broker.broker import Broker
from korvet.concurrency.tasks import supervise
from korvet.protocol.errors import ErrorCode, NotEnoughReplicasAfterAppend
from korvet.protocol.record_batch import parse_batches
from korvet.storage.interface import TopicPartition
from korvet.storage.memory import MemoryStorage
from tests.handlers.share_groups import ACCEPT, REJECT, RELEASE, RENEW, ShareMember, configure, values
from tests.handlers.support import T0, append, create, new_broker


async def member_of(broker: Broker, *values_: bytes, partitions: int = 1, **settings: str) -> ShareMember:
    """Return a member of a group that begins with these records."""
    topic = await create(broker, partitions=partitions)
    await configure(broker, **settings)
    if values_:
        await append(broker, T0, *values_)
    return ShareMember(broker, topic.topic_id)


async def test_records_are_acquired_by_one_member(broker: Broker) -> None:
    alice = await member_of(broker, b"a", b"b", b"c")
    bob = ShareMember(broker, alice.topic_id)

    response = await alice.fetch(0)

    assert [b"a", b"b", b"c"] == values(response)
    assert 30_000 == response.acquisition_lock_timeout_ms
    assert [] == await bob.acquired(0)
    assert [(0, 2, 1)] == [
        (each.first_offset, each.last_offset, each.delivery_count)
        for each in response.responses[0].partitions[0].acquired_records
    ]


async def test_max_records_is_strict_and_members_take_turns(broker: Broker) -> None:
    alice = await member_of(broker, *[b"x"] * 10)
    bob = ShareMember(broker, alice.topic_id)

    assert [(0, 3, 1)] == await alice.acquired(0, max_records=4)
    assert [(4, 8, 1)] == await bob.acquired(0, max_records=5)
    assert [(9, 9, 1)] == await alice.acquired()


async def test_only_batches_with_acquired_records_are_sent(broker: Broker) -> None:
    alice = await member_of(broker, b"1")
    for value in (b"2", b"3"):
        await append(broker, T0, value)

    response = await alice.fetch(0, max_records=1)

    (data,) = response.responses[0].partitions
    assert [b"1"] == values(response)
    assert 1 == len(parse_batches(b"".join(data.records or ())))


async def test_a_group_begins_with_the_latest_records_by_default(broker: Broker) -> None:
    topic = await create(broker)
    await append(broker, T0, b"before")
    alice = ShareMember(broker, topic.topic_id)

    assert [] == await alice.acquired(0)
    await append(broker, T0, b"after")

    assert [b"after"] == values(await alice.fetch())


async def test_acknowledgements_accept_release_and_reject(broker: Broker) -> None:
    alice = await member_of(broker, b"0", b"1", b"2", b"3")
    await alice.fetch(0)

    acks = [(0, 2, [ACCEPT, RELEASE, REJECT])]

    assert [(1, 1, 2)] == await alice.acquired(acks=acks)
    assert [(1, 1, 3)] == await alice.acquired(acks=[(1, 1, [RELEASE])])
    assert [] == await alice.acquired(acks=[(1, 1, [ACCEPT]), (3, 3, [ACCEPT])])


async def test_records_are_delivered_up_to_the_limit(broker: Broker) -> None:
    alice = await member_of(broker, b"poison", delivery_count_limit="2")

    assert [(0, 0, 1)] == await alice.acquired(0)
    assert [(0, 0, 2)] == await alice.acquired(acks=[(0, 0, [RELEASE])])
    assert [] == await alice.acquired(acks=[(0, 0, [RELEASE])])


@pytest.mark.parametrize(
    "acks, error",
    [
        ([(1, 0, [ACCEPT])], ErrorCode.INVALID_REQUEST),
        ([(0, 1, [ACCEPT] * 3)], ErrorCode.INVALID_REQUEST),
        ([(0, 1, [])], ErrorCode.INVALID_REQUEST),
        ([(0, 0, [9])], ErrorCode.INVALID_REQUEST),
        ([(0, 0, [-1])], ErrorCode.INVALID_REQUEST),
        ([(1, 1, [ACCEPT]), (0, 0, [ACCEPT])], ErrorCode.INVALID_REQUEST),
        ([(0, 1, [ACCEPT]), (1, 1, [ACCEPT])], ErrorCode.INVALID_RECORD_STATE),
        ([(0, 9, [ACCEPT])], ErrorCode.INVALID_REQUEST),
        ([(0, 2**63 - 1, [ACCEPT])], ErrorCode.INVALID_REQUEST),
        ([(0, 0, [RENEW])], ErrorCode.INVALID_REQUEST),
    ],
)
async def test_bad_acknowledgements_change_nothing(
    broker: Broker, acks: list[tuple[int, int, list[int]]], error: ErrorCode
) -> None:
    alice = await member_of(broker, b"0", b"1")
    await alice.fetch(0)

    response = await alice.fetch(acks=acks)

    (data,) = response.responses[0].partitions
    assert error == data.acknowledge_error_code
    assert ErrorCode.NONE == await alice.acknowledge((0, 1, [ACCEPT]))


async def test_only_the_member_that_acquired_a_record_acknowledges_it(broker: Broker) -> None:
    alice = await member_of(broker, b"0", b"1")
    bob = ShareMember(broker, alice.topic_id)
    await alice.fetch(0, max_records=1)
    await bob.fetch(0)

    (data,) = (await bob.fetch(acks=[(0, 1, [ACCEPT])])).responses[0].partitions

    assert ErrorCode.INVALID_RECORD_STATE == data.acknowledge_error_code
    assert ErrorCode.NONE == await bob.acknowledge((1, 1, [ACCEPT]))
    assert ErrorCode.INVALID_RECORD_STATE == await bob.acknowledge((1, 1, [ACCEPT]))


async def test_renewing_extends_a_lock_and_acquires_nothing(autojump_clock: MockClock) -> None:
    broker = await new_broker()
    alice = await member_of(broker, b"0")
    await alice.fetch(0)
    await append(broker, T0, b"1")
    await trio.sleep(20)

    limits = {"max_records": 0, "max_bytes": 0, "min_bytes": 0}
    response = await alice.fetch(acks=[(0, 0, [RENEW])], is_renew_ack=True, **limits)
    await trio.sleep(20)

    assert [] == response.responses[0].partitions[0].acquired_records
    assert ErrorCode.NONE == await alice.acknowledge((0, 0, [ACCEPT]))
    with_limits = await alice.fetch(acks=[(0, 0, [RENEW])], is_renew_ack=True)
    assert ErrorCode.INVALID_REQUEST == with_limits.error_code


async def test_a_lock_that_ends_makes_records_available(autojump_clock: MockClock) -> None:
    broker = await new_broker()
    alice = await member_of(broker, b"0")
    bob = ShareMember(broker, alice.topic_id)
    await alice.fetch(0)
    began = trio.current_time()

    assert [(0, 0, 2)] == await bob.acquired(0, max_wait_ms=60_000)

    assert 29.9 < trio.current_time() - began < 31
    assert ErrorCode.INVALID_RECORD_STATE == await alice.acknowledge((0, 0, [ACCEPT]))


async def test_a_waiting_fetch_gets_new_and_released_records(autojump_clock: MockClock) -> None:
    broker = await new_broker()
    alice = await member_of(broker, b"0")
    bob = ShareMember(broker, alice.topic_id)
    await alice.fetch(0)
    found: list[list[tuple[int, int, int]]] = []

    async def wait() -> None:
        found.append(await bob.acquired(0, max_wait_ms=20_000))

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        await alice.acknowledge((0, 0, [RELEASE]))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        await append(broker, T0, b"1")

    assert [[(0, 0, 2)], [(1, 1, 1)]] == found
    assert trio.current_time() == began


async def test_a_waiting_fetch_ends_empty_after_its_time(autojump_clock: MockClock) -> None:
    broker = await new_broker()
    alice = await member_of(broker)
    await alice.fetch(0)
    began = trio.current_time()

    response = await alice.fetch(max_wait_ms=500)

    assert (ErrorCode.NONE, []) == (response.error_code, response.responses)
    assert trio.current_time() - began == pytest.approx(0.5)


async def test_first_response_of_a_session_names_all_partitions(autojump_clock: MockClock) -> None:
    broker = await new_broker()
    alice = await member_of(broker)

    for max_wait_ms in (0, 500):
        response = await alice.fetch(0, max_wait_ms=max_wait_ms, share_session_epoch=0)

        (data,) = response.responses[0].partitions
        assert (0, ErrorCode.NONE, ()) == (data.partition_index, data.error_code, tuple(data.records))
        assert [] == data.acquired_records


async def test_new_records_wait_for_min_bytes(autojump_clock: MockClock) -> None:
    broker = await new_broker()
    alice = await member_of(broker, b"0")
    began = trio.current_time()

    assert [(0, 0, 1)] == await alice.acquired(0, max_wait_ms=500, min_bytes=100_000)
    assert trio.current_time() - began == pytest.approx(0.5)


async def test_sessions_have_epochs(broker: Broker) -> None:
    alice = await member_of(broker, b"0")

    async def code(**fields: int) -> ErrorCode:
        return ErrorCode((await alice.fetch(**fields)).error_code)

    assert ErrorCode.SHARE_SESSION_NOT_FOUND == await code(share_session_epoch=3)
    assert ErrorCode.NONE == await code(share_session_epoch=0)
    assert ErrorCode.INVALID_SHARE_SESSION_EPOCH == await code(share_session_epoch=2)
    assert ErrorCode.NONE == await code(share_session_epoch=1)
    assert ErrorCode.INVALID_SHARE_SESSION_EPOCH == await alice.acknowledge(share_session_epoch=0)
    assert ErrorCode.NONE == await code(share_session_epoch=-1)
    assert ErrorCode.SHARE_SESSION_NOT_FOUND == await code(share_session_epoch=2)


async def test_the_first_request_of_a_session_cannot_acknowledge(broker: Broker) -> None:
    alice = await member_of(broker, b"0")

    assert ErrorCode.INVALID_REQUEST == (await alice.fetch(0, acks=[(0, 0, [ACCEPT])])).error_code


async def test_there_is_a_limit_of_sessions() -> None:
    broker = await new_broker(group_share_max_share_sessions=1)
    alice = await member_of(broker, b"0")
    bob = ShareMember(broker, alice.topic_id)
    await alice.fetch(0)

    assert ErrorCode.SHARE_SESSION_LIMIT_REACHED == (await bob.fetch(0)).error_code
    await alice.fetch(share_session_epoch=-1)
    assert ErrorCode.NONE == (await bob.fetch(0)).error_code


async def test_the_end_of_a_session_releases_records(broker: Broker) -> None:
    alice = await member_of(broker, b"0", b"1")
    bob = ShareMember(broker, alice.topic_id)
    await alice.fetch(0)

    await alice.fetch(acks=[(0, 0, [ACCEPT])], share_session_epoch=-1)

    assert [(1, 1, 2)] == await bob.acquired(0)


async def test_the_end_of_a_connection_releases_records(broker: Broker) -> None:
    alice = await member_of(broker, b"0")
    bob = ShareMember(broker, alice.topic_id)
    await alice.fetch(0)
    async with trio.open_nursery() as nursery:
        await nursery.start(supervise, "share groups", broker.share.run)

        alice.disconnect()

        with trio.fail_after(5):
            assert [(0, 0, 2)] == await bob.acquired(0, max_wait_ms=4000)
        assert 1 == len(broker.share.sessions)
        nursery.cancel_scope.cancel()


async def test_partitions_are_forgotten_and_rotate(broker: Broker) -> None:
    alice = await member_of(broker, partitions=2)
    await alice.fetch(0, 1)
    for partition in (0, 1):
        await append(broker, TopicPartition("t", partition), b"x", b"y")

    first = await alice.fetch(max_records=1)
    second = await alice.fetch(max_records=1)

    numbers = [response.responses[0].partitions[0].partition_index for response in (first, second)]
    assert [0, 1] == sorted(numbers)


async def test_unknown_topics_and_partitions_are_refused(broker: Broker) -> None:
    alice = await member_of(broker)
    stranger = ShareMember(broker, UUID(int=77))

    (unknown,) = (await stranger.fetch(0)).responses[0].partitions
    (missing,) = (await alice.fetch(5)).responses[0].partitions

    assert ErrorCode.UNKNOWN_TOPIC_ID == unknown.error_code
    assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION == missing.error_code


@pytest.mark.parametrize(
    "fields", [{"group_id": None}, {"member_id": None}, {"member_id": ""}, {"member_id": "x" * 37}]
)
async def test_bad_members_are_refused(broker: Broker, fields: dict[str, str | None]) -> None:
    alice = await member_of(broker)

    assert ErrorCode.INVALID_REQUEST == (await alice.fetch(0, **fields)).error_code


async def test_trimmed_records_are_finished(broker: Broker) -> None:
    alice = await member_of(broker, b"0", b"1")
    await alice.fetch(0, max_records=1)
    await alice.fetch(acks=[(0, 0, [RELEASE])], max_records=0)
    await append(broker, T0, b"2")

    await broker.log.truncate_before(T0, 2)

    assert [(2, 2, 1)] == await alice.acquired()


async def test_a_state_survives_the_broker(broker: Broker) -> None:
    alice = await member_of(broker, b"0", b"1", b"2")
    await alice.fetch(0)
    await alice.acknowledge((0, 0, [ACCEPT]), (1, 1, [RELEASE]))
    storage = broker._storage

    later = await new_broker(storage)  # type: ignore[arg-type]
    bob = ShareMember(later, alice.topic_id)

    assert [(1, 1, 2)] == await bob.acquired(0)
    assert [] == await bob.acquired()


async def test_two_brokers_deliver_no_record_twice() -> None:
    first = await new_broker()
    alice = await member_of(first, *[b"x"] * 6)
    second = await new_broker(first._storage)  # type: ignore[arg-type]
    bob = ShareMember(second, alice.topic_id)

    taken = []
    for member in (alice, bob, alice, bob):
        partitions = (0,) if not member.session_epoch else ()
        taken += await member.acquired(*partitions, max_records=1)

    assert [(0, 0, 1), (1, 1, 1), (2, 2, 1), (3, 3, 1)] == taken


class Unreplicated(MemoryStorage):
    """A storage whose replicas confirm no change of a document while they are `absent`. It is saved nevertheless."""

    absent = False

    async def save(self, *arguments: Any, **options: Any) -> int:
        version = await super().save(*arguments, **options)
        if self.absent:
            raise NotEnoughReplicasAfterAppend
        return version


async def test_absent_replicas_use_up_one_delivery_at_most(mock_clock: MockClock) -> None:
    storage = Unreplicated()
    broker = await new_broker(storage)
    alice = await member_of(broker, b"a", b"b")
    bob = ShareMember(broker, alice.topic_id)
    assert [(0, 0, 1)] == await bob.acquired(0, max_records=1)

    storage.absent = True
    for _ in range(6):  # more than the limit of deliveries
        (refused,) = (await alice.fetch(0)).responses
        assert [ErrorCode.KAFKA_STORAGE_ERROR] == [each.error_code for each in refused.partitions]
    assert ErrorCode.KAFKA_STORAGE_ERROR == await bob.acknowledge((0, 0, [ACCEPT]))
    storage.absent = False
    assert [] == await alice.acquired()  # the state is loaded again, and its locks begin again
    mock_clock.jump(30)

    assert [(0, 1, 2)] == await alice.acquired()
