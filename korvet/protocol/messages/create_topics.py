"""CreateTopics: new topics with their settings. -1 asks for the broker's default (KIP-464)."""

from __future__ import annotations

from uuid import UUID

from korvet.protocol.schema import (
    ZERO_UUID,
    array,
    boolean,
    int8,
    int16,
    int32,
    message,
    string,
    struct,
    uuid,
)


@struct
class CreatableReplicaAssignment:
    partition_index: int = int32()
    broker_ids: list[int] = array(int32)


@struct
class CreatableTopicConfig:
    name: str = string()
    value: str | None = string(nullable="0+")


@struct
class CreatableTopic:
    name: str = string()
    num_partitions: int = int32()
    replication_factor: int = int16()
    assignments: list[CreatableReplicaAssignment] = array(CreatableReplicaAssignment, factory=list)
    configs: list[CreatableTopicConfig] = array(CreatableTopicConfig, factory=list)


@message(key=19, versions="2-7", flexible="5+")
class CreateTopicsRequest:
    topics: list[CreatableTopic] = array(CreatableTopic)
    timeout_ms: int = int32(default=60000)
    validate_only: bool = boolean(versions="1+", default=False)


@struct
class CreatableTopicConfigs:
    name: str = string(versions="5+")
    value: str | None = string(versions="5+", nullable="5+")
    read_only: bool = boolean(versions="5+")
    config_source: int = int8(versions="5+", default=-1, ignorable=True)
    is_sensitive: bool = boolean(versions="5+")


@struct
class CreatableTopicResult:
    name: str = string()
    topic_id: UUID = uuid(versions="7+", default=ZERO_UUID, ignorable=True)
    error_code: int = int16(default=0)
    error_message: str | None = string(versions="1+", nullable="0+", ignorable=True)
    topic_config_error_code: int = int16(versions="5+", tag=0, default=0, ignorable=True)
    num_partitions: int = int32(versions="5+", default=-1, ignorable=True)
    replication_factor: int = int16(versions="5+", default=-1, ignorable=True)
    configs: list[CreatableTopicConfigs] | None = array(
        CreatableTopicConfigs, versions="5+", nullable="5+", factory=list, ignorable=True
    )


@message(key=19, versions="2-7", flexible="5+")
class CreateTopicsResponse:
    throttle_time_ms: int = int32(versions="2+", default=0, ignorable=True)
    topics: list[CreatableTopicResult] = array(CreatableTopicResult)
