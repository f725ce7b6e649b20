"""ShareGroupHeartbeat: join, stay in or leave a share group, whose broker assigns partitions (KIP-932).

`member_epoch`: 0 joins, -1 leaves. Null means unchanged since the last request.
"""

from __future__ import annotations

from uuid import UUID

from korvet.protocol.schema import array, int16, int32, message, nested, string, struct, uuid


@message(key=76, versions="1", flexible="0+")
class ShareGroupHeartbeatRequest:
    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32()
    rack_id: str | None = string(nullable="0+", default=None)
    subscribed_topic_names: list[str] | None = array(string, nullable="0+", default=None)


@struct
class TopicPartitions:
    topic_id: UUID = uuid()
    partitions: list[int] = array(int32)


@struct
class Assignment:
    topic_partitions: list[TopicPartitions] = array(TopicPartitions)


@message(key=76, versions="1", flexible="0+")
class ShareGroupHeartbeatResponse:
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    member_id: str | None = string(nullable="0+", default=None)
    member_epoch: int = int32(default=0)
    heartbeat_interval_ms: int = int32(default=0)
    assignment: Assignment | None = nested(Assignment, nullable="0+", default=None)
