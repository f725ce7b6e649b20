from __future__ import annotations

from functools import partial
from uuid import UUID, uuid4

import pytest
import trio
from attrs import evolve
from trio.testing import wait_all_tasks_blocked

from korvet.broker.broker import Broker
from korvet.broker.context import Disconnect
from korvet.config import Config
from korvet.protocol.buffers import Buffer
from korvet.protocol.codec import decode, encode
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.metadata import (
    AUTHORIZED_OPERATIONS_OMITTED,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from korvet.protocol.schema import ZERO_UUID
from tests.handlers.support import Shim, ask, away, create, install, new_broker, reconfigure


async def metadata(
    broker: Broker,
    *names: str | None,
    version: int = 12,
    ids: tuple[UUID, ...] = (),
    all_topics: bool = False,
    create_missing: bool = True,
    listener_name: str = "PLAINTEXT",
    **flags: bool,
) -> MetadataResponse:
    topics = [MetadataRequestTopic(name=name) for name in names]
    topics += [MetadataRequestTopic(name=None, topic_id=topic_id) for topic_id in ids]
    request = MetadataRequest(
        topics=None if all_topics else topics, allow_auto_topic_creation=create_missing, **flags
    )
    response = await ask(broker, 3, version, request, listener_name=listener_name)
    assert isinstance(response, MetadataResponse)
    return response


async def topic(broker: Broker, name: str, **options: bool) -> MetadataResponseTopic:
    (found,) = (await metadata(broker, name, **options)).topics
    return found


async def test_response_contains_this_broker_as_node_and_controller(broker: Broker) -> None:
    response = await metadata(broker)

    assert [(1, "broker.example", 9092, None)] == [
        (node.node_id, node.host, node.port, node.rack) for node in response.brokers
    ]
    assert 1 == response.controller_id
    assert broker.cluster_id == response.cluster_id


async def test_response_has_the_advertised_address_of_the_listener(broker: Broker) -> None:
    response = await metadata(broker, listener_name="INSIDE")

    assert ("inside.example", 9093) == (response.brokers[0].host, response.brokers[0].port)


async def test_null_requests_all_topics(broker: Broker) -> None:
    await create(broker, "b")
    await create(broker, "a")

    response = await metadata(broker, all_topics=True)

    assert ["a", "b"] == [each.name for each in response.topics]


async def test_empty_list_requests_no_topics(broker: Broker) -> None:
    await create(broker)

    response = await metadata(broker, version=1)

    assert [] == response.topics


async def test_empty_list_requests_all_topics_in_version_0(broker: Broker) -> None:
    await create(broker)

    response = await metadata(broker, version=0)

    assert ["t"] == [each.name for each in response.topics]


async def test_every_partition_is_described(broker: Broker) -> None:
    created = await create(broker, partitions=3)

    found = await topic(broker, "t")

    assert (ErrorCode.NONE, created.topic_id, False) == (found.error_code, found.topic_id, found.is_internal)
    assert [(0, 1, 0, [1], [1], []), (1, 1, 0, [1], [1], []), (2, 1, 0, [1], [1], [])] == [
        (
            each.partition_index,
            each.leader_id,
            each.leader_epoch,
            each.replica_nodes,
            each.isr_nodes,
            each.offline_replicas,
        )
        for each in found.partitions
    ]


async def test_missing_topic_is_created(broker: Broker) -> None:
    reconfigure(broker, num_partitions=2)

    found = await topic(broker, "new")

    assert (ErrorCode.NONE, 2) == (found.error_code, len(found.partitions))
    assert await broker._storage.topic("new") is not None


async def test_missing_topic_is_not_created_when_the_client_forbids_it(broker: Broker) -> None:
    found = await topic(broker, "new", create_missing=False)

    assert (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []) == (found.error_code, found.partitions)
    assert await broker._storage.topic("new") is None


async def test_missing_topic_is_not_created_when_the_broker_forbids_it() -> None:
    broker = await new_broker(auto_create_topics_enable=False)

    found = await topic(broker, "new")

    assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION == found.error_code


async def test_internal_topics_are_not_created(broker: Broker) -> None:
    found = await topic(broker, "__consumer_offsets")

    assert (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True) == (found.error_code, found.is_internal)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "ä", "a/b", "x" * 250, "$x", "a\x00"])
@pytest.mark.parametrize("create_missing", [False, True], ids=["asking", "creating"])
async def test_invalid_topic_name_is_an_error(broker: Broker, name: str, create_missing: bool) -> None:
    found = await topic(broker, name, create_missing=create_missing)

    assert ErrorCode.INVALID_TOPIC_EXCEPTION == found.error_code


async def test_colliding_topic_name_is_not_created(broker: Broker) -> None:
    await create(broker, "a.b")

    found = await topic(broker, "a_b")

    assert ErrorCode.INVALID_TOPIC_EXCEPTION == found.error_code


async def test_duplicate_topics_are_answered_once(broker: Broker) -> None:
    response = await metadata(broker, "t", "t")

    assert ["t"] == [each.name for each in response.topics]


async def test_topics_are_found_by_id(broker: Broker) -> None:
    created = await create(broker)
    nobody = uuid4()

    response = await metadata(broker, ids=(created.topic_id, nobody))

    assert [("t", ErrorCode.NONE, created.topic_id), (None, ErrorCode.UNKNOWN_TOPIC_ID, nobody)] == [
        (each.name, each.error_code, each.topic_id) for each in response.topics
    ]


