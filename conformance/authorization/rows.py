"""The requests of the table: for every API, the resources that a request can name, existing ones and others.

Each case has its own resources. `prepared` returns the requests that create them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import UUID

from attrs import frozen

from conformance.talk import Talk, newest
from korvet.handlers import APIS
from korvet.protocol.messages import alter_configs, incremental_alter_configs
from korvet.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from korvet.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from korvet.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from korvet.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from korvet.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from korvet.protocol.messages.alter_share_group_offsets import AlterShareGroupOffsetsRequest
from korvet.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from korvet.protocol.messages.api_versions import ApiVersionsRequest
from korvet.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from korvet.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
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
from korvet.protocol.messages.delete_share_group_offsets import DeleteShareGroupOffsetsRequest
from korvet.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from korvet.protocol.messages.describe_acls import DescribeAclsRequest
from korvet.protocol.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from korvet.protocol.messages.describe_cluster import DescribeClusterRequest
from korvet.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from korvet.protocol.messages.describe_groups import DescribeGroupsRequest
from korvet.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from korvet.protocol.messages.describe_producers import DescribeProducersRequest
from korvet.protocol.messages.describe_producers import TopicRequest as ProducersOfTopic
from korvet.protocol.messages.describe_quorum import AskedPartition, AskedTopic, DescribeQuorumRequest
from korvet.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from korvet.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from korvet.protocol.messages.describe_transactions import DescribeTransactionsRequest
from korvet.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from korvet.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from korvet.protocol.messages.end_txn import EndTxnRequest
from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from korvet.protocol.messages.find_coordinator import FindCoordinatorRequest
from korvet.protocol.messages.heartbeat import HeartbeatRequest
from korvet.protocol.messages.init_producer_id import InitProducerIdRequest
from korvet.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from korvet.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from korvet.protocol.messages.list_config_resources import ListConfigResourcesRequest
from korvet.protocol.messages.list_groups import ListGroupsRequest
from korvet.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from korvet.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from korvet.protocol.messages.list_transactions import ListTransactionsRequest
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from korvet.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from korvet.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from korvet.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from korvet.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from korvet.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from korvet.protocol.messages.sasl_handshake import SaslHandshakeRequest
from korvet.protocol.messages.share_acknowledge import ShareAcknowledgeRequest
from korvet.protocol.messages.share_fetch import ShareFetchRequest
from korvet.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from korvet.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from korvet.protocol.messages.sync_group import SyncGroupRequest
from korvet.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from korvet.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from korvet.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from korvet.protocol.record_batch import build_batch
from korvet.protocol.schema import schema_of
from korvet.security.acls import Operation, PatternType, Permission, ResourceType

Build = Callable[[Talk, int], Any]
LATEST = -1
NOBODY = "User:nobody"
#: The short names of a case's topics: one that exists, and one that does not.
TOPICS = ("there", "missing")
PRODUCE_BY_ID, STAGED_BY_ID = 13, 6
UNKNOWN_ID = UUID(int=7)
GROUP = "group"
# Types of resources in DescribeConfigs and its siblings.
TOPIC_CONFIGS, BROKER_CONFIGS, CLIENT_METRICS, GROUP_CONFIGS = 2, 4, 16, 32


@frozen
class Row:
    """A request to every principal, in some versions of its API. The label is the function's name."""

    label: str
    key: int
    versions: tuple[int, ...]
    build: Build


ROWS: list[Row] = []


def row(request: type[object], *versions: int) -> Callable[[Build], Build]:
    """Declare a row, played in these versions, or in the oldest and the newest that korvet serves."""
    key = schema_of(request).key
    if key is None:
        raise TypeError(f"{request.__name__} is no request")

    def declare(build: Build) -> Build:
        label = build.__name__.replace("_", " ")
        served = {APIS[key].min_version, APIS[key].max_version}
        ROWS.append(Row(label, key, versions or tuple(sorted(served)), build))
        return build

    return declare


# --- What a case has before its requests ---------------------------------------------------------------------


def topics_of(talk: Talk) -> list[str]:
    """Return the names of the topics that a case has."""
    doomed = [f"doomed-{version}" for version in versions_of(delete_topics)]
    return [talk.name(short) for short in (TOPICS[0], *doomed, "doomed-by-id")]


