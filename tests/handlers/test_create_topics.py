from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from korvet.broker.broker import Broker
from korvet.broker.topics import SETTINGS
from korvet.config import load_config
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from korvet.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from korvet.protocol.messages.metadata import MetadataRequest
from korvet.protocol.schema import ZERO_UUID
from tests.handlers.support import Shim, ask, away, create, install, new_broker, reconfigure


def wanted(
    name: str = "t",
    partitions: int = -1,
    factor: int = -1,
    assignments: dict[int, list[int]] | None = None,
    **settings: str | None,
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
            for index, brokers in (assignments or {}).items()
        ],
        configs=[
            CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in settings.items()
        ],
    )


async def create_topics(
    broker: Broker, *topics: CreatableTopic, validate_only: bool = False, version: int = 7
) -> list[CreatableTopicResult]:
    request = CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
    response = await ask(broker, 19, version, request)
    assert isinstance(response, CreateTopicsResponse)
    return response.topics


async def one(broker: Broker, *arguments: Any, **options: Any) -> CreatableTopicResult:
    (result,) = await create_topics(broker, wanted(*arguments, **options))
    return result


async def test_created_topic_is_stored_and_returned(broker: Broker) -> None:
    result = await one(broker, "t", 3, 1)

    stored = await broker._storage.topic("t")
    assert stored is not None
    assert ("t", ErrorCode.NONE, None, stored.topic_id, 3, 1) == (
        result.name,
        result.error_code,
        result.error_message,
        result.topic_id,
        result.num_partitions,
        result.replication_factor,
    )
    assert 3 == stored.partitions


async def test_minus_1_selects_the_default_of_the_broker() -> None:
    broker = await new_broker(num_partitions=5)

    assert 5 == (await one(broker)).num_partitions


async def test_settings_are_stored_and_all_settings_are_returned_sorted(broker: Broker) -> None:
    result = await one(broker, retention_ms="1000", segment_bytes="1048576")

    stored = await broker._storage.topic("t")
    assert stored is not None
    assert {"retention.ms": "1000", "segment.bytes": "1048576"}.items() <= stored.settings.items()
    assert result.configs is not None
    told = {each.name: (each.value, each.config_source, each.read_only) for each in result.configs}
    assert sorted(SETTINGS) == list(told)
    assert ("1000", 1, False) == told["retention.ms"]
    assert ("record", 5, True) == told["storage.layout"]
    assert ("dense", 5, True) == told["offset.mapping"]
    assert ("1048588", 5, False) == told["max.message.bytes"]


async def test_config_source_of_broker_settings_is_returned() -> None:
    broker = await new_broker()
    broker.config = load_config(flags={"message.max.bytes": "2000", "log.retention.hours": "1"})

    result = await one(broker)

    assert result.configs is not None
    told = {each.name: (each.value, each.config_source) for each in result.configs}
    assert ("2000", 4) == told["max.message.bytes"]
    assert ("3600000", 4) == told["retention.ms"]


async def test_validate_only_creates_no_topic(broker: Broker) -> None:
    await create(broker, "there")

    results = await create_topics(broker, wanted("t", 3), wanted("there"), wanted("a b"), validate_only=True)

    assert [
        (ErrorCode.NONE, 3, ZERO_UUID),
        (ErrorCode.TOPIC_ALREADY_EXISTS, -1, ZERO_UUID),
        (ErrorCode.INVALID_TOPIC_EXCEPTION, -1, ZERO_UUID),
    ] == [(each.error_code, each.num_partitions, each.topic_id) for each in results]
    assert await broker._storage.topic("t") is None


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ä", "x" * 250])
async def test_invalid_names_are_refused(broker: Broker, name: str) -> None:
    assert ErrorCode.INVALID_TOPIC_EXCEPTION == (await one(broker, name)).error_code