@pytest.mark.parametrize("version", [10, 11])
async def test_ids_and_null_names_are_invalid_before_version_12(broker: Broker, version: int) -> None:
    created = await create(broker)

    response = await metadata(broker, "t", version=version, ids=(created.topic_id,))

    assert [("t", ErrorCode.INVALID_REQUEST, ZERO_UUID), ("", ErrorCode.INVALID_REQUEST, ZERO_UUID)] == [
        (each.name, each.error_code, each.topic_id) for each in response.topics
    ]


async def test_authorized_operations_are_returned_only_when_requested(broker: Broker) -> None:
    await create(broker)

    silent = await metadata(broker, "t", version=8)
    asked = await metadata(
        broker,
        "t",
        version=8,
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )

    assert (AUTHORIZED_OPERATIONS_OMITTED, AUTHORIZED_OPERATIONS_OMITTED) == (
        silent.cluster_authorized_operations,
        silent.topics[0].topic_authorized_operations,
    )
    # Read, write, create, delete, alter, describe, describe and alter configs.
    assert 0b1101_1111_1000 == asked.topics[0].topic_authorized_operations
    assert 0b1_1111_1010_0000 == asked.cluster_authorized_operations


async def test_topic_created_concurrently_by_another_client_is_returned(broker: Broker) -> None:
    storage = broker._storage
    looked = 0

    async def look(name: str) -> object:
        nonlocal looked
        looked += 1
        if looked == 1:
            await create(broker, name, partitions=7)
            return None
        return (await storage.topics()).get(name)

    install(broker, Shim(storage, topic=look, topics=nothing))
    found = await topic(broker, "raced")

    assert (ErrorCode.NONE, 7) == (found.error_code, len(found.partitions))


async def test_leaders_are_among_the_brokers_while_another_broker_joins(broker: Broker) -> None:
    await create(broker, partitions=8)
    storage, membership = broker._storage, broker.membership
    joining = evolve(membership.own, node_id=2)

    async def look(name: str) -> object:
        both = {1: membership.own, 2: joining}
        membership._use(both, both)
        return await storage.topic(name)

    install(broker, Shim(storage, topic=look, topics=nothing))
    responses = [await metadata(broker, "t") for _ in range(2)]

    assert [{1}, {1, 2}] == [{node.node_id for node in response.brokers} for response in responses]
    assert [{1}, {1, 2}] == [
        {partition.leader_id for partition in response.topics[0].partitions} for response in responses
    ]


async def test_unreachable_storage_is_an_error_of_the_topic(broker: Broker) -> None:
    install(broker, Shim(broker._storage, topic=away))

    found = await topic(broker, "t")

    assert ErrorCode.KAFKA_STORAGE_ERROR == found.error_code


async def test_connection_ends_when_topics_cannot_be_listed(broker: Broker) -> None:
    install(broker, Shim(broker._storage, topics=away))

    with pytest.raises(Disconnect):
        await metadata(broker, all_topics=True)


async def test_newest_known_leader_epoch_is_returned(broker: Broker) -> None:
    await create(broker, partitions=2)
    install(broker, Shim(broker._storage, newest_leader_epoch=3))

    found = await topic(broker, "t")

    assert [3, 3] == [each.leader_epoch for each in found.partitions]


async def test_rack_is_returned() -> None:
    broker = await new_broker(broker_rack="r1")

    response = await metadata(broker)

    assert "r1" == response.brokers[0].rack
    assert Config().broker_rack is None


async def nothing() -> dict[str, object]:
    return {}


def decoded(response: MetadataResponse, version: int) -> MetadataResponse:
    pieces: list[Buffer] = []
    encode(response, version, pieces.append)
    data = memoryview(b"".join(pieces))
    found, end = decode(MetadataResponse, version, data)
    assert len(data) == end
    return found


@pytest.mark.parametrize("version", range(14))
async def test_large_responses_equal_small_ones(broker: Broker, version: int) -> None:
    names = [f"t{number}" for number in range(150)]
    for number, name in enumerate(names):
        await create(broker, name, partitions=number + 1)
    install(broker, Shim(broker._storage, newest_leader_epoch=3))
    missing = {} if version < 4 else {"create_missing": False}

    large = decoded(await metadata(broker, *names, "no", version=version, **missing), version)
    small = [(await metadata(broker, name, version=version, **missing)).topics[0] for name in names]

    assert [(name, number + 1) for number, name in enumerate(names)] == [
        (topic.name, len(topic.partitions)) for topic in large.topics[:-1]
    ]
    assert [decoded_topic(each, version) for each in small] == large.topics[:-1]
    epochs = {each.leader_epoch for each in large.topics[149].partitions}
    assert {3 if version >= 7 else -1} == epochs


def decoded_topic(topic: MetadataResponseTopic, version: int) -> MetadataResponseTopic:
    response = MetadataResponse(brokers=[], cluster_id=None, controller_id=1, topics=[topic])
    return decoded(response, version).topics[0]


async def test_large_responses_wait_for_memory(broker: Broker) -> None:
    await create(broker, partitions=10_000)
    broker.answers.limit = 1000
    broker.answers.change(1000)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(metadata, broker, "t"))
        await wait_all_tasks_blocked()
        assert broker.answers.is_waited_for
        await metadata(broker, "small")
        broker.answers.change(-1100)

    assert broker.answers.taken > 200_000
