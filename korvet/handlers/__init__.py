"""What korvet speaks: one module per API, and the table of them all.

`APIS` is the only list there is. ApiVersions, dispatch, the README's table and the tests derive from it, so whatever
stands here is served, and nothing else is advertised: clients fall back when an API is missing, and break when
one lies.

A handler is `async def handle(broker, request, context)`: the message in, the message out, in whatever version the
codec has read it. It answers what is wrong with a topic, partition or group in that one's `error_code`, and raises
only `Disconnect`.
"""

from __future__ import annotations

from collections.abc import Mapping

from korvet.handlers import (
    alter_configs,
    api_versions,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_topic_partitions,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
)
from korvet.protocol.connection import Api
from korvet.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from korvet.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from korvet.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from korvet.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from korvet.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from korvet.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from korvet.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from korvet.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from korvet.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from korvet.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from korvet.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from korvet.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from korvet.protocol.messages.fetch import FetchRequest, FetchResponse
from korvet.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from korvet.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from korvet.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from korvet.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from korvet.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from korvet.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from korvet.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from korvet.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from korvet.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from korvet.protocol.messages.metadata import MetadataRequest, MetadataResponse
from korvet.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from korvet.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from korvet.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from korvet.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from korvet.protocol.messages.produce import ProduceRequest, ProduceResponse
from korvet.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

_table: dict[int, Api] = {}
# fmt: off
_apis = (
    Api(0, "Produce", ProduceRequest, ProduceResponse, 3, 11, 0, handle=produce.handle),
    Api(1, "Fetch", FetchRequest, FetchResponse, 4, 17, handle=fetch.handle),
    Api(2, "ListOffsets", ListOffsetsRequest, ListOffsetsResponse, 1, 11, handle=list_offsets.handle),
    Api(3, "Metadata", MetadataRequest, MetadataResponse, 0, 12, handle=metadata.handle),
    Api(8, "OffsetCommit", OffsetCommitRequest, OffsetCommitResponse, 2, 9, handle=offset_commit.handle),
    Api(9, "OffsetFetch", OffsetFetchRequest, OffsetFetchResponse, 1, 9, handle=offset_fetch.handle),
    Api(10, "FindCoordinator", FindCoordinatorRequest, FindCoordinatorResponse, 0, 6, handle=find_coordinator.handle),
    Api(11, "JoinGroup", JoinGroupRequest, JoinGroupResponse, 0, 9, handle=join_group.handle),
    Api(12, "Heartbeat", HeartbeatRequest, HeartbeatResponse, 0, 4, handle=heartbeat.handle),
    Api(13, "LeaveGroup", LeaveGroupRequest, LeaveGroupResponse, 0, 5, handle=leave_group.handle),
    Api(14, "SyncGroup", SyncGroupRequest, SyncGroupResponse, 0, 5, handle=sync_group.handle),
    Api(15, "DescribeGroups", DescribeGroupsRequest, DescribeGroupsResponse, 0, 6, handle=describe_groups.handle),
    Api(16, "ListGroups", ListGroupsRequest, ListGroupsResponse, 0, 5, handle=list_groups.handle),
    Api(18, "ApiVersions", ApiVersionsRequest, ApiVersionsResponse, 0, 4, handle=api_versions.handler(_table)),
    Api(19, "CreateTopics", CreateTopicsRequest, CreateTopicsResponse, 2, 7, handle=create_topics.handle),
    Api(20, "DeleteTopics", DeleteTopicsRequest, DeleteTopicsResponse, 1, 6, handle=delete_topics.handle),
    Api(21, "DeleteRecords", DeleteRecordsRequest, DeleteRecordsResponse, 0, 2, handle=delete_records.handle),
    Api(22, "InitProducerId", InitProducerIdRequest, InitProducerIdResponse, 0, 5, handle=init_producer_id.handle),
    Api(23, "OffsetForLeaderEpoch", OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse, 2, 4,
        handle=offset_for_leader_epoch.handle),
    Api(32, "DescribeConfigs", DescribeConfigsRequest, DescribeConfigsResponse, 1, 4, handle=describe_configs.handle),
    Api(33, "AlterConfigs", AlterConfigsRequest, AlterConfigsResponse, 0, 2, handle=alter_configs.handle),
    Api(35, "DescribeLogDirs", DescribeLogDirsRequest, DescribeLogDirsResponse, 1, 4, handle=describe_log_dirs.handle),
    Api(37, "CreatePartitions", CreatePartitionsRequest, CreatePartitionsResponse, 0, 3,
        handle=create_partitions.handle),
    Api(42, "DeleteGroups", DeleteGroupsRequest, DeleteGroupsResponse, 0, 2, handle=delete_groups.handle),
    Api(44, "IncrementalAlterConfigs", IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse, 0, 1,
        handle=incremental_alter_configs.handle),
    Api(46, "ListPartitionReassignments", ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse, 0, 0,
        handle=list_partition_reassignments.handle),
    Api(47, "OffsetDelete", OffsetDeleteRequest, OffsetDeleteResponse, 0, 0, handle=offset_delete.handle),
    Api(60, "DescribeCluster", DescribeClusterRequest, DescribeClusterResponse, 0, 2, handle=describe_cluster.handle),
    Api(75, "DescribeTopicPartitions", DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse, 0, 0,
        handle=describe_topic_partitions.handle),
)
# fmt: on
_table.update((api.key, api) for api in _apis)

#: Every API that is served, by its key, in the keys' order.
APIS: Mapping[int, Api] = _table
