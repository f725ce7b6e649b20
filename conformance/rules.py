"""Rules for fields that are not compared literally, because they differ between any two brokers.

A rule names the API, the field and the reason. All other fields are compared literally. Fields that two Apache Kafka
brokers would answer alike do not belong here but in `differences`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from attrs import frozen


class Kind(Enum):
    """A way to compare a field; the value is its description in the documentation."""

    NAMED = "by where the same value occurs again"
    TEXT = "by whether there is one if Kafka has one"
    TIME = "by whether it is there"
    SIZE = "by whether it is 0"
    OFFSET = "as numbers of records, where offsets follow the clock"
    PORTS = "without the ports of addresses"
    ORDER = "without regard to its order"


@frozen
class Rule:
    """A field that is not compared literally."""

    api: str
    field: str
    kind: Kind
    reason: str


WORDING = (
    "Clients act on the error code. The words are ours, and describe the fault also if Kafka's are absent."
)
CLOCK = "Each broker's own clock."
MADE_UP = "Each broker generates its own."
PORT = "Each broker listens on its own port."
HASHED = "Kafka answers in the order of a hash table, which depends on the names."
NUMBERS = (
    "`offset.mapping=timestamp` makes offsets of the clock; they are compared by which record they are of."
)
CLUSTER = "Generated when a cluster is set up."

_PORTS = (
    ("Metadata", "brokers.port"),
    ("FindCoordinator", "port"),
    ("FindCoordinator", "coordinators.port"),
    ("DescribeCluster", "brokers.port"),
)
_IDS = (
    ("Metadata", "topics.topic_id"),
    ("CreateTopics", "topics.topic_id"),
    ("DeleteTopics", "responses.topic_id"),
    ("DescribeTopicPartitions", "topics.topic_id"),
    ("Fetch", "responses.topic_id"),
    ("Produce", "responses.topic_id"),
    ("Fetch", "session_id"),
    ("InitProducerId", "producer_id"),
    ("EndTxn", "producer_id"),
    ("WriteTxnMarkers", "markers.producer_id"),
    ("DescribeProducers", "topics.partitions.active_producers.producer_id"),
    ("DescribeTransactions", "transaction_states.producer_id"),
    ("ListTransactions", "transaction_states.producer_id"),
    ("Fetch", "responses.partitions.aborted_transactions.producer_id"),
    ("JoinGroup", "member_id"),
    ("JoinGroup", "leader"),
    ("JoinGroup", "members.member_id"),
    ("LeaveGroup", "members.member_id"),
    ("DescribeGroups", "groups.members.member_id"),
    ("ConsumerGroupDescribe", "groups.members.member_id"),
    ("ConsumerGroupHeartbeat", "assignment.topic_partitions.topic_id"),
    ("ConsumerGroupDescribe", "groups.members.assignment.topic_partitions.topic_id"),
    ("ConsumerGroupDescribe", "groups.members.target_assignment.topic_partitions.topic_id"),
    ("ShareGroupHeartbeat", "assignment.topic_partitions.topic_id"),
    ("ShareGroupDescribe", "groups.members.assignment.topic_partitions.topic_id"),
    ("ShareFetch", "responses.topic_id"),
    ("ShareAcknowledge", "responses.topic_id"),
    ("DescribeShareGroupOffsets", "groups.topics.topic_id"),
    ("AlterShareGroupOffsets", "responses.topic_id"),
    ("DeleteShareGroupOffsets", "responses.topic_id"),
    ("OffsetCommit", "topics.topic_id"),
    ("TxnOffsetCommit", "topics.topic_id"),
    ("OffsetFetch", "groups.topics.topic_id"),
)
_TEXTS = (
    ("Produce", "responses.partition_responses.error_message"),
    ("Produce", "responses.partition_responses.record_errors.batch_index_error_message"),
    ("FindCoordinator", "error_message"),
    ("FindCoordinator", "coordinators.error_message"),
    ("DescribeGroups", "groups.error_message"),
    ("ConsumerGroupHeartbeat", "error_message"),
    ("ConsumerGroupDescribe", "groups.error_message"),
    ("ShareGroupHeartbeat", "error_message"),
    ("ShareGroupDescribe", "groups.error_message"),
    ("ShareFetch", "error_message"),
    ("ShareFetch", "responses.partitions.error_message"),
    ("ShareFetch", "responses.partitions.acknowledge_error_message"),
    ("ShareAcknowledge", "error_message"),
    ("ShareAcknowledge", "responses.partitions.error_message"),
    ("DescribeShareGroupOffsets", "groups.error_message"),
    ("DescribeShareGroupOffsets", "groups.topics.partitions.error_message"),
    ("AlterShareGroupOffsets", "error_message"),
    ("AlterShareGroupOffsets", "responses.partitions.error_message"),
    ("DeleteShareGroupOffsets", "error_message"),
    ("DeleteShareGroupOffsets", "responses.error_message"),
    ("CreateTopics", "topics.error_message"),
    ("DeleteTopics", "responses.error_message"),
    ("DeleteGroups", "results.error_message"),
    ("CreatePartitions", "results.error_message"),
    ("DescribeConfigs", "results.error_message"),
    ("AlterConfigs", "responses.error_message"),
    ("IncrementalAlterConfigs", "responses.error_message"),
    ("ListPartitionReassignments", "error_message"),
    ("DescribeCluster", "error_message"),
    ("AlterPartitionReassignments", "responses.partitions.error_message"),
    ("CreateAcls", "results.error_message"),
    ("DescribeAcls", "error_message"),
    ("DeleteAcls", "filter_results.error_message"),
    ("DescribeClientQuotas", "error_message"),
    ("AlterClientQuotas", "entries.error_message"),
    ("DescribeProducers", "topics.partitions.error_message"),
)
_OFFSETS = (
    ("Produce", "responses.partition_responses.base_offset"),
    ("Produce", "responses.partition_responses.log_start_offset"),
    ("ShareFetch", "responses.partitions.acquired_records.first_offset"),
    ("ShareFetch", "responses.partitions.acquired_records.last_offset"),
    ("DescribeShareGroupOffsets", "groups.topics.partitions.start_offset"),
    ("Fetch", "responses.partitions.high_watermark"),
    ("Fetch", "responses.partitions.last_stable_offset"),
    ("Fetch", "responses.partitions.log_start_offset"),
    ("Fetch", "responses.partitions.diverging_epoch.end_offset"),
    ("ShareFetch", "responses.partitions.records.offset"),
    ("ShareFetch", "responses.partitions.records.base_offset"),
    ("Fetch", "responses.partitions.records.offset"),
    ("Fetch", "responses.partitions.records.base_offset"),
    ("Fetch", "responses.partitions.aborted_transactions.first_offset"),
    ("DescribeProducers", "topics.partitions.active_producers.current_txn_start_offset"),
    ("ListOffsets", "topics.partitions.offset"),
    ("OffsetFetch", "topics.partitions.committed_offset"),
    ("OffsetFetch", "groups.topics.partitions.committed_offset"),
    ("DeleteRecords", "topics.partitions.low_watermark"),
    ("OffsetForLeaderEpoch", "topics.partitions.end_offset"),
)
_HASHED = (
    ("Metadata", "topics"),
    ("Produce", "responses"),
    ("Produce", "responses.partition_responses"),
    ("ListOffsets", "topics"),
    ("OffsetFetch", "topics"),
    ("OffsetFetch", "topics.partitions"),
    ("OffsetFetch", "groups.topics"),
    ("OffsetFetch", "groups.topics.partitions"),
    ("DescribeConfigs", "results.configs"),
    ("CreateTopics", "topics"),
    ("CreateTopics", "topics.configs"),
    ("DeleteTopics", "responses"),
    ("CreatePartitions", "results"),
    ("DeleteRecords", "topics"),
    ("DeleteRecords", "topics.partitions"),
    ("ListGroups", "groups"),
    ("DeleteGroups", "results"),
    ("DescribeGroups", "groups.members"),
    ("ConsumerGroupDescribe", "groups.members"),
    ("ConsumerGroupDescribe", "groups.members.subscribed_topic_names"),
    ("ConsumerGroupDescribe", "groups.members.assignment.topic_partitions"),
    ("ConsumerGroupDescribe", "groups.members.target_assignment.topic_partitions"),
    ("ConsumerGroupHeartbeat", "assignment.topic_partitions"),
    ("JoinGroup", "members"),
    ("DescribeLogDirs", "results.topics"),
    ("DescribeLogDirs", "results.topics.partitions"),
    ("OffsetForLeaderEpoch", "topics"),
    ("AlterConfigs", "responses"),
    ("IncrementalAlterConfigs", "responses"),
    ("DescribeClientQuotas", "entries"),
    ("DescribeClientQuotas", "entries.values"),
    ("AlterClientQuotas", "entries"),
    ("AlterClientQuotas", "entries.entity"),
    ("SaslHandshake", "mechanisms"),
    ("AddPartitionsToTxn", "results_by_topic_v3_and_below"),
    ("AddPartitionsToTxn", "results_by_topic_v3_and_below.results_by_partition"),
    ("AddPartitionsToTxn", "results_by_transaction"),
    ("AddPartitionsToTxn", "results_by_transaction.topic_results"),
    ("AddPartitionsToTxn", "results_by_transaction.topic_results.results_by_partition"),
    ("TxnOffsetCommit", "topics"),
    ("TxnOffsetCommit", "topics.partitions"),
    ("WriteTxnMarkers", "markers"),
    ("WriteTxnMarkers", "markers.topics"),
    ("WriteTxnMarkers", "markers.topics.partitions"),
    ("DescribeProducers", "topics.partitions.active_producers"),
    ("DescribeTransactions", "transaction_states.topics"),
    ("DescribeTransactions", "transaction_states.topics.partitions"),
    ("ListTransactions", "transaction_states"),
    ("ListTransactions", "unknown_state_filters"),
    ("AlterReplicaLogDirs", "results"),
    ("AlterReplicaLogDirs", "results.partitions"),
    ("ElectLeaders", "replica_election_results"),
    ("ElectLeaders", "replica_election_results.partition_result"),
)

_QUORUM = "topics.partitions.current_voters"
_PAST = "It counts changes of the cluster."

RULES: tuple[Rule, ...] = (
    *(Rule(api, field, Kind.NAMED, MADE_UP) for api, field in _IDS),
    *(Rule(api, field, Kind.NAMED, PORT) for api, field in _PORTS),
    Rule("DescribeConfigs", "results.configs.value", Kind.PORTS, PORT),
    Rule("DescribeConfigs", "results.configs.synonyms.value", Kind.PORTS, PORT),
    Rule("ApiVersions", "finalized_features_epoch", Kind.TIME, _PAST),
    Rule("Metadata", "cluster_id", Kind.NAMED, CLUSTER),
    Rule("DescribeCluster", "cluster_id", Kind.NAMED, CLUSTER),
    *(Rule(api, field, Kind.TEXT, WORDING) for api, field in _TEXTS),
    Rule("DescribeConfigs", "results.configs.documentation", Kind.TEXT, "The words are ours."),
    Rule("Produce", "responses.partition_responses.log_append_time_ms", Kind.TIME, CLOCK),
    Rule("DescribeProducers", "topics.partitions.active_producers.last_timestamp", Kind.TIME, CLOCK),
    Rule("DescribeTransactions", "transaction_states.transaction_start_time_ms", Kind.TIME, CLOCK),
    Rule("SaslAuthenticate", "session_lifetime_ms", Kind.TIME, CLOCK),
    Rule("SaslAuthenticate", "auth_bytes", Kind.SIZE, "They contain each broker's nonce."),
    *(Rule(api, field, Kind.OFFSET, NUMBERS) for api, field in _OFFSETS),
    Rule("DescribeQuorum", f"{_QUORUM}.last_fetch_timestamp", Kind.TIME, CLOCK),
    Rule("DescribeQuorum", f"{_QUORUM}.last_caught_up_timestamp", Kind.TIME, CLOCK),
    Rule("DescribeQuorum", f"{_QUORUM}.replica_directory_id", Kind.NAMED, MADE_UP),
    Rule("DescribeQuorum", f"{_QUORUM}.log_end_offset", Kind.TIME, _PAST),
    Rule("DescribeQuorum", "topics.partitions.high_watermark", Kind.TIME, _PAST),
    Rule("DescribeQuorum", "nodes.listeners.port", Kind.NAMED, PORT),
    Rule("DescribeLogDirs", "results.log_dir", Kind.NAMED, "A path, or the name of the store."),
    Rule("DescribeLogDirs", "results.total_bytes", Kind.SIZE, "The size of the disk, or of the memory."),
    Rule("DescribeLogDirs", "results.usable_bytes", Kind.SIZE, "The free part of it."),
    Rule(
        "DescribeLogDirs",
        "results.topics.partitions.partition_size",
        Kind.SIZE,
        "Entries of Redis take other bytes than segments do.",
    ),
    *(Rule(api, field, Kind.ORDER, HASHED) for api, field in _HASHED),
)

BY_FIELD: Mapping[tuple[str, str, bool], Rule] = {
    (rule.api, rule.field, rule.kind is Kind.ORDER): rule for rule in RULES
}