def groups_of(talk: Talk) -> list[str]:
    """Return the ids of the groups that a case has."""
    return [
        talk.name(short) for short in (GROUP, *(f"old-{version}" for version in versions_of(delete_groups)))
    ]


def prepared(talk: Talk) -> Iterator[object]:
    """Yield the requests, each in its `version_of`, that create a case's topics and groups."""
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in topics_of(talk)]
    yield CreateTopicsRequest(topics=topics)
    for group_id in groups_of(talk):
        yield commit(talk, group_id, TOPICS[:1])


def version_of(request: object) -> int:
    """Return the version in which a request of `prepared` is sent."""
    # OffsetCommit has ids of topics instead of names from v10 on.
    return 9 if isinstance(request, OffsetCommitRequest) else newest(type(request))


def versions_of(build: Build) -> tuple[int, ...]:
    return next(each.versions for each in ROWS if each.build is build)


# --- Records -------------------------------------------------------------------------------------------------


@row(ProduceRequest)
def produce(talk: Talk, version: int) -> ProduceRequest:
    return _produce(talk, version, acks=-1)


@row(ProduceRequest)
def produce_with_wrong_acks(talk: Talk, version: int) -> ProduceRequest:
    return _produce(talk, version, acks=5)


def _produce(talk: Talk, version: int, acks: int, **producer: int) -> ProduceRequest:
    """Return a request with a batch for each topic, in a transaction if it has a producer."""
    records = [(0, 1_700_000_000_000, None, b"value", ())]
    batch = build_batch(records, is_transactional=bool(producer), **producer)  # type: ignore[arg-type]
    topics = [
        TopicProduceData(
            name=talk.name(short), partition_data=[PartitionProduceData(index=0, records=[memoryview(batch)])]
        )
        for short in TOPICS
    ]
    if version >= PRODUCE_BY_ID:
        topics[0].topic_id, topics[1].topic_id = talk.topic_id(TOPICS[0]), UNKNOWN_ID
    return ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=topics)


@row(FetchRequest, 4, 12)
def fetch_by_name(talk: Talk, version: int) -> FetchRequest:
    return _fetch([FetchTopic(topic=talk.name(short), partitions=_fetched()) for short in TOPICS])


@row(FetchRequest, 13, 18)
def fetch_by_id(talk: Talk, version: int) -> FetchRequest:
    return _fetch([FetchTopic(topic_id=talk.topic_id(TOPICS[0]), partitions=_fetched())])


@row(FetchRequest, 12)
def fetch_of_a_replica_by_name(talk: Talk, version: int) -> FetchRequest:
    topics = [FetchTopic(topic=talk.name("missing"), partitions=_fetched())]
    return FetchRequest(replica_id=1, max_wait_ms=0, min_bytes=0, topics=topics)


@row(FetchRequest, 18)
def fetch_of_a_replica_by_id(talk: Talk, version: int) -> FetchRequest:
    request = _fetch([FetchTopic(topic_id=talk.topic_id(TOPICS[0]), partitions=_fetched())])
    request.replica_state = ReplicaState(replica_id=7, replica_epoch=1)
    return request


def _fetch(topics: list[FetchTopic]) -> FetchRequest:
    return FetchRequest(max_wait_ms=0, min_bytes=0, topics=topics)


def _fetched() -> list[FetchPartition]:
    return [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)]


@row(ListOffsetsRequest)
def list_offsets(talk: Talk, version: int) -> ListOffsetsRequest:
    asked = [ListOffsetsPartition(partition_index=0, timestamp=LATEST)]
    topics = [ListOffsetsTopic(name=talk.name(short), partitions=asked) for short in TOPICS]
    return ListOffsetsRequest(replica_id=-1, topics=topics)


@row(OffsetForLeaderEpochRequest)
def offset_for_leader_epoch(talk: Talk, version: int) -> OffsetForLeaderEpochRequest:
    asked = [OffsetForLeaderPartition(partition=0, leader_epoch=0)]
    topics = [OffsetForLeaderTopic(topic=talk.name(short), partitions=asked) for short in TOPICS]
    return OffsetForLeaderEpochRequest(replica_id=-1, topics=topics)


