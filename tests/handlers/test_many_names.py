"""Requests with very many names, of a client that may do nothing: other tasks run meanwhile, and the log is short."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from time import thread_time
from typing import Any

import pytest
import trio

from korvet.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, EntityData, EntryData
from korvet.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResource
from korvet.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from korvet.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from korvet.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from korvet.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from korvet.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from korvet.protocol.messages.delete_groups import DeleteGroupsRequest
from korvet.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from korvet.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from korvet.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from korvet.protocol.messages.describe_groups import DescribeGroupsRequest
from korvet.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from korvet.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from korvet.protocol.messages.find_coordinator import FindCoordinatorRequest
from korvet.protocol.messages.incremental_alter_configs import AlterConfigsResource as IncrementalResource
from korvet.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from korvet.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from korvet.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from korvet.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from korvet.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from korvet.protocol.schema import schema_of
from tests.handlers.acls import secured_broker
from tests.handlers.support import ask

COUNT = 20_000
NAMES = [f"n{number}" for number in range(COUNT)]


def requests() -> dict[str, Callable[[], tuple[int, Any]]]:
    """Return what makes a request of each API that takes a list of names, with its version."""
    return {
        "Produce": lambda: (
            11,
            ProduceRequest(
                transactional_id=None,
                acks=-1,
                timeout_ms=0,
                topic_data=[
                    TopicProduceData(name=name, partition_data=[PartitionProduceData(index=0, records=())])
                    for name in NAMES
                ],
            ),
        ),
        "Fetch": lambda: (
            12,
            FetchRequest(
                max_wait_ms=0,
                min_bytes=1,
                max_bytes=1_000,
                session_epoch=-1,
                topics=[
                    FetchTopic(
                        topic=name,
                        partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)],
                    )
                    for name in NAMES
                ],
                forgotten_topics_data=[],
            ),
        ),
        "ListOffsets": lambda: (
            7,
            ListOffsetsRequest(
                replica_id=-1,
                topics=[
                    ListOffsetsTopic(
                        name=name, partitions=[ListOffsetsPartition(partition_index=0, timestamp=0)]
                    )
                    for name in NAMES
                ],
            ),
        ),
        "Metadata": lambda: (12, MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in NAMES])),
        "OffsetCommit": lambda: (
            8,
            OffsetCommitRequest(
                group_id="g",
                topics=[
                    OffsetCommitRequestTopic(
                        name=name,
                        partitions=[
                            OffsetCommitRequestPartition(
                                partition_index=0, committed_offset=0, committed_metadata=""
                            )
                        ],
                    )
                    for name in NAMES
                ],
            ),
        ),
        "OffsetFetch": lambda: (
            8,
            OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=name, topics=[]) for name in NAMES]),
        ),
        "FindCoordinator": lambda: (4, FindCoordinatorRequest(key_type=0, coordinator_keys=NAMES)),
        "DescribeGroups": lambda: (5, DescribeGroupsRequest(groups=NAMES)),
        "CreateTopics": lambda: (
            7,
            CreateTopicsRequest(
                topics=[CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in NAMES],
                timeout_ms=0,
            ),
        ),
        "DeleteTopics": lambda: (
            6,
            DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in NAMES], timeout_ms=0),
        ),
        "DeleteRecords": lambda: (
            2,
            DeleteRecordsRequest(
                topics=[
                    DeleteRecordsTopic(
                        name=name, partitions=[DeleteRecordsPartition(partition_index=0, offset=0)]
                    )
                    for name in NAMES
                ],
                timeout_ms=0,
            ),
        ),
        "OffsetForLeaderEpoch": lambda: (
            4,
            OffsetForLeaderEpochRequest(
                topics=[
                    OffsetForLeaderTopic(
                        topic=name, partitions=[OffsetForLeaderPartition(partition=0, leader_epoch=0)]
                    )
                    for name in NAMES
                ]
            ),
        ),
        "CreateAcls": lambda: (
            3,
            CreateAclsRequest(
                creations=[
                    AclCreation(
                        resource_type=2,
                        resource_name=name,
                        principal="User:a",
                        host="*",
                        operation=3,
                        permission_type=3,
                    )
                    for name in NAMES
                ]
            ),
        ),
        "DeleteAcls": lambda: (
            3,
            DeleteAclsRequest(
                filters=[
                    DeleteAclsFilter(
                        resource_type_filter=2,
                        resource_name_filter=name,
                        pattern_type_filter=3,
                        principal_filter=None,
                        host_filter=None,
                        operation=1,
                        permission_type=1,
                    )
                    for name in NAMES
                ]
            ),
        ),
        "DescribeConfigs": lambda: (
            4,
            DescribeConfigsRequest(
                resources=[
                    DescribeConfigsResource(resource_type=2, resource_name=name, configuration_keys=None)
                    for name in NAMES
                ]
            ),
        ),
        "AlterConfigs": lambda: (
            2,
            AlterConfigsRequest(
                resources=[
                    AlterConfigsResource(resource_type=2, resource_name=name, configs=[]) for name in NAMES
                ],
                validate_only=False,
            ),
        ),
        "IncrementalAlterConfigs": lambda: (
            1,
            IncrementalAlterConfigsRequest(
                resources=[
                    IncrementalResource(resource_type=2, resource_name=name, configs=[]) for name in NAMES
                ],
                validate_only=False,
            ),
        ),
        "CreatePartitions": lambda: (
            3,
            CreatePartitionsRequest(
                topics=[CreatePartitionsTopic(name=name, count=2, assignments=None) for name in NAMES],
                timeout_ms=0,
                validate_only=False,
            ),
        ),
        "DeleteGroups": lambda: (2, DeleteGroupsRequest(groups_names=NAMES)),
        "AlterClientQuotas": lambda: (
            1,
            AlterClientQuotasRequest(
                entries=[
                    EntryData(entity=[EntityData(entity_type="user", entity_name=name)], ops=[])
                    for name in NAMES
                ],
                validate_only=False,
            ),
        ),
        "DescribeUserScramCredentials": lambda: (
            0,
            DescribeUserScramCredentialsRequest(users=[UserName(name=name) for name in NAMES]),
        ),
        "AlterUserScramCredentials": lambda: (
            0,
            AlterUserScramCredentialsRequest(
                deletions=[ScramCredentialDeletion(name=name, mechanism=1) for name in NAMES], upsertions=[]
            ),
        ),
        "DescribeTopicPartitions": lambda: (
            0,
            DescribeTopicPartitionsRequest(topics=[TopicRequest(name=name) for name in NAMES]),
        ),
    }


class Slices:
    """The processor time between two runs of a task that does nothing."""

    def __init__(self) -> None:
        self.count = 0
        self.longest_s = self.total_s = 0.0

    async def measure(self) -> None:
        before = thread_time()
        while True:
            await trio.lowlevel.checkpoint()
            now = thread_time()
            self.count += 1
            self.total_s += now - before
            self.longest_s = max(self.longest_s, now - before)
            before = now


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Prevent garbage collections, which here search the objects of all tests."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("name", requests())
async def test_request_with_many_denied_names_lets_others_run_and_is_logged_once(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    version, request = requests()[name]()
    broker = await secured_broker()
    key = schema_of(type(request)).key
    assert key is not None
    slices = Slices()
    with caplog.at_level(logging.INFO, "korvet.audit"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(slices.measure)
            await ask(broker, key, version, request, principal="User:alice", api_name=name)
            nursery.cancel_scope.cancel()

    lines = [each for each in caplog.records if each.name == "korvet.audit"]
    assert [name] == [each.args["api"] for each in lines if isinstance(each.args, dict)]
    assert len(lines[0].getMessage()) < 300
    assert slices.count > 10
    assert slices.longest_s < slices.total_s / 4
