"""Describe the cluster, describe and alter settings, and add partitions: what the command line needs.

Requests are not retried, so that the caller learns the outcome of an alteration. Errors are KafkaErrors with the
broker's message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import frozen

from korvet.client.client import Client
from korvet.client.cluster import raise_for
from korvet.client.model import TopicPartition
from korvet.protocol.errors import BrokerNotAvailable
from korvet.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from korvet.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from korvet.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from korvet.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from korvet.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from korvet.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from korvet.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
SOURCES = {
    1: "topic",
    2: "broker, altered",
    3: "all brokers, altered",
    4: "broker",
    5: "default",
    6: "broker, altered",
    7: "client metrics",
    8: "group",
}
TIMEOUT_MS = 30_000
TOPICS_A_REQUEST = 500


@frozen
class Resource:
    """A resource that has settings: a topic, or a broker by its id."""

    kind: int
    name: str

    def node_id(self, client: Client) -> int | None:
        """Return the id of the broker to ask if the resource is a broker, else None. Raises BrokerNotAvailable."""
        if self.kind != BROKER:
            return None
        if int(self.name) not in client.brokers:
            raise BrokerNotAvailable(f"there is no broker {self.name}")
        return int(self.name)


@frozen
class DescribedSetting:
    """A setting as a broker describes it. `value` is None if the setting has none or is sensitive."""

    name: str
    value: str | None
    source: str
    read_only: bool
    sensitive: bool
    documentation: str


async def describe_settings(
    client: Client, resource: Resource, names: Sequence[str] | None = None
) -> list[DescribedSetting]:
    """Return a resource's settings, all or those named, sorted by name.

    Raises UnknownTopicOrPartition, InvalidRequest, …
    """
    asked = DescribeConfigsResource(
        resource_type=resource.kind,
        resource_name=resource.name,
        configuration_keys=None if names is None else list(names),
    )
    answer = await client.request(
        DescribeConfigsRequest(resources=[asked], include_documentation=True),
        DescribeConfigsResponse,
        node_id=resource.node_id(client),
    )
    (result,) = answer.results
    raise_for(result.error_code, resource.name, result.error_message)
    return sorted(map(_setting, result.configs), key=lambda setting: setting.name)


async def topic_settings(
    client: Client, topics: Sequence[str], names: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Return the named settings of each topic that differ from the defaults. Topics with an error have none.

    Brokers leave out names that they do not know. Raises KafkaError.
    """
    described = await described_topics(client, topics, names)
    return {
        topic: {
            each.name: each.value for each in settings if each.value is not None and each.source == "topic"
        }
        for topic, settings in described.items()
    }


async def described_topics(
    client: Client, topics: Sequence[str], names: Sequence[str]
) -> dict[str, list[DescribedSetting]]:
    """Return the named settings of each topic, without documentation. Topics with an error have none.

    Brokers leave out names that they do not know. Raises KafkaError.
    """
    found: dict[str, list[DescribedSetting]] = {topic: [] for topic in topics}
    for first in range(0, len(topics), TOPICS_A_REQUEST):
        asked = [
            DescribeConfigsResource(resource_type=TOPIC, resource_name=topic, configuration_keys=list(names))
            for topic in topics[first : first + TOPICS_A_REQUEST]
        ]
        answer = await client.request(DescribeConfigsRequest(resources=asked), DescribeConfigsResponse)
        for result in answer.results:
            found[result.resource_name] = [_setting(entry) for entry in result.configs]
    return found


def _setting(entry: DescribeConfigsResourceResult) -> DescribedSetting:
    return DescribedSetting(
        entry.name,
        entry.value,
        SOURCES.get(entry.config_source, "unknown"),
        entry.read_only,
        entry.is_sensitive,
        entry.documentation or "",
    )


