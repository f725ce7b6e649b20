"""CreatePartitions: more partitions for topics that are there; `count` is how many there shall be in all (KIP-195)."""

from __future__ import annotations

from korvet.protocol.schema import array, boolean, int16, int32, message, string, struct


@struct
class CreatePartitionsAssignment:
    broker_ids: list[int] = array(int32)


@struct
class CreatePartitionsTopic:
    name: str = string()
    count: int = int32()
    assignments: list[CreatePartitionsAssignment] | None = array(CreatePartitionsAssignment, nullable="0+")


@message(key=37, versions="0-3", flexible="2+")
class CreatePartitionsRequest:
    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic)
    timeout_ms: int = int32()
    validate_only: bool = boolean()


@struct
class CreatePartitionsTopicResult:
    name: str = string()
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)


@message(key=37, versions="0-3", flexible="2+")
class CreatePartitionsResponse:
    throttle_time_ms: int = int32(default=0)
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult)
