"""Produce: append record batches to topic-partitions.

v0 to v2 carried the message formats before record batches. They are declared so that such a request can be
read and refused in its own terms; Kafka 4 and korvet serve v3 and above. Topics are named up to v12 and given by id
from v13 (KIP-516).
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from korvet.protocol.buffers import Buffer
from korvet.protocol.schema import (
    ZERO_UUID,
    array,
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
class PartitionProduceData:
    index: int = int32()
    records: Sequence[Buffer] | None = records(nullable="0+")


@struct
class TopicProduceData:
    name: str = string(versions="0-12", default="", ignorable=True)
    topic_id: UUID = uuid(versions="13+", default=ZERO_UUID, ignorable=True)
    partition_data: list[PartitionProduceData] = array(PartitionProduceData)


@message(key=0, versions="0-13", flexible="9+")
class ProduceRequest:
    transactional_id: str | None = string(versions="3+", nullable="3+", default=None)
    acks: int = int16()
    timeout_ms: int = int32()
    topic_data: list[TopicProduceData] = array(TopicProduceData)


@struct
class BatchIndexAndErrorMessage:
    batch_index: int = int32(versions="8+")
    batch_index_error_message: str | None = string(versions="8+", nullable="8+", default=None)


@struct
class LeaderIdAndEpoch:
    leader_id: int = int32(versions="10+", default=-1)
    leader_epoch: int = int32(versions="10+", default=-1)


@struct
class PartitionProduceResponse:
    index: int = int32()
    error_code: int = int16(default=0)
    base_offset: int = int64()
    log_append_time_ms: int = int64(versions="2+", default=-1, ignorable=True)
    log_start_offset: int = int64(versions="5+", default=-1, ignorable=True)
    record_errors: list[BatchIndexAndErrorMessage] = array(
        BatchIndexAndErrorMessage, versions="8+", factory=list, ignorable=True
    )
    error_message: str | None = string(versions="8+", nullable="8+", default=None, ignorable=True)
    current_leader: LeaderIdAndEpoch | None = nested(LeaderIdAndEpoch, versions="10+", tag=0, default=None)


@struct
class TopicProduceResponse:
    name: str = string(versions="0-12", default="", ignorable=True)
    topic_id: UUID = uuid(versions="13+", default=ZERO_UUID, ignorable=True)
    partition_responses: list[PartitionProduceResponse] = array(PartitionProduceResponse)


@struct
class NodeEndpoint:
    node_id: int = int32(versions="10+")
    host: str = string(versions="10+")
    port: int = int32(versions="10+")
    rack: str | None = string(versions="10+", nullable="10+", default=None)


@message(key=0, versions="0-13", flexible="9+")
class ProduceResponse:
    responses: list[TopicProduceResponse] = array(TopicProduceResponse)
    throttle_time_ms: int = int32(versions="1+", default=0, ignorable=True)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, versions="10+", tag=0, factory=list)
