"""ShareFetch: acquire records for a member of a share group, and acknowledge others (KIP-932).

`share_session_epoch`: 0 opens a session, -1 closes it. `acknowledge_types` has one type for each offset of its batch,
or one for all: 0 gap, 1 accept, 2 release, 3 reject, 4 renew (v2).
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from korvet.protocol.buffers import Buffer
from korvet.protocol.schema import (
    array,
    boolean,
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

# The values of `share_acquire_mode`.
BATCH_OPTIMIZED, RECORD_LIMIT = 0, 1


@struct
class AcknowledgementBatch:
    first_offset: int = int64()
    last_offset: int = int64()
    acknowledge_types: list[int] = array(int8)


@struct
class FetchPartition:
    partition_index: int = int32()
    acknowledgement_batches: list[AcknowledgementBatch] = array(AcknowledgementBatch)


@struct
class FetchTopic:
    topic_id: UUID = uuid()
    partitions: list[FetchPartition] = array(FetchPartition)


@struct
class ForgottenTopic:
    topic_id: UUID = uuid()
    partitions: list[int] = array(int32)


@message(key=78, versions="1-2", flexible="0+")
class ShareFetchRequest:
    group_id: str | None = string(nullable="0+", default=None)
    member_id: str | None = string(nullable="0+")
    share_session_epoch: int = int32()
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32(default=0x7FFFFFFF)
    max_records: int = int32(versions="1+")
    batch_size: int = int32(versions="1+")
    share_acquire_mode: int = int8(versions="2+", default=BATCH_OPTIMIZED, ignorable=True)
    is_renew_ack: bool = boolean(versions="2+", default=False)
    topics: list[FetchTopic] = array(FetchTopic)
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic)


@struct
class LeaderIdAndEpoch:
    leader_id: int = int32(default=0)
    leader_epoch: int = int32(default=0)


@struct
class AcquiredRecords:
    first_offset: int = int64()
    last_offset: int = int64()
    delivery_count: int = int16()


@struct
class PartitionData:
    partition_index: int = int32()
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    acknowledge_error_code: int = int16(default=0)
    acknowledge_error_message: str | None = string(nullable="0+", default=None)
    current_leader: LeaderIdAndEpoch = nested(LeaderIdAndEpoch)
    records: Sequence[Buffer] | None = records(nullable="0")
    acquired_records: list[AcquiredRecords] = array(AcquiredRecords)


@struct
class ShareFetchableTopicResponse:
    topic_id: UUID = uuid()
    partitions: list[PartitionData] = array(PartitionData)


@struct
class NodeEndpoint:
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable="0+", default=None)


@message(key=78, versions="1-2", flexible="0+")
class ShareFetchResponse:
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    acquisition_lock_timeout_ms: int = int32(versions="1+", default=0)
    responses: list[ShareFetchableTopicResponse] = array(ShareFetchableTopicResponse, factory=list)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, factory=list)
