"""ShareAcknowledge: acknowledge records that a member of a share group has acquired (KIP-932).

`share_session_epoch` and `acknowledge_types` are those of ShareFetch.
"""

from __future__ import annotations

from uuid import UUID

from korvet.protocol.messages.share_fetch import AcknowledgementBatch, LeaderIdAndEpoch, NodeEndpoint
from korvet.protocol.schema import array, boolean, int16, int32, message, nested, string, struct, uuid


@struct
class AcknowledgePartition:
    partition_index: int = int32()
    acknowledgement_batches: list[AcknowledgementBatch] = array(AcknowledgementBatch)


@struct
class AcknowledgeTopic:
    topic_id: UUID = uuid()
    partitions: list[AcknowledgePartition] = array(AcknowledgePartition)


@message(key=79, versions="1-2", flexible="0+")
class ShareAcknowledgeRequest:
    group_id: str | None = string(nullable="0+", default=None)
    member_id: str | None = string(nullable="0+")
    share_session_epoch: int = int32()
    is_renew_ack: bool = boolean(versions="2+", default=False)
    topics: list[AcknowledgeTopic] = array(AcknowledgeTopic)


@struct
class PartitionData:
    partition_index: int = int32()
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    current_leader: LeaderIdAndEpoch = nested(LeaderIdAndEpoch)


@struct
class ShareAcknowledgeTopicResponse:
    topic_id: UUID = uuid()
    partitions: list[PartitionData] = array(PartitionData)


@message(key=79, versions="1-2", flexible="0+")
class ShareAcknowledgeResponse:
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    acquisition_lock_timeout_ms: int = int32(versions="2+", default=0, ignorable=True)
    responses: list[ShareAcknowledgeTopicResponse] = array(ShareAcknowledgeTopicResponse, factory=list)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, factory=list)
