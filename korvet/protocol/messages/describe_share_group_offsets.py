"""DescribeShareGroupOffsets: start offset and lag of the share partitions of groups (KIP-932, KIP-1226).

Fields of korvet's own: a request with `max_in_flight` is answered with the records that are in flight, too.
"""

from __future__ import annotations

from uuid import UUID

from korvet.protocol.schema import FIRST_OWN_TAG, array, int16, int32, int64, message, string, struct, uuid


@struct
class DescribeShareGroupOffsetsRequestTopic:
    topic_name: str = string()
    partitions: list[int] = array(int32)


@struct
class DescribeShareGroupOffsetsRequestGroup:
    group_id: str = string()
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None = array(
        DescribeShareGroupOffsetsRequestTopic, nullable="0+"
    )


@message(key=90, versions="0-1", flexible="0+")
class DescribeShareGroupOffsetsRequest:
    groups: list[DescribeShareGroupOffsetsRequestGroup] = array(DescribeShareGroupOffsetsRequestGroup)
    max_in_flight: int = int32(versions="0+", tag=FIRST_OWN_TAG, default=0, ignorable=True)


@struct
class RecordsInFlight:
    """Records of a partition in the same state; the member id is "" if none has acquired them."""

    first_offset: int = int64()
    last_offset: int = int64()
    record_count: int = int64()
    delivery_count: int = int32()
    member_id: str = string()
    acquired_ms: int = int64()  # since the acquisition or the last renewal
    lock_ms: int = int64()  # until the lock ends


@struct
class DescribeShareGroupOffsetsResponsePartition:
    partition_index: int = int32()
    start_offset: int = int64()
    leader_epoch: int = int32()
    lag: int = int64(versions="1+", default=-1, ignorable=True)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    in_flight_count: int = int64(versions="0+", tag=FIRST_OWN_TAG, default=-1, ignorable=True)
    in_flight: list[RecordsInFlight] = array(
        RecordsInFlight, versions="0+", tag=FIRST_OWN_TAG + 1, factory=list, ignorable=True
    )


@struct
class DescribeShareGroupOffsetsResponseTopic:
    topic_name: str = string()
    topic_id: UUID = uuid()
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = array(
        DescribeShareGroupOffsetsResponsePartition
    )


@struct
class DescribeShareGroupOffsetsResponseGroup:
    group_id: str = string()
    topics: list[DescribeShareGroupOffsetsResponseTopic] = array(DescribeShareGroupOffsetsResponseTopic)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)


@message(key=90, versions="0-1", flexible="0+")
class DescribeShareGroupOffsetsResponse:
    throttle_time_ms: int = int32(default=0)
    groups: list[DescribeShareGroupOffsetsResponseGroup] = array(DescribeShareGroupOffsetsResponseGroup)
