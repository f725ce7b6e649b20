from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from korvet.broker.authorization import Authorization
from korvet.broker.broker import Broker, open_broker, partition_of
from korvet.broker.counters import Counters
from korvet.cluster.membership import Membership
from korvet.cluster.registration import Registration
from korvet.config import Config
from korvet.groups.coordinator import GroupCoordinator
from korvet.protocol.errors import (
    FencedLeaderEpoch,
    InvalidGroupId,
    UnknownLeaderEpoch,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from korvet.protocol.schema import ZERO_UUID
from korvet.security.acl_store import AclStore
from korvet.security.acls import Operation, ResourceType
from korvet.security.authorizer import Authorizer
from korvet.storage.interface import DocumentConflict, Storage, Topic, TopicPartition
from korvet.storage.memory import MemoryStorage
from tests.handlers.support import Shim, context, create, new_broker

TP = TopicPartition("t", 0)


@pytest.fixture
async def broker() -> Broker:
    return await new_broker()


async def test_topics_are_found_by_name_and_id(broker: Broker) -> None:
    created = await create(broker)

    assert created == await broker.topic(context(0), "t", Operation.READ)
    assert created == await broker.topic_by_id(context(0), created.topic_id, Operation.READ)
    assert TP == await broker.partition(context(0), "t", 0, Operation.READ)


async def test_missing_topics_and_partitions_are_refused(broker: Broker) -> None:
    created = await create(broker)

    with pytest.raises(UnknownTopicOrPartition, match="'none'"):
        await broker.topic(context(0), "none", Operation.READ)
    with pytest.raises(UnknownTopicId):
        await broker.topic_by_id(context(0), ZERO_UUID, Operation.READ)
    for number in (-1, 1):
        with pytest.raises(UnknownTopicOrPartition):
            partition_of(created, number)


async def test_every_resource_access_is_authorized(broker: Broker) -> None:
    asked: list[tuple[Operation, ResourceType, str]] = []

    class RecordingAuthorizer(Authorizer):
        def authorize(
            self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str
        ) -> bool:
            assert ("User:ANONYMOUS", "127.0.0.1") == (principal, host)
            asked.append((operation, resource_type, name))
            return True

    created = await create(broker)
    broker.authorization = Authorization(RecordingAuthorizer(), AclStore(broker._storage, lambda _: None))
    await broker.topic(context(0), "t", Operation.READ)
    await broker.topic_by_id(context(0), created.topic_id, Operation.WRITE)
    await broker.partition(context(0), "t", 0, Operation.DELETE)
    await broker.topic_or_new(context(0), "new")
    await broker.topics(context(0), Operation.DESCRIBE)
    broker.group(context(0), "g", Operation.DESCRIBE)
    broker.cluster(context(0), Operation.IDEMPOTENT_WRITE)

    assert [
        (Operation.READ, ResourceType.TOPIC, "t"),
        (Operation.WRITE, ResourceType.TOPIC, "t"),
        (Operation.DELETE, ResourceType.TOPIC, "t"),
        (Operation.CREATE, ResourceType.CLUSTER, "kafka-cluster"),
        (Operation.DESCRIBE, ResourceType.TOPIC, "new"),
        (Operation.DESCRIBE, ResourceType.TOPIC, "t"),
        (Operation.DESCRIBE, ResourceType.GROUP, "g"),
        (Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, "kafka-cluster"),
    ] == asked


async def test_group_id_may_be_empty_but_not_null(broker: Broker) -> None:
    assert "" == broker.group(context(0), "", Operation.READ)
    with pytest.raises(InvalidGroupId):
        broker.group(context(0), None, Operation.READ)


async def test_rules_are_read_again_after_the_topic_was_altered(broker: Broker) -> None:
    created = await create(broker)
    before = broker.rules(created)

    altered = await broker._storage.alter_topic(created, settings={"max.message.bytes": "5"})

    assert before is broker.rules(created)
    assert 5 == broker.rules(altered).max_message_bytes


async def test_leader_epoch_is_checked(broker: Broker) -> None:
    broker.check_leader_epoch(TP, -1, 3)
    broker.check_leader_epoch(TP, 3, 3)
    with pytest.raises(FencedLeaderEpoch):
        broker.check_leader_epoch(TP, 2, 3)
    with pytest.raises(UnknownLeaderEpoch):
        broker.check_leader_epoch(TP, 4, 3)


async def test_newest_leader_epoch_is_accepted_for_older_records(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryStorage, "newest_leader_epoch", 5)
    for claimed in (3, 4, 5):
        broker.check_leader_epoch(TP, claimed, 3)
    with pytest.raises(UnknownLeaderEpoch, match="has leader epoch 5, not yet 6"):
        broker.check_leader_epoch(TP, 6, 3)


async def test_parked_request_ends_at_its_deadline(broker: Broker, autojump_clock: MockClock) -> None:
    told = context(0)
    with broker.parked(told, 5):
        assert told.parked is not None
        await trio.sleep_forever()

    assert 5.0 == trio.current_time()
    assert told.parked is None


async def test_drain_ends_current_and_later_waits(broker: Broker, autojump_clock: MockClock) -> None:
    async def park() -> None:
        with broker.parked(context(0), 60):
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(park)
        nursery.start_soon(park)
        await trio.sleep(1)
        broker.drain()
    await park()

    assert 1.0 == trio.current_time()


async def test_brokers_on_one_store_share_a_cluster_id() -> None:
    storage = MemoryStorage()

    first, second = await open_broker(storage, Config()), await open_broker(storage, Config())

    assert first.cluster_id == second.cluster_id


async def test_cluster_id_saved_concurrently_by_another_broker_is_used() -> None:
    storage = MemoryStorage()

    async def lose(kind: str, key: str, value: bytes, *, expected_version: int) -> int:
        await storage.save(kind, key, b"theirs", expected_version=expected_version)
        raise DocumentConflict

    broker = await open_broker(Shim(storage, save=lose), Config())

    assert "theirs" == broker.cluster_id


async def test_topic_created_concurrently_by_another_broker_is_used(broker: Broker) -> None:
    created = await create(broker)
    looked: list[str] = []

    async def topic(name: str) -> Topic | None:
        looked.append(name)
        return created if len(looked) > 1 else None

    racing = await open_broker(Shim(broker._storage, topic=topic), Config())

    assert created == await racing.topic_or_new(context(0), "t")


async def test_every_part_has_the_clock_and_the_leases_of_its_broker() -> None:
    made: list[GroupCoordinator] = []

    def make_groups(
        storage: Storage, config: Config, clock: Callable[[], int], membership: Membership
    ) -> GroupCoordinator:
        made.append(GroupCoordinator(storage, config, clock, membership))
        return made[0]

    def clock() -> int:
        return 17

    membership, counters = Membership(Registration(7, "", {})), Counters()
    broker = await open_broker(
        MemoryStorage(),
        Config(),
        membership=membership,
        counters=counters,
        clock=clock,
        make_groups=make_groups,
    )

    assert (membership, counters, made) == (broker.membership, broker.counters, [broker.groups])
    assert membership is broker.groups.membership
    assert 7 == broker.config.node_id
    assert {clock} == {broker.clock, broker.groups.clock, broker.producer_ids.clock}
    assert broker.retention.leases is broker.compaction.leases
    assert broker.retention.log is broker.log
