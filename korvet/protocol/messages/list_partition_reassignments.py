"""ListPartitionReassignments: partitions that are moving from broker to broker (KIP-455)."""

from __future__ import annotations

from korvet.protocol.schema import array, int16, int32, message, string, struct


@struct
class ListPartitionReassignmentsTopics:
    name: str = string()
    partition_indexes: list[int] = array(int32)


@message(key=46, versions="0", flexible="0+")
class ListPartitionReassignmentsRequest:
    timeout_ms: int = int32(default=60000)
    topics: list[ListPartitionReassignmentsTopics] | None = array(
        ListPartitionReassignmentsTopics, nullable="0+", default=None
    )


@struct
class OngoingPartitionReassignment:
    partition_index: int = int32()
    replicas: list[int] = array(int32)
    adding_replicas: list[int] = array(int32)
    removing_replicas: list[int] = array(int32)


@struct
class OngoingTopicReassignment:
    name: str = string()
    partitions: list[OngoingPartitionReassignment] = array(OngoingPartitionReassignment)


@message(key=46, versions="0", flexible="0+")
class ListPartitionReassignmentsResponse:
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+")
    topics: list[OngoingTopicReassignment] = array(OngoingTopicReassignment)
