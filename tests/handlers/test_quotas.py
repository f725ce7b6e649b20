"""Quotas in the responses of handlers: produced and fetched bytes, created and deleted partitions."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from trio.testing import MockClock

from korvet.broker.broker import Broker
from korvet.broker.context import RequestContext, handled
from korvet.handlers import APIS
from korvet.protocol.codec import encode
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from korvet.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from korvet.protocol.messages.delete_topics import DeleteTopicsRequest
from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.handlers.quotas import set_quotas
from tests.handlers.support import T0, append, batch, context, create, new_broker, produce_request
from tests.protocol.samples import sample

DEFAULT = {"user": None}


async def answered(broker: Broker, key: int, version: int, request: object, **values: Any) -> tuple[Any, int]:
    """Return the response, and for how many ms its client is throttled."""
    asking: RequestContext = context(version, **values)
    response = await handled(APIS[key].handle(broker, request, asking))
    return response, broker.quotas.settle(asking)


def fetch(offset: int = 0, **values: Any) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=2**20)
    return FetchRequest(
        **{"max_wait_ms": 0, "min_bytes": 0, **values}, topics=[FetchTopic(topic="t", partitions=[partition])]
    )


@pytest.mark.parametrize("acks", [-1, 0, 1])
async def test_produce_above_the_quota_is_stored_and_throttled(acks: int, autojump_clock: MockClock) -> None:
    broker = await new_broker()
    await create(broker)
    await set_quotas(broker, DEFAULT, producer_byte_rate=1000)
    request = produce_request({T0: batch()}, acks=acks)

    _, throttle_ms = await answered(broker, 0, 9, request, request_bytes=12_500)
    assert 2500 == throttle_ms
    assert 1 == (await broker.log.latest(T0)).high_watermark


async def test_time_of_a_produce_without_a_response_is_exempt(autojump_clock: MockClock) -> None:
    broker = await new_broker()
    await create(broker)
    await set_quotas(broker, DEFAULT, request_percentage=1e-9)
    throttled = [
        (await answered(broker, 0, 9, produce_request({T0: batch()}, acks=acks)))[1] for acks in (0, 1)
    ]

    assert [0, 1000] == throttled


async def test_fetch_above_the_quota_is_empty_and_is_not_charged(autojump_clock: MockClock) -> None:
    broker = await new_broker()
    await create(broker)
    await append(broker, T0, b"x" * 3000)
    await set_quotas(broker, DEFAULT, consumer_byte_rate=400)
    first, first_ms = await answered(broker, 1, 12, fetch())
    second, second_ms = await answered(broker, 1, 12, fetch())
    third, third_ms = await answered(broker, 1, 12, fetch(1))

    size = len(first.responses[0].partitions[0].records[0])
    assert 0 == first_ms
    assert 2 * size / 400 - 10 == pytest.approx(second_ms / 1000, abs=0.4)
    assert [] == second.responses
    assert 0 == broker.answers.taken - size, "of the first response, which was not sent"
    assert (0, [[]]) == (third_ms, [list(each.records or ()) for each in third.responses[0].partitions])


async def test_fetch_has_at_most_the_bytes_of_the_window(autojump_clock: MockClock) -> None:
    broker = await new_broker()
    await create(broker)
    for _ in range(5):
        await append(broker, T0, b"x" * 3000)
    await set_quotas(broker, DEFAULT, consumer_byte_rate=800)
    response, throttle_ms = await answered(broker, 1, 12, fetch())

    assert 0 == throttle_ms
    assert 2 == len(response.responses[0].partitions[0].records)


async def test_fetch_of_a_client_without_time_is_empty(autojump_clock: MockClock) -> None:
    broker = await new_broker()
    await create(broker)
    await append(broker, T0)
    await set_quotas(broker, DEFAULT, request_percentage=1e-9)
    response, throttle_ms = await answered(broker, 1, 12, fetch())

    assert (1000, []) == (throttle_ms, response.responses)


async def test_fetch_of_a_replica_is_exempt() -> None:
    broker = await new_broker()
    await create(broker)
    await append(broker, T0, b"x" * 3000)
    await set_quotas(broker, DEFAULT, request_percentage=1e-9, consumer_byte_rate=1)
    state = ReplicaState(replica_id=5, replica_epoch=0)
    response, throttle_ms = await answered(broker, 1, 12, fetch(replica_id=5, replica_state=state))

    assert 0 == throttle_ms
    assert response.responses[0].partitions[0].records


def creations(count: int) -> CreateTopicsRequest:
    topics = [
        CreatableTopic(name=f"n{number}", num_partitions=5, replication_factor=1) for number in range(count)
    ]
    return CreateTopicsRequest(topics=topics, timeout_ms=1000)


@pytest.mark.parametrize(
    "version, codes, throttled_ms",
    [(5, [0, 0, 0, 0], 9000), (6, [0, 0, 0, 89], 4000), (7, [0, 0, 0, 89], 4000)],
)
async def test_creations_above_the_quota(
    version: int, codes: list[int], throttled_ms: int, autojump_clock: MockClock
) -> None:
    broker = await new_broker()
    await set_quotas(broker, DEFAULT, controller_mutation_rate=1)
    response, throttle_ms = await answered(broker, 19, version, creations(4))

    assert codes == [topic.error_code for topic in response.topics]
    assert throttled_ms == throttle_ms
    assert codes.count(0) == len(await broker.all_topics())


@pytest.mark.parametrize("version, code", [(2, 0), (3, ErrorCode.THROTTLING_QUOTA_EXCEEDED)])
async def test_new_partitions_above_the_quota(version: int, code: int, autojump_clock: MockClock) -> None:
    broker = await new_broker()
    await create(broker)
    await set_quotas(broker, DEFAULT, controller_mutation_rate=1)
    results = []
    for count in (14, 15):
        topic = CreatePartitionsTopic(name="t", count=count, assignments=None)
        request = CreatePartitionsRequest(topics=[topic], timeout_ms=1000, validate_only=False)
        results.append(await answered(broker, 37, version, request))

    assert [0, code] == [response.results[0].error_code for response, _ in results]
    assert 0 < results[1][1]
    assert (15 if code == 0 else 14) == (await broker.find_topic("t")).partitions


@pytest.mark.parametrize("version, code", [(4, 0), (5, ErrorCode.THROTTLING_QUOTA_EXCEEDED)])
async def test_deletions_above_the_quota(version: int, code: int, autojump_clock: MockClock) -> None:
    broker = await new_broker()
    for name in "ab":
        await create(broker, name, partitions=13)
    await set_quotas(broker, DEFAULT, controller_mutation_rate=1)
    response, throttle_ms = await answered(
        broker, 20, version, DeleteTopicsRequest(topic_names=["a", "b"], timeout_ms=1000)
    )

    assert [0, code] == [topic.error_code for topic in response.responses]
    assert (15_000 if code == 0 else 2000) == throttle_ms


async def test_topic_above_the_quota_is_not_created_by_metadata(autojump_clock: MockClock) -> None:
    broker = await new_broker(num_partitions=20)
    await set_quotas(broker, DEFAULT, controller_mutation_rate=1)
    codes = []
    for name in "ab":
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
        response, _ = await answered(broker, 3, 9, request)
        codes.append(response.topics[0].error_code)

    assert [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] == codes


@pytest.mark.parametrize("key", list(APIS))
def test_throttle_time_can_be_sent_in_every_version(key: int) -> None:
    api = APIS[key]
    for version in range(api.min_version, api.max_version + 1):
        response = sample(api.response, version, Random(key))
        if hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = 5
            encode(response, version, lambda _: None)