async def alter_settings(
    client: Client,
    resource: Resource,
    changes: Mapping[str, tuple[int, str | None]],
    *,
    validate_only: bool = False,
) -> None:
    """Set, delete, append to or subtract from settings, all or none. Raises InvalidConfig, …"""
    asked = AlterConfigsResource(
        resource_type=resource.kind,
        resource_name=resource.name,
        configs=[
            AlterableConfig(name=name, config_operation=operation, value=value)
            for name, (operation, value) in changes.items()
        ],
    )
    answer = await client.request(
        IncrementalAlterConfigsRequest(resources=[asked], validate_only=validate_only),
        IncrementalAlterConfigsResponse,
        node_id=resource.node_id(client),
    )
    for result in answer.responses:
        raise_for(result.error_code, resource.name, result.error_message)


async def add_partitions(client: Client, topic: str, count: int, *, validate_only: bool = False) -> None:
    """Increase the number of a topic's partitions to `count`. Raises InvalidPartitions, UnknownTopicOrPartition, …"""
    asked = CreatePartitionsTopic(name=topic, count=count, assignments=None)
    answer = await client.request(
        CreatePartitionsRequest(topics=[asked], timeout_ms=TIMEOUT_MS, validate_only=validate_only),
        CreatePartitionsResponse,
        node_id=client.controller_id,
    )
    for result in answer.results:
        raise_for(result.error_code, result.name, result.error_message)


@frozen
class PartitionSize:
    """The size of a partition in bytes, in a log directory of a broker."""

    broker_id: int
    log_dir: str
    tp: TopicPartition
    size: int


async def describe_cluster(client: Client) -> DescribeClusterResponse:
    """Return the cluster's id, controller and brokers."""
    request = DescribeClusterRequest(include_cluster_authorized_operations=False)
    answer = await client.request(request, DescribeClusterResponse)
    raise_for(answer.error_code, "the cluster", answer.error_message)
    return answer


async def describe_log_dirs(
    client: Client, *, topics: Sequence[str] = (), broker_ids: Sequence[int] = ()
) -> list[PartitionSize]:
    """Return the sizes of partitions, of all topics and brokers or those named, sorted.

    Raises UnknownTopicOrPartition, BrokerNotAvailable, ClusterAuthorizationFailed, …
    """
    partitions = None
    if topics:
        described = [await client.topic(name) for name in dict.fromkeys(topics)]
        partitions = [
            DescribableLogDirTopic(topic=topic.name, partitions=[p.partition for p in topic.partitions])
            for topic in described
        ]
    found = []
    for node_id in dict.fromkeys(broker_ids) or sorted(client.brokers):
        broker = Resource(BROKER, str(node_id)).node_id(client)
        answer = await client.request(
            DescribeLogDirsRequest(topics=partitions), DescribeLogDirsResponse, node_id=broker
        )
        raise_for(answer.error_code, f"log directories of broker {node_id}")
        for result in answer.results:
            raise_for(result.error_code, f"{result.log_dir} of broker {node_id}")
            found += [
                PartitionSize(
                    node_id,
                    result.log_dir,
                    TopicPartition(topic.name, partition.partition_index),
                    partition.partition_size,
                )
                for topic in result.topics
                for partition in topic.partitions
            ]
    return sorted(found, key=lambda each: (each.broker_id, each.log_dir, each.tp))


async def describe_users(client: Client) -> dict[str, dict[int, int]]:
    """Return the iterations of all SCRAM credentials, by user name and mechanism (1: SHA-256, 2: SHA-512)."""
    answer = await client.request(
        DescribeUserScramCredentialsRequest(users=None), DescribeUserScramCredentialsResponse
    )
    raise_for(answer.error_code, "users", answer.error_message)
    return {
        result.user: {info.mechanism: info.iterations for info in result.credential_infos}
        for result in answer.results
    }


async def alter_user(client: Client, change: ScramCredentialUpsertion | ScramCredentialDeletion) -> None:
    """Add, replace or delete a SCRAM credential of a user. Raises ResourceNotFound, UnacceptableCredential, …"""
    request = AlterUserScramCredentialsRequest(deletions=[], upsertions=[])
    if isinstance(change, ScramCredentialDeletion):
        request.deletions.append(change)
    else:
        request.upsertions.append(change)
    answer = await client.request(request, AlterUserScramCredentialsResponse, node_id=client.controller_id)
    for result in answer.results:
        raise_for(result.error_code, result.user, result.error_message)