@row(DeleteRecordsRequest)
def delete_records(talk: Talk, version: int) -> DeleteRecordsRequest:
    asked = [DeleteRecordsPartition(partition_index=0, offset=0)]
    topics = [DeleteRecordsTopic(name=talk.name(short), partitions=asked) for short in TOPICS]
    return DeleteRecordsRequest(topics=topics, timeout_ms=10_000)


@row(InitProducerIdRequest)
def init_producer_id(talk: Talk, version: int) -> InitProducerIdRequest:
    return InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)


@row(InitProducerIdRequest)
def init_producer_id_of_a_transaction(talk: Talk, version: int) -> InitProducerIdRequest:
    return InitProducerIdRequest(transactional_id=talk.name("transaction"), transaction_timeout_ms=1000)


# --- Transactions --------------------------------------------------------------------------------------------
#
# The producer id is another one than that of the transactional id, so that no request changes anything.

PRODUCER_ID, PRODUCER_EPOCH = 999_999, 0


@row(ProduceRequest)
def produce_in_a_transaction(talk: Talk, version: int) -> ProduceRequest:
    producer = {"producer_id": PRODUCER_ID, "producer_epoch": PRODUCER_EPOCH, "base_sequence": 0}
    request = _produce(talk, version, acks=-1, **producer)
    request.transactional_id = talk.name("transaction")
    return request


@row(AddPartitionsToTxnRequest, 0, 3)
def add_partitions_to_txn(talk: Talk, version: int) -> AddPartitionsToTxnRequest:
    return _add_partitions(talk, TOPICS)


@row(AddPartitionsToTxnRequest, 0, 3)
def add_existing_partitions_to_txn(talk: Talk, version: int) -> AddPartitionsToTxnRequest:
    return _add_partitions(talk, TOPICS[:1])


def _add_partitions(talk: Talk, shorts: Sequence[str]) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=talk.name("transaction"),
        v3_and_below_producer_id=PRODUCER_ID,
        v3_and_below_producer_epoch=PRODUCER_EPOCH,
        v3_and_below_topics=_added(talk, shorts),
    )


def _added(talk: Talk, shorts: Sequence[str]) -> list[AddPartitionsToTxnTopic]:
    return [AddPartitionsToTxnTopic(name=talk.name(short), partitions=[0]) for short in shorts]


@row(AddPartitionsToTxnRequest, 4, 5)
def add_partitions_to_txn_by_a_broker(talk: Talk, version: int) -> AddPartitionsToTxnRequest:
    transactions = [
        AddPartitionsToTxnTransaction(
            transactional_id=talk.name(name),
            producer_id=PRODUCER_ID,
            producer_epoch=PRODUCER_EPOCH,
            verify_only=is_verified,
            topics=_added(talk, TOPICS[:1]),
        )
        for name, is_verified in (("transaction", False), ("verified", True))
    ]
    return AddPartitionsToTxnRequest(transactions=transactions)


@row(AddOffsetsToTxnRequest)
def add_offsets_to_txn(talk: Talk, version: int) -> AddOffsetsToTxnRequest:
    return AddOffsetsToTxnRequest(
        transactional_id=talk.name("transaction"),
        producer_id=PRODUCER_ID,
        producer_epoch=PRODUCER_EPOCH,
        group_id=talk.name(GROUP),
    )


@row(TxnOffsetCommitRequest, 0, 5, 6)
def txn_offset_commit(talk: Talk, version: int) -> TxnOffsetCommitRequest:
    asked = [TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=0, committed_metadata="")]
    topics = [TxnOffsetCommitRequestTopic(name=talk.name(short), partitions=asked) for short in TOPICS]
    if version >= STAGED_BY_ID:
        topics = [TxnOffsetCommitRequestTopic(topic_id=talk.topic_id(TOPICS[0]), partitions=asked)]
    return TxnOffsetCommitRequest(
        transactional_id=talk.name("transaction"),
        group_id=talk.name(GROUP),
        producer_id=PRODUCER_ID,
        producer_epoch=PRODUCER_EPOCH,
        topics=topics,
    )


