from __future__ import annotations

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResult,
)
from korvet.storage.interface import TopicPartition
from tests.handlers.support import T0, Shim, append, ask, away, batch, create, install


async def describe(broker: Broker, topics: dict[str, list[int]] | None) -> DescribeLogDirsResult:
    wanted = None
    if topics is not None:
        wanted = [
            DescribableLogDirTopic(topic=name, partitions=partitions) for name, partitions in topics.items()
        ]
    response = await ask(broker, 35, 5, DescribeLogDirsRequest(topics=wanted))
    assert 0 == response.error_code
    (result,) = response.results
    assert isinstance(result, DescribeLogDirsResult)
    return result


def sizes(result: DescribeLogDirsResult) -> dict[str, dict[int, int]]:
    return {
        topic.name: {each.partition_index: each.partition_size for each in topic.partitions}
        for topic in result.topics
    }


async def test_null_requests_all_topics_with_their_sizes(broker: Broker) -> None:
    await create(broker, "t", 2)
    await create(broker, "a")
    await append(broker, T0, b"x" * 1000)
    await append(broker, T0, b"x" * 1000)

    result = await describe(broker, None)

    assert (ErrorCode.NONE, "/memory") == (result.error_code, result.log_dir)
    assert {"a": {0: 0}, "t": {0: 2 * len(batch(b"x" * 1000)), 1: 0}} == sizes(result)
    assert (-1, -1) == (result.total_bytes, result.usable_bytes)


async def test_partitions_have_no_lag_and_no_future_log(broker: Broker) -> None:
    await create(broker)

    result = await describe(broker, None)

    assert [
        DescribeLogDirsPartition(partition_index=0, partition_size=0, offset_lag=0, is_future_key=False)
    ] == result.topics[0].partitions


async def test_only_requested_existing_partitions_are_described(broker: Broker) -> None:
    await create(broker, "t", 3)
    await create(broker, "a")

    result = await describe(broker, {"t": [2, 7, 0, 2], "missing": [0], "empty": []})

    assert {"t": {2: 0, 0: 0}} == sizes(result)


async def test_empty_list_requests_no_topics(broker: Broker) -> None:
    await create(broker)

    assert {} == sizes(await describe(broker, {}))


async def test_deleted_records_do_not_count(broker: Broker) -> None:
    await create(broker)
    await append(broker, T0, b"x" * 1000)
    await broker._storage.truncate_before(TopicPartition("t", 0), 1)

    assert {"t": {0: 0}} == sizes(await describe(broker, None))


async def test_unreachable_storage_is_an_offline_directory(broker: Broker) -> None:
    await create(broker)
    install(broker, Shim(broker._storage, sizes=away))

    result = await describe(broker, None)

    assert (ErrorCode.KAFKA_STORAGE_ERROR, []) == (result.error_code, result.topics)
