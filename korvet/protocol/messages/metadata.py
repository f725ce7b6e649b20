"""Metadata: brokers, topics and who leads their partitions.

The request's `topics`: null asks for all of them (in v0 an empty list does), an empty list for none.
Topics by id, with a null name, since v10 (KIP-516).
"""

from __future__ import annotations

from uuid import UUID

from korvet.protocol.schema import ZERO_UUID, array, boolean, int16, int32, message, string, struct, uuid

#: Stands for "not asked for" in fields of authorized operations, which are bit sets.
AUTHORIZED_OPERATIONS_OMITTED = -(2**31)


@struct
class MetadataRequestTopic:
    topic_id: UUID = uuid(versions="10+", default=ZERO_UUID, ignorable=True)
    name: str | None = string(nullable="10+")


@message(key=3, versions="0-13", flexible="9+")
class MetadataRequest:
    topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, nullable="1+")
    allow_auto_topic_creation: bool = boolean(versions="4+", default=True)
    include_cluster_authorized_operations: bool = boolean(versions="8-10", default=False)
    include_topic_authorized_operations: bool = boolean(versions="8+", default=False)


@struct
class MetadataResponseBroker:
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(versions="1+", nullable="1+", default=None, ignorable=True)


@struct
class MetadataResponsePartition:
    error_code: int = int16(default=0)
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(versions="7+", default=-1, ignorable=True)
    replica_nodes: list[int] = array(int32)
    isr_nodes: list[int] = array(int32)
    offline_replicas: list[int] = array(int32, versions="5+", factory=list, ignorable=True)


@struct
class MetadataResponseTopic:
    error_code: int = int16(default=0)
    name: str | None = string(nullable="12+")
    topic_id: UUID = uuid(versions="10+", default=ZERO_UUID, ignorable=True)
    is_internal: bool = boolean(versions="1+", default=False, ignorable=True)
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition, encodable=True)
    topic_authorized_operations: int = int32(versions="8+", default=AUTHORIZED_OPERATIONS_OMITTED)


@message(key=3, versions="0-13", flexible="9+")
class MetadataResponse:
    throttle_time_ms: int = int32(versions="3+", default=0, ignorable=True)
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker)
    cluster_id: str | None = string(versions="2+", nullable="2+", default=None, ignorable=True)
    controller_id: int = int32(versions="1+", default=-1, ignorable=True)
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic, encodable=True)
    cluster_authorized_operations: int = int32(versions="8-10", default=AUTHORIZED_OPERATIONS_OMITTED)
    error_code: int = int16(versions="13+", default=0, ignorable=True)
