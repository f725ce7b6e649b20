from __future__ import annotations

from typing import Any

import pytest

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from korvet.storage.interface import TopicPartition
from tests.handlers.support import NOW_MS, T0, Shim, append, ask, away, create, install
from tests.handlers.transactional import TransactionalProducer, coordinating

LATEST, EARLIEST, MAX, EARLIEST_LOCAL, TIERED, PENDING = -1, -2, -3, -4, -5, -6


async def list_offsets(
    broker: Broker, *asked: tuple[str, int, int], version: int = 11, isolation_level: int = 0, epoch: int = -1
) -> ListOffsetsResponse:
    topics: dict[str, ListOffsetsTopic] = {}
    for name, number, timestamp in asked:
        topic = topics.setdefault(name, ListOffsetsTopic(name=name, partitions=[]))
        topic.partitions.append(
            ListOffsetsPartition(partition_index=number, current_leader_epoch=epoch, timestamp=timestamp)
        )
    request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation_level, topics=list(topics.values()))
    response = await ask(broker, 2, version, request)
    assert isinstance(response, ListOffsetsResponse)
    return response


async def one(broker: Broker, timestamp: int, **options: Any) -> ListOffsetsPartitionResponse:
    response = await list_offsets(broker, ("t", 0, timestamp), **options)
    return response.topics[0].partitions[0]


async def found(broker: Broker, timestamp: int, **options: Any) -> tuple[int, int, int, int]:
    answer = await one(broker, timestamp, **options)
    return answer.error_code, answer.offset, answer.timestamp, answer.leader_epoch


@pytest.fixture
async def written(broker: Broker) -> Broker:
    """Offsets 0 to 4 with the timestamps 100, 300, 200, 500, 400."""
    await create(broker)
    await append(broker, T0, b"a", b"b", timestamps=[100, 300])
    await append(broker, T0, b"c", b"d", b"e", timestamps=[200, 500, 400])
    return broker


async def test_latest_is_the_next_offset(written: Broker) -> None:
    assert (0, 5, -1, 0) == await found(written, LATEST)


async def test_earliest_is_the_first_record_with_its_timestamp(written: Broker) -> None:
    assert (0, 0, 100, 0) == await found(written, EARLIEST)
    assert (0, 0, 100, 0) == await found(written, EARLIEST_LOCAL)


async def test_earliest_follows_the_log_start(written: Broker) -> None:
    await written._storage.truncate_before(T0, 2)

    assert (0, 2, 200, 0) == await found(written, EARLIEST)


async def test_max_timestamp_is_the_record_with_the_largest_timestamp(written: Broker) -> None:
    assert (0, 3, 500, 0) == await found(written, MAX)


async def test_tiered_offsets_are_unknown_without_remote_storage(written: Broker) -> None:
    assert (0, -1, -1, -1) == await found(written, TIERED)
    assert (0, -1, -1, -1) == await found(written, PENDING)


@pytest.mark.parametrize(
    "timestamp, offset, at",
    [(0, 0, 100), (100, 0, 100), (101, 1, 300), (250, 1, 300), (301, 3, 500), (450, 3, 500), (500, 3, 500)],
)
async def test_timestamp_finds_the_first_record_at_or_after_it(
    written: Broker, timestamp: int, offset: int, at: int
) -> None:
    assert (0, offset, at, 0) == await found(written, timestamp)


async def test_timestamp_after_every_record_is_unknown(written: Broker) -> None:
    assert (0, -1, -1, -1) == await found(written, 501)


async def test_empty_partition(broker: Broker) -> None:
    await create(broker)

    assert (0, 0, -1, 0) == await found(broker, LATEST)
    assert (0, 0, -1, 0) == await found(broker, EARLIEST)
    assert (0, -1, -1, -1) == await found(broker, MAX)
    assert (0, -1, -1, -1) == await found(broker, 0)


async def test_truncated_empty_partition_keeps_its_latest_offset(written: Broker) -> None:
    await written._storage.truncate_before(T0, 5)

    assert (0, 5, -1, 0) == await found(written, EARLIEST)
    assert (0, 5, -1, 0) == await found(written, LATEST)


