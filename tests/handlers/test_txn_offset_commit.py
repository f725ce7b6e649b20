from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.storage.interface import TopicPartition
from tests.handlers.members import new_group_broker, take_part
from tests.handlers.support import T0, Shim, away, create, reconfigure
from tests.handlers.transactional import TransactionalProducer, coordinating, settled


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with coordinating(await new_group_broker()) as broker:
        await create(broker, partitions=2)
        yield broker


async def initialized(broker: Broker, version: int = 2) -> TransactionalProducer:
    producer = TransactionalProducer(broker, version=version)
    await producer.init()
    return producer


async def committed(broker: Broker, group_id: str = "g") -> dict[TopicPartition, int]:
    found = await broker.groups.committed(group_id, None)
    return {tp: each.offset for tp, each in found.items()}


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("version", range(7))
async def test_offsets_are_committed_with_the_transaction(broker: Broker, version: int, commit: bool) -> None:
    producer = await initialized(broker, 2 if version >= 5 else 1)
    if version < 5:
        assert ErrorCode.NONE == await producer.add_group()

    assert ErrorCode.NONE == await producer.stage(3, version=version)
    before = await committed(broker), await broker.groups.unstable("g", None)
    await producer.finish(commit=commit)

    assert ({}, {T0}) == (before[0], set(before[1]))
    assert ({T0: 3} if commit else {}) == await committed(broker)
    assert () == tuple(await broker.groups.unstable("g", None))


@pytest.mark.parametrize(
    "version, error",
    [
        (0, ErrorCode.INVALID_TXN_STATE),
        (3, ErrorCode.INVALID_TXN_STATE),
        (4, ErrorCode.TRANSACTION_ABORTABLE),
    ],
)
async def test_group_that_was_not_added_is_refused(broker: Broker, version: int, error: ErrorCode) -> None:
    producer = await initialized(broker, 1)
    await producer.add_group("another")

    assert error == await producer.stage(3, version=version)
    assert () == tuple(await broker.groups.unstable("g", None))


async def test_fifth_version_adds_the_group(broker: Broker) -> None:
    producer = await initialized(broker)

    assert ErrorCode.NONE == await producer.stage(3)
    found = await broker.transactions.describe("x")
    assert ("Ongoing", {"g"}, 2) == (found.state.value, {*found.groups}, found.version)


@pytest.mark.parametrize("version", [4, 5])
async def test_fenced_producer_gets_invalid_producer_epoch(broker: Broker, version: int) -> None:
    producer = await initialized(broker, 1)
    await initialized(broker)

    assert ErrorCode.INVALID_PRODUCER_EPOCH == await producer.stage(3, version=version)


@pytest.mark.parametrize("version", [4, 5])
async def test_unknown_and_empty_ids(broker: Broker, version: int) -> None:
    unknown = TransactionalProducer(broker, "made-up", producer_id=1, epoch=0)
    empty = TransactionalProducer(broker, "", producer_id=1, epoch=0)

    assert ErrorCode.INVALID_PRODUCER_ID_MAPPING == await unknown.stage(3, version=version)
    assert ErrorCode.INVALID_REQUEST == await empty.stage(3, version=version)


async def test_empty_group_is_refused(broker: Broker) -> None:
    producer = await initialized(broker)

    assert ErrorCode.INVALID_GROUP_ID == await producer.stage(3, group_id="")


async def test_topics_are_named_by_id_in_the_sixth_version(broker: Broker) -> None:
    producer = await initialized(broker)

    assert ErrorCode.UNKNOWN_TOPIC_ID == await producer.stage(3, tp=TopicPartition("made-up", 0), version=6)
    unknown = await producer.stage(3, tp=TopicPartition("t", 2), version=6)
    assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION == unknown
    assert "Empty" == (await broker.transactions.describe("x")).state.value


async def test_unknown_partitions_are_refused(broker: Broker) -> None:
    producer = await initialized(broker)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    assert unknown == await producer.stage(3, tp=TopicPartition("t", 2))
    assert unknown == await producer.stage(3, tp=TopicPartition("made-up", 0))
    assert "Empty" == (await broker.transactions.describe("x")).state.value


async def test_generation_of_an_unknown_group_is_illegal(broker: Broker) -> None:
    producer = await initialized(broker)

    assert ErrorCode.ILLEGAL_GENERATION == await producer.stage(3, generation_id=1, member_id="m")
    unknown = await producer.stage(3, generation_id=1, member_id="m", version=6)
    assert ErrorCode.GROUP_ID_NOT_FOUND == unknown


async def test_members_of_the_generation_stage_offsets(broker: Broker) -> None:
    member_id = (await take_part(broker, group_id="g")).member_id
    producer = await initialized(broker)

    assert ErrorCode.UNKNOWN_MEMBER_ID == await producer.stage(3, generation_id=1, member_id="made-up")
    assert ErrorCode.ILLEGAL_GENERATION == await producer.stage(3, generation_id=2, member_id=member_id)
    assert ErrorCode.NONE == await producer.stage(3, generation_id=1, member_id=member_id)


async def test_long_metadata_is_refused(broker: Broker) -> None:
    producer = await initialized(broker)
    reconfigure(broker, offset_metadata_max_bytes=3)

    assert ErrorCode.NONE == await producer.stage(3, metadata="abc")
    assert ErrorCode.OFFSET_METADATA_TOO_LARGE == await producer.stage(4, metadata="abcd")


async def test_offsets_of_an_ended_transaction_are_not_staged(broker: Broker) -> None:
    producer = await initialized(broker, 1)
    await producer.add_group()
    await producer.stage(3)
    await producer.finish()

    assert ErrorCode.TRANSACTION_ABORTABLE == await producer.stage(4)
    assert {T0: 3} == await committed(broker)


async def test_outdated_state_is_read_again(broker: Broker) -> None:
    """Another process has ended the transaction and begun the next one, with the same epoch."""
    producer = await initialized(broker, 1)
    await producer.add_group()
    await producer.stage(3)
    outdated = broker.transactions.states.known("x")
    await producer.finish()
    await producer.add_group()
    _cache(broker, outdated)

    assert ErrorCode.NONE == await producer.stage(4)
    await producer.finish()
    assert {T0: 4} == await committed(broker)


def _cache(broker: Broker, transaction: object) -> None:
    """Let the process have a state that it has read before."""
    states = broker.transactions.states
    saved = states._cached("x")
    assert saved is not None
    states._note("x", type(saved)(transaction, saved.version - 1))


async def test_unreachable_storage_is_a_retriable_error(broker: Broker) -> None:
    producer = await initialized(broker)
    broker.transactions.storage = Shim(broker._storage, save=away, load=away)

    assert ErrorCode.COORDINATOR_NOT_AVAILABLE == await producer.stage(3)


async def test_group_of_another_broker_is_refused(broker: Broker) -> None:
    producer = await initialized(broker)
    own = broker.membership.own
    other = type(own)(2, "", own.addresses, None, "", 0, 1)
    broker.membership._use({2: other}, {2: other})

    assert ErrorCode.NOT_COORDINATOR == await producer.stage(3)


async def test_commit_waits_for_the_end_of_the_previous_transaction(broker: Broker) -> None:
    producer = await initialized(broker)
    await producer.stage(3)
    await producer.end()

    assert ErrorCode.NONE == await producer.stage(4)
    await producer.end()
    await settled(broker)
    assert {T0: 4} == await committed(broker)