async def test_names_that_differ_only_in_dots_and_underscores_are_refused(broker: Broker) -> None:
    await create(broker, "a.b_c")

    results = await create_topics(broker, wanted("a_b.c"), wanted("a.b-c"))

    assert [ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.NONE] == [each.error_code for each in results]
    assert "a.b_c" in str(results[0].error_message)


async def test_cluster_metadata_topic_is_refused(broker: Broker) -> None:
    assert ErrorCode.INVALID_REQUEST == (await one(broker, "__cluster_metadata")).error_code


async def test_duplicate_topics_are_refused_and_answered_once(broker: Broker) -> None:
    results = await create_topics(broker, wanted("a"), wanted("b"), wanted("a"))

    assert [("a", ErrorCode.INVALID_REQUEST), ("b", ErrorCode.NONE)] == [
        (each.name, each.error_code) for each in results
    ]
    assert await broker._storage.topic("a") is None


@pytest.mark.parametrize("partitions", [0, -2, 11, 10_000])
async def test_invalid_partition_counts_are_refused(broker: Broker, partitions: int) -> None:
    reconfigure(broker, max_partitions=10)
    assert ErrorCode.INVALID_PARTITIONS == (await one(broker, "t", partitions)).error_code


@pytest.mark.parametrize("partitions", [(10_001,), (2**31 - 1,), (5_000, 5_001), (-2, 10_000, -1)])
async def test_requests_for_too_many_partitions_are_refused(
    broker: Broker, partitions: tuple[int, ...]
) -> None:
    results = await create_topics(
        broker, *(wanted(f"t{number}", count) for number, count in enumerate(partitions))
    )

    said = {(each.error_code, each.error_message) for each in results}
    assert {(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")} == said
    assert not await broker._storage.topics()


async def test_partitions_beyond_the_broker_limit_are_refused(broker: Broker) -> None:
    reconfigure(broker, max_broker_partitions=10)
    codes = [(await one(broker, f"t{count}", count)).error_code for count in (8, 3, 2, 1)]
    assert [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION, ErrorCode.NONE, ErrorCode.POLICY_VIOLATION] == codes

    topic = await broker._storage.topic("t8")
    assert topic is not None
    await broker.delete_topic(topic)
    assert ErrorCode.NONE == (await one(broker, "t7", 7)).error_code


@pytest.mark.parametrize("factor", [0, -2])
async def test_invalid_replication_factors_are_refused(broker: Broker, factor: int) -> None:
    assert ErrorCode.INVALID_REPLICATION_FACTOR == (await one(broker, "t", 1, factor)).error_code


async def test_any_replication_factor_is_accepted_and_reported_as_1(broker: Broker) -> None:
    result = await one(broker, "t", 1, 3)

    assert (ErrorCode.NONE, 1) == (result.error_code, result.replication_factor)


async def test_strict_replication_policy_refuses_replication(broker: Broker) -> None:
    reconfigure(broker, replication_factor_policy="strict")

    results = await create_topics(broker, wanted("a", 1, 3), wanted("b", 1, 1), wanted("c", 1, -1))

    assert [ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.NONE, ErrorCode.NONE] == [
        each.error_code for each in results
    ]


async def test_policy_brokers_reports_each_broker_as_a_replica(broker: Broker) -> None:
    reconfigure(broker, replication_factor_policy="brokers")
    both = {1: broker.membership.own, 2: evolve(broker.membership.own, node_id=2)}
    broker.membership._use(both, both)

    refused, created = await create_topics(broker, wanted("a", 1, 3), wanted("b", 4, 2))
    described = (await ask(broker, 3, 12, MetadataRequest(topics=None))).topics[0].partitions
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="b")])
    listed = (await ask(broker, 75, 0, request)).topics[0].partitions

    assert ErrorCode.INVALID_REPLICATION_FACTOR == refused.error_code
    assert 2 == created.replication_factor
    for partitions in (described, listed):
        assert {1, 2} == {each.leader_id for each in partitions}
        assert [[each.leader_id, 3 - each.leader_id] for each in partitions] == [
            list(each.replica_nodes) for each in partitions
        ]
        assert [each.replica_nodes for each in partitions] == [each.isr_nodes for each in partitions]