@row(EndTxnRequest)
def end_txn(talk: Talk, version: int) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=talk.name("transaction"),
        producer_id=PRODUCER_ID,
        producer_epoch=PRODUCER_EPOCH,
        committed=True,
    )


@row(WriteTxnMarkersRequest)
def write_txn_markers(talk: Talk, version: int) -> WriteTxnMarkersRequest:
    topics = [WritableTxnMarkerTopic(name=talk.name(short), partition_indexes=[0]) for short in TOPICS]
    marker = WritableTxnMarker(
        producer_id=PRODUCER_ID,
        producer_epoch=PRODUCER_EPOCH,
        transaction_result=False,
        topics=topics,
        coordinator_epoch=0,
    )
    return WriteTxnMarkersRequest(markers=[marker])


@row(DescribeProducersRequest)
def describe_producers(talk: Talk, version: int) -> DescribeProducersRequest:
    topics = [ProducersOfTopic(name=talk.name(short), partition_indexes=[0]) for short in TOPICS]
    return DescribeProducersRequest(topics=topics)


@row(DescribeTransactionsRequest)
def describe_transactions(talk: Talk, version: int) -> DescribeTransactionsRequest:
    return DescribeTransactionsRequest(transactional_ids=[talk.name("transaction"), talk.name("missing")])


@row(ListTransactionsRequest)
def list_transactions(talk: Talk, version: int) -> ListTransactionsRequest:
    return ListTransactionsRequest()


# --- Topics --------------------------------------------------------------------------------------------------


@row(MetadataRequest, 0, 1, 12)
def metadata_of_all_topics(talk: Talk, version: int) -> MetadataRequest:
    return MetadataRequest(topics=None if version else [], **_operations(version))


@row(MetadataRequest, 4, 8, 10, 12)
def metadata_by_name(talk: Talk, version: int) -> MetadataRequest:
    topics = [MetadataRequestTopic(name=talk.name(short)) for short in TOPICS]
    topics.append(MetadataRequestTopic(name="__consumer_offsets_"))
    return MetadataRequest(topics=topics, allow_auto_topic_creation=False, **_operations(version))


@row(MetadataRequest, 12)
def metadata_by_id(talk: Talk, version: int) -> MetadataRequest:
    topics = [MetadataRequestTopic(name=None, topic_id=talk.topic_id(TOPICS[0]))]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=False, **_operations(version))


def _operations(version: int) -> dict[str, bool]:
    return {
        "include_topic_authorized_operations": version >= 8,
        "include_cluster_authorized_operations": 8 <= version <= 10,
    }


@row(DescribeTopicPartitionsRequest)
def describe_topic_partitions(talk: Talk, version: int) -> DescribeTopicPartitionsRequest:
    return DescribeTopicPartitionsRequest(topics=[TopicRequest(name=talk.name(short)) for short in TOPICS])


@row(DescribeTopicPartitionsRequest)
def describe_topic_partitions_of_all_topics(talk: Talk, version: int) -> DescribeTopicPartitionsRequest:
    return DescribeTopicPartitionsRequest(topics=[])


@row(CreateTopicsRequest)
def create_topics(talk: Talk, version: int) -> CreateTopicsRequest:
    names = (TOPICS[0], f"new-{version}")
    topics = [CreatableTopic(name=talk.name(name), num_partitions=1, replication_factor=1) for name in names]
    return CreateTopicsRequest(topics=topics, validate_only=True)


@row(CreatePartitionsRequest)
def create_partitions(talk: Talk, version: int) -> CreatePartitionsRequest:
    topics = [CreatePartitionsTopic(name=talk.name(short), count=2, assignments=None) for short in TOPICS]
    return CreatePartitionsRequest(topics=topics, timeout_ms=10_000, validate_only=True)


@row(DescribeConfigsRequest)
def describe_configs(talk: Talk, version: int) -> DescribeConfigsRequest:
    names = [(TOPIC_CONFIGS, talk.name(short)) for short in TOPICS]
    names += _other_configs(talk)
    resources = [
        DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=["cleanup.policy"])
        for kind, name in names
    ]
    return DescribeConfigsRequest(resources=resources)