async def test_read_committed_ends_at_the_last_stable_offset(written: Broker) -> None:
    async with coordinating(written):
        producer = TransactionalProducer(written)
        await producer.init()
        await producer.send(b"f")
        await append(written, T0, b"g", timestamps=[NOW_MS + 1])

        assert 7 == (await one(written, LATEST, isolation_level=0)).offset
        assert 5 == (await one(written, LATEST, isolation_level=1)).offset
        assert (0, 1, 300, 0) == await found(written, 250, isolation_level=1)
        assert (0, 5, NOW_MS, 0) == await found(written, 501)
        assert (0, -1, -1, -1) == await found(written, 501, isolation_level=1)
        assert (0, -1, -1, -1) == await found(written, MAX, isolation_level=1)
        await producer.finish()

    assert 8 == (await one(written, LATEST, isolation_level=1)).offset
    assert (0, 6, NOW_MS + 1, 0) == await found(written, MAX, isolation_level=1)


@pytest.mark.parametrize(
    "timestamp, first_version", [(MAX, 7), (EARLIEST_LOCAL, 8), (TIERED, 9), (PENDING, 11)]
)
async def test_special_timestamps_require_their_versions(
    written: Broker, timestamp: int, first_version: int
) -> None:
    before = await one(written, timestamp, version=first_version - 1)
    since = await one(written, timestamp, version=first_version)

    assert (ErrorCode.UNSUPPORTED_VERSION, -1, -1) == (before.error_code, before.offset, before.timestamp)
    assert ErrorCode.NONE == since.error_code


@pytest.mark.parametrize("timestamp", [-7, -(2**63)])
async def test_other_negative_timestamps_are_refused(written: Broker, timestamp: int) -> None:
    assert (ErrorCode.UNSUPPORTED_VERSION, -1, -1, -1) == await found(written, timestamp)


async def test_leader_epoch_is_omitted_before_version_4(written: Broker) -> None:
    assert -1 == (await one(written, LATEST, version=3)).leader_epoch


@pytest.mark.parametrize(
    "epoch, error", [(0, ErrorCode.NONE), (1, ErrorCode.UNKNOWN_LEADER_EPOCH), (-1, ErrorCode.NONE)]
)
async def test_current_leader_epoch_is_checked(written: Broker, epoch: int, error: ErrorCode) -> None:
    assert error == (await one(written, LATEST, epoch=epoch)).error_code


async def test_errors_have_no_offset(written: Broker) -> None:
    response = await list_offsets(written, ("none", 0, LATEST), ("t", 1, EARLIEST), ("t", 0, LATEST))

    unknown = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
    assert [("none", [unknown]), ("t", [unknown, (ErrorCode.NONE, 5, -1)])] == [
        (topic.name, [(each.error_code, each.offset, each.timestamp) for each in topic.partitions])
        for topic in response.topics
    ]


async def test_duplicate_partitions_are_refused(written: Broker) -> None:
    response = await list_offsets(written, ("t", 0, LATEST), ("t", 0, EARLIEST))

    assert [ErrorCode.INVALID_REQUEST] * 2 == [each.error_code for each in response.topics[0].partitions]


async def test_invalid_isolation_levels_are_refused(written: Broker) -> None:
    assert ErrorCode.INVALID_REQUEST == (await one(written, LATEST, isolation_level=2)).error_code


async def test_partitions_are_answered_in_request_order(broker: Broker) -> None:
    await create(broker, partitions=200)
    await append(broker, TopicPartition("t", 150))

    response = await list_offsets(broker, *(("t", number, LATEST) for number in range(200)))

    assert [(number, int(number == 150)) for number in range(200)] == [
        (each.partition_index, each.offset) for each in response.topics[0].partitions
    ]


async def test_unreachable_storage_is_an_error_of_the_partition(written: Broker) -> None:
    install(written, Shim(written._storage, latest=away))

    assert (ErrorCode.KAFKA_STORAGE_ERROR, -1, -1, -1) == await found(written, LATEST)
