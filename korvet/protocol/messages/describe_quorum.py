"""DescribeQuorum: the controllers, and the brokers that follow them (KIP-595).

v1 added times of followers (KIP-836); v2 nodes, directories and messages of errors (KIP-853).
"""

from __future__ import annotations

from uuid import UUID

from korvet.protocol.schema import (
    ZERO_UUID,
    array,
    int16,
    int32,
    int64,
    message,
    string,
    struct,
    uint16,
    uuid,
)


@struct
class AskedPartition:
    partition_index: int = int32()


# In Kafka, the structs of the request have the names of those of the response.
AskedPartition.__name__ = "PartitionData"


@struct
class AskedTopic:
    topic_name: str = string()
    partitions: list[AskedPartition] = array(AskedPartition)


AskedTopic.__name__ = "TopicData"


@message(key=55, versions="0-2", flexible="0+")
class DescribeQuorumRequest:
    topics: list[AskedTopic] = array(AskedTopic)


@struct
class ReplicaState:
    replica_id: int = int32()
    replica_directory_id: UUID = uuid(versions="2+", default=ZERO_UUID)
    log_end_offset: int = int64()
    last_fetch_timestamp: int = int64(versions="1+", default=-1, ignorable=True)
    last_caught_up_timestamp: int = int64(versions="1+", default=-1, ignorable=True)


@struct
class PartitionData:
    partition_index: int = int32()
    error_code: int = int16(default=0)
    error_message: str | None = string(versions="2+", nullable="2+", default="", ignorable=True)
    leader_id: int = int32()
    leader_epoch: int = int32()
    high_watermark: int = int64()
    current_voters: list[ReplicaState] = array(ReplicaState)
    observers: list[ReplicaState] = array(ReplicaState)


@struct
class TopicData:
    topic_name: str = string()
    partitions: list[PartitionData] = array(PartitionData)


@struct
class Listener:
    name: str = string(versions="2+")
    host: str = string(versions="2+")
    port: int = uint16(versions="2+")


@struct
class Node:
    node_id: int = int32(versions="2+")
    listeners: list[Listener] = array(Listener, versions="2+")


@message(key=55, versions="0-2", flexible="0+")
class DescribeQuorumResponse:
    error_code: int = int16(default=0)
    error_message: str | None = string(versions="2+", nullable="2+", default="", ignorable=True)
    topics: list[TopicData] = array(TopicData)
    nodes: list[Node] = array(Node, versions="2+", factory=list)