@row(alter_configs.AlterConfigsRequest)
def alter_configs_of_topics(talk: Talk, version: int) -> alter_configs.AlterConfigsRequest:
    resources = [
        alter_configs.AlterConfigsResource(
            resource_type=TOPIC_CONFIGS, resource_name=talk.name(short), configs=[]
        )
        for short in TOPICS
    ]
    return alter_configs.AlterConfigsRequest(resources=resources, validate_only=True)


@row(incremental_alter_configs.IncrementalAlterConfigsRequest)
def incremental_alter_configs_of_topics(
    talk: Talk, version: int
) -> incremental_alter_configs.IncrementalAlterConfigsRequest:
    changed = incremental_alter_configs.AlterableConfig(name="retention.ms", config_operation=0, value="1000")
    resources = [
        incremental_alter_configs.AlterConfigsResource(
            resource_type=TOPIC_CONFIGS, resource_name=talk.name(short), configs=[changed]
        )
        for short in TOPICS
    ]
    return incremental_alter_configs.IncrementalAlterConfigsRequest(resources=resources, validate_only=True)


# --- Groups --------------------------------------------------------------------------------------------------


def commit(talk: Talk, group_id: str, shorts: Sequence[str]) -> OffsetCommitRequest:
    """Return a commit of a client that is no member."""
    asked = [OffsetCommitRequestPartition(partition_index=0, committed_offset=0, committed_metadata="")]
    topics = [OffsetCommitRequestTopic(name=talk.name(short), partitions=asked) for short in shorts]
    return OffsetCommitRequest(group_id=group_id, topics=topics)


@row(OffsetCommitRequest, 9)
def offset_commit(talk: Talk, version: int) -> OffsetCommitRequest:
    return commit(talk, talk.name(GROUP), TOPICS)


@row(OffsetFetchRequest, 1, 2, 7)
def offset_fetch(talk: Talk, version: int) -> OffsetFetchRequest:
    topics = [OffsetFetchRequestTopic(name=talk.name(short), partition_indexes=[0]) for short in TOPICS]
    return OffsetFetchRequest(group_id=talk.name(GROUP), topics=topics)


@row(OffsetFetchRequest, 2, 7)
def offset_fetch_of_all_topics(talk: Talk, version: int) -> OffsetFetchRequest:
    return OffsetFetchRequest(group_id=talk.name(GROUP), topics=None)


@row(OffsetFetchRequest, 8, 9)
def offset_fetch_of_groups(talk: Talk, version: int) -> OffsetFetchRequest:
    topics = [OffsetFetchRequestTopics(name=talk.name(short), partition_indexes=[0]) for short in TOPICS]
    groups = [
        OffsetFetchRequestGroup(group_id=talk.name(GROUP), topics=topics),
        OffsetFetchRequestGroup(group_id=talk.name("all"), topics=None),
    ]
    return OffsetFetchRequest(groups=groups)


@row(FindCoordinatorRequest, 0, 3, 4, 6)
def find_coordinator(talk: Talk, version: int) -> FindCoordinatorRequest:
    return _coordinator(talk, version, key_type=0)


@row(FindCoordinatorRequest, 3, 6)
def find_coordinator_of_a_transaction(talk: Talk, version: int) -> FindCoordinatorRequest:
    return _coordinator(talk, version, key_type=1)


@row(FindCoordinatorRequest, 6)
def find_coordinator_of_a_share_group(talk: Talk, version: int) -> FindCoordinatorRequest:
    return _coordinator(talk, version, key_type=2)


def _coordinator(talk: Talk, version: int, key_type: int) -> FindCoordinatorRequest:
    key = talk.name(GROUP)
    if version < 4:
        return FindCoordinatorRequest(key=key, key_type=key_type)
    return FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])


@row(JoinGroupRequest, 5, 9)
def join_group(talk: Talk, version: int) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=talk.name("joined"),
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="stranger",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


@row(HeartbeatRequest)
def heartbeat(talk: Talk, version: int) -> HeartbeatRequest:
    return HeartbeatRequest(group_id=talk.name(GROUP), generation_id=1, member_id="stranger")


@row(LeaveGroupRequest, 0, 3, 5)
def leave_group(talk: Talk, version: int) -> LeaveGroupRequest:
    if version < 3:
        return LeaveGroupRequest(group_id=talk.name(GROUP), member_id="stranger")
    return LeaveGroupRequest(group_id=talk.name(GROUP), members=[MemberIdentity(member_id="stranger")])


