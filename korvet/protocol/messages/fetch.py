"""Fetch: read record batches of topic-partitions, waiting for new ones.

Topics are named up to v12 and given by id from v13 (KIP-516).
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from korvet.protocol.buffers import Buffer
from korvet.protocol.schema import (
    ZERO_UUID,
    array,
    int8,
    int16,
    int32,
    int64,
    message,
    nested,
    records,
    string,
    struct,
    uuid,
)


@struct
class ReplicaState:
    replica_id: int = int32(versions="15+", default=-1)
    replica_epoch: int = int64(versions="15+", default=-1)


@struct
class FetchPartition:
    partition: int = int32()
    current_leader_epoch: int = int32(versions="9+", default=-1, ignorable=True)
    fetch_offset: int = int64()
    last_fetched_epoch: int = int32(versions="12+", default=-1)
    log_start_offset: int = int64(versions="5+", default=-1, ignorable=True)
    partition_max_bytes: int = int32()
    replica_directory_id: UUID = uuid(versions="17+", tag=0, default=ZERO_UUID, ignorable=True)
    high_watermark: int = int64(versions="18+", tag=1, default=2**63 - 1, ignorable=True)


@struct
class FetchTopic:
    topic: str = string(versions="0-12", default="", ignorable=True)
    topic_id: UUID = uuid(versions="13+", default=ZERO_UUID, ignorable=True)
    partitions: list[FetchPartition] = array(FetchPartition)


@struct
class ForgottenTopic:
    topic: str = string(versions="7-12", default="", ignorable=True)
    topic_id: UUID = uuid(versions="13+", default=ZERO_UUID, ignorable=True)
    partitions: list[int] = array(int32, versions="7+")


@message(key=1, versions="4-18", flexible="12+")
class FetchRequest:
    cluster_id: str | None = string(versions="12+", nullable="12+", tag=0, default=None, ignorable=True)
    replica_id: int = int32(versions="0-14", default=-1)
    replica_state: ReplicaState | None = nested(ReplicaState, versions="15+", tag=1, default=None)
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32(versions="3+", default=0x7FFFFFFF, ignorable=True)
    isolation_level: int = int8(versions="4+", default=0, ignorable=True)
    session_id: int = int32(versions="7+", default=0, ignorable=True)
    session_epoch: int = int32(versions="7+", default=-1, ignorable=True)
    topics: list[FetchTopic] = array(FetchTopic)
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic, versions="7+", factory=list)
    rack_id: str = string(versions="11+", default="", ignorable=True)


@struct
class EpochEndOffset:
    epoch: int = int32(versions="12+", default=-1)
    end_offset: int = int64(versions="12+", default=-1)


@struct
class LeaderIdAndEpoch:
    leader_id: int = int32(versions="12+", default=-1)
    leader_epoch: int = int32(versions="12+", default=-1)


@struct
class SnapshotId:
    end_offset: int = int64(default=-1)
    epoch: int = int32(default=-1)


@struct
class AbortedTransaction:
    producer_id: int = int64(versions="4+")
    first_offset: int = int64(versions="4+")


@struct
class PartitionData:
    partition_index: int = int32()
    error_code: int = int16(default=0)
    high_watermark: int = int64()
    last_stable_offset: int = int64(versions="4+", default=-1, ignorable=True)
    log_start_offset: int = int64(versions="5+", default=-1, ignorable=True)
    diverging_epoch: EpochEndOffset | None = nested(EpochEndOffset, versions="12+", tag=0, default=None)
    current_leader: LeaderIdAndEpoch | None = nested(LeaderIdAndEpoch, versions="12+", tag=1, default=None)
    snapshot_id: SnapshotId | None = nested(SnapshotId, versions="12+", tag=2, default=None)
    aborted_transactions: list[AbortedTransaction] | None = array(
        AbortedTransaction, versions="4+", nullable="4+", factory=list, ignorable=True
    )
    preferred_read_replica: int = int32(versions="11+", default=-1)
    records: Sequence[Buffer] | None = records(nullable="0+")


@struct
class FetchableTopicResponse:
    topic: str = string(versions="0-12", default="", ignorable=True)
    topic_id: UUID = uuid(versions="13+", default=ZERO_UUID, ignorable=True)
    partitions: list[PartitionData] = array(PartitionData)


@struct
class NodeEndpoint:
    node_id: int = int32(versions="16+")
    host: str = string(versions="16+")
    port: int = int32(versions="16+")
    rack: str | None = string(versions="16+", nullable="16+", default=None)


@message(key=1, versions="4-18", flexible="12+")
class FetchResponse:
    throttle_time_ms: int = int32(versions="1+", default=0, ignorable=True)
    error_code: int = int16(versions="7+", default=0, ignorable=True)
    session_id: int = int32(versions="7+", default=0)
    responses: list[FetchableTopicResponse] = array(FetchableTopicResponse)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, versions="16+", tag=0, factory=list)
