"""ShareGroupHeartbeat: v1.

Behaviour: a member joins (epoch 0), stays in, or leaves (-1) a share group, whose broker assigns partitions (KIP-932).
Several members may have a partition. The response has the member's epoch, and its assignment after a join and after a
change. READ on the group and DESCRIBE on each subscribed topic are required.

Errors: INVALID_REQUEST; GROUP_ID_NOT_FOUND for a member of a group that does not exist, and for a group of another
type, even an empty one; GROUP_MAX_SIZE_REACHED; UNKNOWN_MEMBER_ID; FENCED_MEMBER_EPOCH; COORDINATOR_NOT_AVAILABLE,
which clients retry, while the store is unavailable.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from korvet.broker.broker import Broker, coordinator_error
from korvet.broker.context import RequestContext
from korvet.concurrency.time_slices import map_in_slices
from korvet.groups.consumer_members import JOIN_EPOCH, LEAVE_EPOCH
from korvet.groups.consumer_requests import Answer
from korvet.groups.share import ShareHeartbeat
from korvet.protocol.errors import InvalidRequest, KafkaError, TopicAuthorizationFailed
from korvet.protocol.messages.share_group_heartbeat import (
    Assignment,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    TopicPartitions,
)
from korvet.protocol.text import LONGEST_ID_BYTES, is_longer
from korvet.security.acls import Operation, ResourceType


def handle(
    broker: Broker, request: ShareGroupHeartbeatRequest, context: RequestContext
) -> ShareGroupHeartbeatResponse | Coroutine[Any, Any, ShareGroupHeartbeatResponse]:
    """Handle a request. Return the response itself if the request only extends the member's session."""
    answer = None
    try:
        group_id = broker.group(context, request.group_id, Operation.READ)
        if not request.subscribed_topic_names:
            _validate(request)
            answer = broker.groups.share_heartbeat_now(group_id, _heartbeat(request, context))
    except KafkaError as error:
        return _refusal(error)
    if answer is None:
        return _handle(broker, request, context, group_id)
    context.success = response = _response(answer)
    return response


async def _handle(
    broker: Broker, request: ShareGroupHeartbeatRequest, context: RequestContext, group_id: str
) -> ShareGroupHeartbeatResponse:
    """Handle a request to an authorized group."""
    try:
        if request.subscribed_topic_names:
            await _authorize_topics(broker, context, request.subscribed_topic_names)
        _validate(request)
        answer = await broker.groups.share_heartbeat(group_id, _heartbeat(request, context))
    except KafkaError as error:
        return _refusal(error)
    return _response(answer)


def _refusal(error: KafkaError) -> ShareGroupHeartbeatResponse:
    refused = coordinator_error(error)
    return ShareGroupHeartbeatResponse(error_code=refused.error_code, error_message=refused.message)


async def _authorize_topics(broker: Broker, context: RequestContext, names: list[str]) -> None:
    allowed = await map_in_slices(
        lambda name: broker.may(context, Operation.DESCRIBE, ResourceType.TOPIC, name), names
    )
    if not all(allowed):
        raise TopicAuthorizationFailed


def _validate(request: ShareGroupHeartbeatRequest) -> None:
    """Raise InvalidRequest for a request that no state of the group permits."""
    texts = {"GroupId": request.group_id, "MemberId": request.member_id, "RackId": request.rack_id}
    for name, text in texts.items():
        if text is not None and not text.strip():
            raise InvalidRequest(f"{name} can't be empty.")
    if any(is_longer(each or "", LONGEST_ID_BYTES) for each in (request.member_id, request.rack_id)):
        raise InvalidRequest(f"ids are at most {LONGEST_ID_BYTES} bytes long")
    if request.member_epoch < LEAVE_EPOCH:
        raise InvalidRequest("MemberEpoch is invalid.")
    if request.member_epoch == JOIN_EPOCH and not request.subscribed_topic_names:
        raise InvalidRequest("SubscribedTopicNames must be set in first request.")


def _heartbeat(request: ShareGroupHeartbeatRequest, context: RequestContext) -> ShareHeartbeat:
    names = request.subscribed_topic_names
    return ShareHeartbeat(
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        rack_id=request.rack_id,
        client_id=context.client_id or "",
        client_host=context.client_host,
        names=None if names is None else frozenset(names),
    )


def _response(answer: Answer) -> ShareGroupHeartbeatResponse:
    beat = answer.beat
    response = ShareGroupHeartbeatResponse(
        member_id=beat.member_id,
        member_epoch=beat.member_epoch,
        heartbeat_interval_ms=answer.heartbeat_interval_ms if beat.member_epoch >= 0 else 0,
    )
    if beat.assignment is not None:
        response.assignment = Assignment(
            topic_partitions=[
                TopicPartitions(topic_id=topic_id, partitions=sorted(numbers))
                for topic_id, numbers in beat.assignment.items()
            ]
        )
    return response