@row(SyncGroupRequest)
def sync_group(talk: Talk, version: int) -> SyncGroupRequest:
    protocol = {"protocol_type": "consumer", "protocol_name": "range"} if version >= 5 else {}
    return SyncGroupRequest(
        group_id=talk.name(GROUP), generation_id=1, member_id="stranger", assignments=[], **protocol
    )


@row(SyncGroupRequest, 5)
def sync_group_without_protocol(talk: Talk, version: int) -> SyncGroupRequest:
    return SyncGroupRequest(group_id=talk.name(GROUP), generation_id=1, member_id="stranger", assignments=[])


@row(ConsumerGroupHeartbeatRequest)
def consumer_group_heartbeat(talk: Talk, version: int) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id=talk.name(GROUP),
        member_id="stranger",
        member_epoch=1,
        subscribed_topic_names=[talk.name(short) for short in TOPICS],
    )


@row(ConsumerGroupDescribeRequest)
def consumer_group_describe(talk: Talk, version: int) -> ConsumerGroupDescribeRequest:
    groups = [talk.name(GROUP), talk.name("missing")]
    return ConsumerGroupDescribeRequest(group_ids=groups, include_authorized_operations=True)


@row(ShareGroupHeartbeatRequest)
def share_group_heartbeat(talk: Talk, version: int) -> ShareGroupHeartbeatRequest:
    return ShareGroupHeartbeatRequest(
        group_id=talk.name(GROUP),
        member_id="stranger",
        member_epoch=1,
        subscribed_topic_names=[talk.name(short) for short in TOPICS],
    )


@row(ShareGroupDescribeRequest)
def share_group_describe(talk: Talk, version: int) -> ShareGroupDescribeRequest:
    groups = [talk.name(GROUP), talk.name("missing")]
    return ShareGroupDescribeRequest(group_ids=groups, include_authorized_operations=True)


@row(ShareFetchRequest)
def share_fetch(talk: Talk, version: int) -> ShareFetchRequest:
    return ShareFetchRequest(
        group_id=talk.name(GROUP),
        member_id="stranger",
        share_session_epoch=7,
        max_wait_ms=0,
        min_bytes=0,
        max_records=1,
        batch_size=1,
        topics=[],
        forgotten_topics_data=[],
    )


@row(ShareAcknowledgeRequest)
def share_acknowledge(talk: Talk, version: int) -> ShareAcknowledgeRequest:
    return ShareAcknowledgeRequest(
        group_id=talk.name(GROUP), member_id="stranger", share_session_epoch=7, topics=[]
    )


@row(DescribeShareGroupOffsetsRequest)
def describe_share_group_offsets(talk: Talk, version: int) -> DescribeShareGroupOffsetsRequest:
    return DescribeShareGroupOffsetsRequest(
        groups=[DescribeShareGroupOffsetsRequestGroup(group_id=talk.name("missing"), topics=None)]
    )


@row(AlterShareGroupOffsetsRequest)
def alter_share_group_offsets(talk: Talk, version: int) -> AlterShareGroupOffsetsRequest:
    return AlterShareGroupOffsetsRequest(group_id=talk.name(GROUP), topics=[])


@row(DeleteShareGroupOffsetsRequest)
def delete_share_group_offsets(talk: Talk, version: int) -> DeleteShareGroupOffsetsRequest:
    return DeleteShareGroupOffsetsRequest(group_id=talk.name("missing"), topics=[])


@row(DescribeGroupsRequest, 0, 3, 5, 6)
def describe_groups(talk: Talk, version: int) -> DescribeGroupsRequest:
    groups = [talk.name(GROUP), talk.name("missing")]
    return DescribeGroupsRequest(groups=groups, include_authorized_operations=version >= 3)


@row(ListGroupsRequest)
def list_groups(talk: Talk, version: int) -> ListGroupsRequest:
    return ListGroupsRequest()


# --- The cluster ---------------------------------------------------------------------------------------------


