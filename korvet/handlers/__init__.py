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
    api_versions,
    create_topics,
    delete_topics,
    describe_cluster,
    fetch,
    find_coordinator,
    init_producer_id,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
)
from korvet.protocol.connection import Api
from korvet.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from korvet.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from korvet.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from korvet.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from korvet.protocol.messages.fetch import FetchRequest, FetchResponse
from korvet.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from korvet.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from korvet.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from korvet.protocol.messages.metadata import MetadataRequest, MetadataResponse
from korvet.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from korvet.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from korvet.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from korvet.protocol.messages.produce import ProduceRequest, ProduceResponse

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
    Api(18, "ApiVersions", ApiVersionsRequest, ApiVersionsResponse, 0, 4, handle=api_versions.handler(_table)),
    Api(19, "CreateTopics", CreateTopicsRequest, CreateTopicsResponse, 2, 7, handle=create_topics.handle),
    Api(20, "DeleteTopics", DeleteTopicsRequest, DeleteTopicsResponse, 1, 6, handle=delete_topics.handle),
    Api(22, "InitProducerId", InitProducerIdRequest, InitProducerIdResponse, 0, 5, handle=init_producer_id.handle),
    Api(23, "OffsetForLeaderEpoch", OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse, 2, 4,
        handle=offset_for_leader_epoch.handle),
    Api(60, "DescribeCluster", DescribeClusterRequest, DescribeClusterResponse, 0, 2, handle=describe_cluster.handle),
)
# fmt: on
_table.update((api.key, api) for api in _apis)

#: Every API that is served, by its key, in the keys' order.
APIS: Mapping[int, Api] = _table
