"""ShareAcknowledge: v1-2.

Behaviour: a member of a share group acknowledges records that it has acquired (KIP-932), in its session: it accepts,
releases or rejects them, or renews their locks. The response has each partition of the request. The epoch -1 ends the
session, and releases the rest of what its member has acquired. READ on the group and on each topic is required.

Versions: v2 renews locks (KIP-1222), and has the group's lock duration.

Errors: INVALID_REQUEST; SHARE_SESSION_NOT_FOUND; INVALID_SHARE_SESSION_EPOCH, also for the epoch 0. Of a partition:
INVALID_REQUEST and INVALID_RECORD_STATE, none of its records is then acknowledged; UNKNOWN_TOPIC_ID,
UNKNOWN_TOPIC_OR_PARTITION, TOPIC_AUTHORIZATION_FAILED, NOT_LEADER_OR_FOLLOWER.
"""

from __future__ import annotations

from uuid import UUID

from korvet.broker.broker import Broker
from korvet.broker.context import RequestContext
from korvet.broker.share_requests import NO_LEADER, ShareRequest
from korvet.broker.sharing import acknowledgements, validated_member
from korvet.protocol.errors import InvalidShareSessionEpoch, KafkaError
from korvet.protocol.messages.share_acknowledge import (
    PartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
)
from korvet.security.acls import Operation
from korvet.share.sessions import FINAL_EPOCH, INITIAL_EPOCH, Partition


async def handle(
    broker: Broker, request: ShareAcknowledgeRequest, context: RequestContext
) -> ShareAcknowledgeResponse:
    try:
        key = validated_member(request.group_id, request.member_id)
        broker.group(context, key.group_id, Operation.READ)
        given = acknowledgements(
            ((topic.topic_id, topic.partitions) for topic in request.topics),
            context.version,
            renews=request.is_renew_ack,
        )
        if request.share_session_epoch == INITIAL_EPOCH:
            raise InvalidShareSessionEpoch
        session = broker.share.sessions.next(key, request.share_session_epoch)
    except KafkaError as error:
        return ShareAcknowledgeResponse(error_code=error.error_code, error_message=error.message)
    looked_up = ShareRequest(broker, context, session)
    outcomes = await looked_up.acknowledge(given)
    if request.share_session_epoch == FINAL_EPOCH:
        await broker.share.end(context, session)
    topics: dict[UUID, ShareAcknowledgeTopicResponse] = {}
    for partition, outcome in outcomes.items():
        empty = ShareAcknowledgeTopicResponse(topic_id=partition.topic_id, partitions=[])
        topics.setdefault(partition.topic_id, empty).partitions.append(_data(looked_up, partition, outcome))
    leaders = [data.current_leader for topic in topics.values() for data in topic.partitions]
    return ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=broker.share.settings(key.group_id).limits.lock_ms,
        responses=list(topics.values()),
        node_endpoints=looked_up.endpoints(leaders),
    )


def _data(looked_up: ShareRequest, partition: Partition, error: KafkaError | None) -> PartitionData:
    data = PartitionData(partition_index=partition.number, current_leader=NO_LEADER)
    if error is not None:
        data.error_code, data.error_message = error.error_code, error.message
        data.current_leader = looked_up.leader(partition, error.error_code)
    return data