@row(ApiVersionsRequest)
def api_versions(talk: Talk, version: int) -> ApiVersionsRequest:
    return ApiVersionsRequest(client_software_name="test", client_software_version="1")


@row(DescribeClusterRequest)
def describe_cluster(talk: Talk, version: int) -> DescribeClusterRequest:
    return DescribeClusterRequest(include_cluster_authorized_operations=True)


@row(DescribeLogDirsRequest, 1, 2, 3, 4)
def describe_log_dirs(talk: Talk, version: int) -> DescribeLogDirsRequest:
    topics = [DescribableLogDirTopic(topic=talk.name(TOPICS[0]), partitions=[0])]
    return DescribeLogDirsRequest(topics=topics)


@row(AlterReplicaLogDirsRequest)
def alter_replica_log_dirs(talk: Talk, version: int) -> AlterReplicaLogDirsRequest:
    topic = AlterReplicaLogDirTopic(name=talk.name(TOPICS[0]), partitions=[0])
    return AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path="/nowhere", topics=[topic])])


@row(ElectLeadersRequest)
def elect_leaders(talk: Talk, version: int) -> ElectLeadersRequest:
    topics = [TopicPartitions(topic=talk.name(short), partitions=[0]) for short in TOPICS]
    return ElectLeadersRequest(topic_partitions=topics)


@row(AlterPartitionReassignmentsRequest)
def alter_partition_reassignments(talk: Talk, version: int) -> AlterPartitionReassignmentsRequest:
    asked = [ReassignablePartition(partition_index=0, replicas=[1])]
    topics = [ReassignableTopic(name=talk.name(short), partitions=asked) for short in TOPICS]
    return AlterPartitionReassignmentsRequest(topics=topics)


@row(DescribeQuorumRequest)
def describe_quorum(talk: Talk, version: int) -> DescribeQuorumRequest:
    topic = AskedTopic(topic_name="another", partitions=[AskedPartition(partition_index=0)])
    return DescribeQuorumRequest(topics=[topic])


@row(UpdateFeaturesRequest)
def update_features(talk: Talk, version: int) -> UpdateFeaturesRequest:
    return UpdateFeaturesRequest(
        feature_updates=[FeatureUpdateKey(feature="transaction.version", max_version_level=2)]
    )


@row(ListPartitionReassignmentsRequest)
def list_partition_reassignments(talk: Talk, version: int) -> ListPartitionReassignmentsRequest:
    return ListPartitionReassignmentsRequest(topics=None)


@row(ListConfigResourcesRequest)
def list_config_resources(talk: Talk, version: int) -> ListConfigResourcesRequest:
    return ListConfigResourcesRequest(resource_types=[TOPIC_CONFIGS] if version else [])


@row(incremental_alter_configs.IncrementalAlterConfigsRequest)
def incremental_alter_configs_of_others(
    talk: Talk, version: int
) -> incremental_alter_configs.IncrementalAlterConfigsRequest:
    resources = [
        incremental_alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[])
        for kind, name in _other_configs(talk)
    ]
    return incremental_alter_configs.IncrementalAlterConfigsRequest(resources=resources, validate_only=True)


@row(alter_configs.AlterConfigsRequest)
def alter_configs_of_others(talk: Talk, version: int) -> alter_configs.AlterConfigsRequest:
    resources = [
        alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[])
        for kind, name in _other_configs(talk)
    ]
    return alter_configs.AlterConfigsRequest(resources=resources, validate_only=True)


def _other_configs(talk: Talk) -> list[tuple[int, str]]:
    """Return the resources with settings that are no topics."""
    return [(BROKER_CONFIGS, "1"), (GROUP_CONFIGS, talk.name(GROUP)), (CLIENT_METRICS, "metrics")]


@row(CreateAclsRequest)
def create_acls(talk: Talk, version: int) -> CreateAclsRequest:
    return CreateAclsRequest(
        creations=[
            AclCreation(
                resource_type=ResourceType.TOPIC,
                resource_name=talk.name("orders"),
                resource_pattern_type=PatternType.LITERAL,
                principal=NOBODY,
                host="10.0.0.1",
                operation=Operation.READ,
                permission_type=Permission.ALLOW,
            )
        ]
    )


