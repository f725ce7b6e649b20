from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from korvet.broker.broker import Broker
from korvet.concurrency.tasks import supervise
from korvet.groups.members import Join, Leave
from korvet.protocol.errors import ErrorCode, GroupIdNotFound, InconsistentGroupProtocol
from korvet.storage.interface import OffsetAndMetadata
from tests.handlers.consumer_groups import ConsumerMember
from tests.handlers.share_groups import ShareMember
from tests.handlers.support import T0, create, new_broker


async def member_of(broker: Broker, partitions: int = 2) -> ShareMember:
    return ShareMember(broker, (await create(broker, partitions=partitions)).topic_id)


async def test_a_member_joins_stays_and_leaves(broker: Broker) -> None:
    alice = await member_of(broker)

    joined = await alice.beat(subscribed_topic_names=["t"])
    steady = await alice.beat()
    left = await alice.beat(member_epoch=-1)

    assert (ErrorCode.NONE, 5000, alice.member_id) == (
        joined.error_code,
        joined.heartbeat_interval_ms,
        joined.member_id,
    )
    assert joined.assignment is not None
    assert [(alice.topic_id, [0, 1])] == [
        (each.topic_id, each.partitions) for each in joined.assignment.topic_partitions
    ]
    assert (joined.member_epoch, None) == (steady.member_epoch, steady.assignment)
    assert (ErrorCode.NONE, -1) == (left.error_code, left.member_epoch)


@pytest.mark.parametrize(
    "fields",
    [
        {"group_id": ""},
        {"member_id": ""},
        {"member_id": " "},
        {"rack_id": ""},
        {"member_epoch": -2},
        {"subscribed_topic_names": None},
        {"subscribed_topic_names": []},
    ],
)
async def test_bad_requests_are_refused(broker: Broker, fields: dict[str, Any]) -> None:
    alice = await member_of(broker)

    response = await alice.beat(**({"subscribed_topic_names": ["t"]} | fields))

    assert ErrorCode.INVALID_REQUEST == response.error_code
    assert [] == await broker.groups.groups()


async def test_strangers_and_wrong_epochs_are_refused(broker: Broker) -> None:
    alice = await member_of(broker)
    bob = ShareMember(broker, alice.topic_id)
    missing = await bob.beat(member_epoch=1)
    await alice.beat(subscribed_topic_names=["t"])

    assert ErrorCode.GROUP_ID_NOT_FOUND == missing.error_code
    assert ErrorCode.UNKNOWN_MEMBER_ID == (await bob.beat(member_epoch=1)).error_code
    assert ErrorCode.UNKNOWN_MEMBER_ID == (await bob.beat(member_epoch=-1)).error_code
    assert ErrorCode.FENCED_MEMBER_EPOCH == (await alice.beat(member_epoch=99)).error_code


async def test_a_group_is_of_one_type(broker: Broker) -> None:
    alice = await member_of(broker)
    await alice.beat(subscribed_topic_names=["t"])
    consumer = ConsumerMember(broker)

    assert ErrorCode.GROUP_ID_NOT_FOUND == (await consumer.join("t")).error_code
    with pytest.raises(InconsistentGroupProtocol):
        await broker.groups.join("g", Join(protocols=(("range", b""),)), broker.parked)
    with pytest.raises(GroupIdNotFound):
        await broker.groups.commit("g", {T0: OffsetAndMetadata(1)})
    with pytest.raises(GroupIdNotFound):
        await broker.groups.committed("g", None)
    with pytest.raises(GroupIdNotFound):
        await broker.groups.delete_offsets("g", [T0])
    assert [ErrorCode.UNKNOWN_MEMBER_ID] == await broker.groups.leave("g", [Leave("x")])


async def test_a_group_of_another_type_is_refused(broker: Broker) -> None:
    alice = await member_of(broker)
    await ConsumerMember(broker).join("t")

    assert ErrorCode.GROUP_ID_NOT_FOUND == (await alice.beat(subscribed_topic_names=["t"])).error_code


async def test_a_silent_member_is_removed(autojump_clock: MockClock) -> None:
    broker = await new_broker()
    alice = await member_of(broker)
    await alice.beat(subscribed_topic_names=["t"])
    async with trio.open_nursery() as nursery:
        await nursery.start(supervise, "groups", broker.groups.run)
        await trio.sleep(46)
        nursery.cancel_scope.cancel()

    assert ErrorCode.UNKNOWN_MEMBER_ID == (await alice.beat()).error_code


async def test_a_group_survives_its_broker(broker: Broker) -> None:
    alice = await member_of(broker)
    await alice.beat(subscribed_topic_names=["t"])

    alice.broker = await new_broker(broker._storage)  # type: ignore[arg-type]

    assert ErrorCode.NONE == (await alice.beat()).error_code
