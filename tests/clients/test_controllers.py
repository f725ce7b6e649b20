"""Requests to the controller, answered as by a cluster in which each partition has one replica."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import ElectionType, KafkaError
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import (
    InvalidReplicationAssignmentError,
    LogDirNotFoundError,
    NoError,
    NoReassignmentInProgressError,
    UnknownTopicOrPartitionError,
)

from tests.clients.confluent import Confluent
from tests.clients.interface import LIMIT_S
from tests.processes import KorvetProcess


@pytest.fixture
def admin(broker: KorvetProcess, topic: str) -> Iterator[KafkaAdminClient]:
    """Return a client; the topic has two partitions."""
    Confluent(broker.bootstrap_servers).create_topic(topic, partitions=2)
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    yield client
    client.close()


def replicas(admin: KafkaAdminClient, topic: str) -> dict[int, list[int]]:
    (found,) = admin.describe_topics([topic])
    return {each["partition_index"]: each["replica_nodes"] for each in found["partitions"]}


def test_no_partition_needs_an_election(broker: KorvetProcess, admin: KafkaAdminClient, topic: str) -> None:
    client = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    asked = [ConfluentPartition(topic, number) for number in (0, 2)]

    found = client.elect_leaders(ElectionType.PREFERRED, asked).result(LIMIT_S)

    assert {0: KafkaError.ELECTION_NOT_NEEDED, 2: KafkaError.UNKNOWN_TOPIC_OR_PART} == {
        tp.partition: error.code() for tp, error in found.items()
    }
    response = admin.elect_leaders(0, {topic: [0, 1]})  # which ignores that no election is needed
    ((results,),) = [[each.partition_result] for each in response.replica_election_results]
    assert [0, 1] == [each.partition_id for each in results]
    assert not client.elect_leaders(ElectionType.PREFERRED, None).result(LIMIT_S)


def test_partitions_stay_on_their_brokers(admin: KafkaAdminClient, topic: str) -> None:
    present = replicas(admin, topic)
    other = [99]

    found = admin.alter_partition_reassignments(
        {
            TopicPartition(topic, 0): present[0],
            TopicPartition(topic, 1): other,
            TopicPartition(topic, 2): other,
        }
    )
    cancelled = admin.alter_partition_reassignments({TopicPartition(topic, 0): None})

    errors = [found[TopicPartition(topic, number)] for number in range(3)]
    assert [None, InvalidReplicationAssignmentError, UnknownTopicOrPartitionError] == errors
    assert [NoReassignmentInProgressError] == [*cancelled.values()]
    assert present == replicas(admin, topic)


def test_replicas_stay_in_the_only_directory(admin: KafkaAdminClient, topic: str) -> None:
    broker_id = replicas(admin, topic)[0][0]
    path = next(
        each["log_dir"]
        for found in admin.describe_log_dirs()
        if found["broker"] == broker_id
        for each in found["log_dirs"]
    )

    found = [
        [*admin.alter_replica_log_dirs({(topic, 0, broker_id): each}).values()] for each in (path, "/nowhere")
    ]

    assert [[NoError], [LogDirNotFoundError]] == found


def test_quorum_has_every_broker(admin: KafkaAdminClient) -> None:
    cluster = admin.describe_cluster()

    quorum = admin.describe_metadata_quorum()

    ((partition,),) = [topic["partitions"] for topic in quorum["topics"]]
    voters = [each["replica_id"] for each in partition["current_voters"]]
    observers = [each["replica_id"] for each in partition["observers"]]
    assert [cluster["controller_id"]] == [partition["leader_id"]] == voters
    assert sorted(each["broker_id"] for each in cluster["brokers"]) == sorted(voters + observers)


def test_features_have_the_levels_that_brokers_serve(admin: KafkaAdminClient) -> None:
    features = admin.describe_features()
    assert {"group.version", "transaction.version"} <= features.keys()

    same = admin.update_features({name: each["finalized"][1] for name, each in features.items()})

    assert dict.fromkeys(features, "OK") == same