@row(DescribeAclsRequest)
def describe_acls(talk: Talk, version: int) -> DescribeAclsRequest:
    return DescribeAclsRequest(
        resource_type_filter=ResourceType.TOPIC,
        resource_name_filter=talk.name("orders"),
        pattern_type_filter=PatternType.LITERAL,
        principal_filter=NOBODY,
        host_filter=None,
        operation=Operation.ANY,
        permission_type=Permission.ANY,
    )


@row(DeleteAclsRequest)
def delete_acls(talk: Talk, version: int) -> DeleteAclsRequest:
    selection = DeleteAclsFilter(
        resource_type_filter=ResourceType.TOPIC,
        resource_name_filter=talk.name("orders"),
        pattern_type_filter=PatternType.ANY,
        principal_filter=NOBODY,
        host_filter=None,
        operation=Operation.ANY,
        permission_type=Permission.ANY,
    )
    return DeleteAclsRequest(filters=[selection])


@row(DescribeClientQuotasRequest)
def describe_client_quotas(talk: Talk, version: int) -> DescribeClientQuotasRequest:
    component = ComponentData(entity_type="user", match_type=0, match=talk.name("missing"))
    return DescribeClientQuotasRequest(components=[component], strict=False)


@row(AlterClientQuotasRequest)
def alter_client_quotas(talk: Talk, version: int) -> AlterClientQuotasRequest:
    entry = EntryData(
        entity=[EntityData(entity_type="user", entity_name=talk.name("limited"))],
        ops=[OpData(key="producer_byte_rate", value=1e9, remove=False)],
    )
    return AlterClientQuotasRequest(entries=[entry], validate_only=True)


@row(DescribeUserScramCredentialsRequest)
def describe_user_scram_credentials(talk: Talk, version: int) -> DescribeUserScramCredentialsRequest:
    return DescribeUserScramCredentialsRequest(users=[UserName(name=talk.name("missing"))])


@row(AlterUserScramCredentialsRequest)
def alter_user_scram_credentials(talk: Talk, version: int) -> AlterUserScramCredentialsRequest:
    deletion = ScramCredentialDeletion(name=talk.name("missing"), mechanism=1)
    return AlterUserScramCredentialsRequest(deletions=[deletion], upsertions=[])


# --- What takes resources away comes last ----------------------------------------------------------------------


@row(OffsetDeleteRequest)
def offset_delete(talk: Talk, version: int) -> OffsetDeleteRequest:
    asked = [OffsetDeleteRequestPartition(partition_index=0)]
    topics = [OffsetDeleteRequestTopic(name=talk.name(short), partitions=asked) for short in TOPICS]
    return OffsetDeleteRequest(group_id=talk.name(GROUP), topics=topics)


@row(DeleteGroupsRequest)
def delete_groups(talk: Talk, version: int) -> DeleteGroupsRequest:
    return DeleteGroupsRequest(groups_names=[talk.name(f"old-{version}"), talk.name("missing")])


@row(DeleteTopicsRequest)
def delete_topics(talk: Talk, version: int) -> DeleteTopicsRequest:
    names = [talk.name(f"doomed-{version}"), talk.name("missing")]
    if version < 6:
        return DeleteTopicsRequest(topic_names=names, timeout_ms=10_000)
    return DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in names], timeout_ms=10_000)


@row(DeleteTopicsRequest, 6)
def delete_topics_by_id(talk: Talk, version: int) -> DeleteTopicsRequest:
    topics = [DeleteTopicState(name=None, topic_id=talk.topic_id("doomed-by-id"))]
    return DeleteTopicsRequest(topics=topics, timeout_ms=10_000)


@row(MetadataRequest, 12)
def metadata_that_creates_a_topic(talk: Talk, version: int) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=talk.name("created-by-metadata"))])


# --- Authentication, of a client that has authenticated -------------------------------------------------------


@row(SaslHandshakeRequest)
def sasl_handshake(talk: Talk, version: int) -> SaslHandshakeRequest:
    return SaslHandshakeRequest(mechanism="PLAIN")


@row(SaslAuthenticateRequest)
def sasl_authenticate(talk: Talk, version: int) -> SaslAuthenticateRequest:
    return SaslAuthenticateRequest(auth_bytes=b"")