async def test_manual_assignments_are_accepted(broker: Broker) -> None:
    result = await one(broker, assignments={1: [1], 0: [1], 2: [1]})

    assert (ErrorCode.NONE, 3) == (result.error_code, result.num_partitions)


@pytest.mark.parametrize(
    "options, error",
    [
        ({"assignments": {0: [1]}, "partitions": 1}, ErrorCode.INVALID_REQUEST),
        ({"assignments": {0: [1]}, "factor": 1}, ErrorCode.INVALID_REQUEST),
        ({"assignments": {1: [1]}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": {0: []}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": {0: [2]}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": {0: [1, 1]}}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
    ids=["with partitions", "with factor", "not from 0", "empty", "unknown broker", "broker twice"],
)
async def test_invalid_assignments_are_refused(
    broker: Broker, options: dict[str, Any], error: ErrorCode
) -> None:
    assert error == (await one(broker, **options)).error_code


@pytest.mark.parametrize(
    "name, value, accepted",
    [
        ("korvet.lake.enable", "yes", "true, false"),
        ("korvet.lake.lag.ms", "99", "a whole number, at least 100"),
        ("korvet.lake.retention.ms", "-2", "a whole number, at least -1"),
        ("korvet.lake.decode", "xml", "none, json, json-schema, avro, protobuf"),
        ("korvet.lake.on.error", "ignore", "dlq, skip, stop"),
        ("korvet.lake.iceberg.enable", "1", "true, false"),
    ],
)
async def test_invalid_settings_of_lake_tables_are_reported_with_the_accepted_values(
    broker: Broker, name: str, value: str, accepted: str
) -> None:
    result = await one(broker, **{name: value})

    assert ErrorCode.INVALID_CONFIG == result.error_code
    assert f"{name}: " in str(result.error_message)
    assert f"(accepted: {accepted})" in str(result.error_message)


async def test_every_invalid_setting_is_reported_with_the_accepted_values(broker: Broker) -> None:
    result = await one(
        broker, compression_type="brotli", retention_sm="1", min_insync_replicas="0", segment_ms=None
    )

    assert ErrorCode.INVALID_CONFIG == result.error_code
    message = str(result.error_message)
    assert "compression.type" in message
    assert "producer, uncompressed, gzip, snappy, lz4, zstd" in message
    assert "retention.sm (did you mean retention.ms?)" in message
    assert "min.insync.replicas" in message
    assert "segment.ms" in message
    assert await broker._storage.topic("t") is None


@pytest.mark.parametrize(
    "settings",
    [{"remote_storage_enable": "TRUE"}, {"cleanup_policy": "compact", "remote_storage_enable": "true"}],
)
async def test_remote_storage_requires_a_lake_and_no_compaction(
    broker: Broker, settings: dict[str, str]
) -> None:
    assert ErrorCode.INVALID_CONFIG == (await one(broker, **settings)).error_code


@pytest.mark.parametrize("policy", ["compact", "delete,compact"])
async def test_compacted_topics_are_created(broker: Broker, policy: str) -> None:
    result = await one(broker, cleanup_policy=policy)
    topic = await broker._storage.topic("t")

    assert ErrorCode.NONE == result.error_code
    assert topic.config.is_compacted


async def test_errors_are_returned_in_every_version(broker: Broker) -> None:
    for version in range(2, 8):
        (result,) = await create_topics(broker, wanted("a b"), version=version)
        assert ErrorCode.INVALID_TOPIC_EXCEPTION == result.error_code


async def test_unreachable_storage_is_an_error_of_the_topic(broker: Broker) -> None:
    install(broker, Shim(broker._storage, topics=away))

    assert ErrorCode.KAFKA_STORAGE_ERROR == (await one(broker)).error_code
