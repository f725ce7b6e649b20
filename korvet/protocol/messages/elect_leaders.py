"""ElectLeaders: let controllers elect the leaders of partitions. v1 added types of elections (KIP-460)."""

from __future__ import annotations

from korvet.protocol.schema import array, int8, int16, int32, message, string, struct


@struct
class TopicPartitions:
    topic: str = string()
    partitions: list[int] = array(int32)


@message(key=43, versions="0-2", flexible="2+")
class ElectLeadersRequest:
    election_type: int = int8(versions="1+", default=0)
    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, nullable="0+")
    timeout_ms: int = int32(default=60000)


@struct
class PartitionResult:
    partition_id: int = int32()
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default="")


@struct
class ReplicaElectionResult:
    topic: str = string()
    partition_result: list[PartitionResult] = array(PartitionResult)


@message(key=43, versions="0-2", flexible="2+")
class ElectLeadersResponse:
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(versions="1+", default=0)
    replica_election_results: list[ReplicaElectionResult] = array(ReplicaElectionResult)
