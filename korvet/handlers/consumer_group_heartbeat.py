"""ConsumerGroupHeartbeat: v0-1.

Behaviour: a member joins (epoch 0), stays in, or leaves (-1; -2 for a while, if it is static) a group whose broker
assigns partitions (KIP-848). The response has the member's epoch, and its assignment after a request with all fields
and after a change. READ on the group and DESCRIBE on each subscribed topic are required. Topics that match a regular
expression and that the client may not describe are left out for the whole group, as in Kafka.

Versions: v1 has regular expressions in RE2's syntax (KIP-1043), and requires that clients make their member ids
(KIP-1082). In v0 the broker makes the id of a client that joins without one.

Errors: INVALID_REQUEST; UNSUPPORTED_ASSIGNOR; GROUP_ID_NOT_FOUND for a member of a group that does not exist, and for a
classic group that has members; GROUP_MAX_SIZE_REACHED; UNKNOWN_MEMBER_ID; UNRELEASED_INSTANCE_ID and FENCED_INSTANCE_ID
if another member has the instance id; FENCED_MEMBER_EPOCH; INVALID_REGULAR_EXPRESSION; COORDINATOR_NOT_AVAILABLE, which
clients retry, while the store is unavailable.

Differences: Kafka matches an expression in the background, so that a member waits an interval for its first assignment.
Here the first response has it.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any
from uuid import uuid4

from korvet.broker.broker import Broker, coordinator_error
from korvet.broker.context import RequestContext
from korvet.concurrency.time_slices import map_in_slices
from korvet.groups.consumer_members import JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH, Heartbeat
from korvet.groups.consumer_requests import Answer
from korvet.groups.subscriptions import Assignment as Partitions
from korvet.protocol.errors import (
    InvalidRegularExpression,
    InvalidRequest,
    KafkaError,
    TopicAuthorizationFailed,
    detached,
)
from korvet.protocol.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from korvet.protocol.patterns import compiled
from korvet.protocol.text import LONGEST_ID_BYTES, is_longer
from korvet.security.acls import Operation, ResourceType


def handle(
    broker: Broker, request: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> ConsumerGroupHeartbeatResponse | Coroutine[Any, Any, ConsumerGroupHeartbeatResponse]:
    """Handle a request. Return the response itself if the request only extends the member's session."""
    answer = None
    try:
        group_id = broker.group(context, request.group_id, Operation.READ)
        if not request.subscribed_topic_names and not request.subscribed_topic_regex:
            _validate(request, context.version)
            answer = broker.groups.consumer_heartbeat_now(group_id, _heartbeat(request, context))
    except KafkaError as error:
        return _refusal(error)
    if answer is None or answer.stale:
        return _handle(broker, request, context, group_id, answer)
    context.success = response = _response(answer)
    return response


async def _handle(
    broker: Broker,
    request: ConsumerGroupHeartbeatRequest,
    context: RequestContext,
    group_id: str,
    answer: Answer | None,
) -> ConsumerGroupHeartbeatResponse:
    """Handle a request to an authorized group, from the group's answer on if there is one."""
    try:
        if answer is None:
            answer = await _answer(broker, request, context, group_id)
        if answer.stale:
            resolved = {each: (await _matching(broker, context, each))[0] for each in answer.stale}
            await broker.groups.resolve(
                group_id, {key: each for key, each in resolved.items() if each is not None}
            )
    except KafkaError as error:
        return _refusal(error)
    return _response(answer)


async def _answer(
    broker: Broker, request: ConsumerGroupHeartbeatRequest, context: RequestContext, group_id: str
) -> Answer:
    if request.subscribed_topic_names:
        await _authorize_topics(broker, context, request.subscribed_topic_names)
    _validate(request, context.version)
    heartbeat = _heartbeat(request, context)
    matching, invalid = await _matching(broker, context, request.subscribed_topic_regex)
    return await broker.groups.consumer_heartbeat(group_id, heartbeat, matching, invalid)


def _refusal(error: KafkaError) -> ConsumerGroupHeartbeatResponse:
    refused = coordinator_error(error)
    return ConsumerGroupHeartbeatResponse(error_code=refused.error_code, error_message=refused.message)


async def _authorize_topics(broker: Broker, context: RequestContext, names: list[str]) -> None:
    allowed = await map_in_slices(
        lambda name: broker.may(context, Operation.DESCRIBE, ResourceType.TOPIC, name), names
    )
    if not all(allowed):
        raise TopicAuthorizationFailed


def _validate(request: ConsumerGroupHeartbeatRequest, version: int) -> None:
    """Raise InvalidRequest for a request that no state of the group permits."""
    epoch = request.member_epoch
    if not request.member_id and (version >= 1 or epoch > JOIN_EPOCH or epoch == LEAVE_EPOCH):
        raise InvalidRequest("MemberId can't be empty.")
    _validate_text("GroupId", request.group_id)
    _validate_id("InstanceId", request.instance_id)
    _validate_id("RackId", request.rack_id)
    _validate_length(request.member_id)
    if epoch == JOIN_EPOCH:
        _validate_join(request)
    elif epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        raise InvalidRequest("InstanceId can't be null.")
    elif epoch < STATIC_LEAVE_EPOCH:
        raise InvalidRequest("MemberEpoch is invalid.")


def _validate_text(name: str, text: str) -> None:
    if not text.strip():
        raise InvalidRequest(f"{name} can't be empty.")


def _validate_id(name: str, text: str | None) -> None:
    if text is not None:
        _validate_text(name, text)
        _validate_length(text)


def _validate_length(text: str) -> None:
    if is_longer(text, LONGEST_ID_BYTES):
        raise InvalidRequest(f"ids are at most {LONGEST_ID_BYTES} bytes long")


def _validate_join(request: ConsumerGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        raise InvalidRequest("RebalanceTimeoutMs must be provided in first request.")
    if request.topic_partitions is None or request.topic_partitions:
        raise InvalidRequest("TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise InvalidRequest(
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
        )


def _heartbeat(request: ConsumerGroupHeartbeatRequest, context: RequestContext) -> Heartbeat:
    names = request.subscribed_topic_names
    owned = request.topic_partitions
    return Heartbeat(
        member_id=request.member_id or str(uuid4()),
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        client_id=context.client_id or "",
        client_host=context.client_host,
        names=None if names is None else frozenset(names),
        expression=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=None if owned is None else _owned(owned),
    )


def _owned(topics: list[TopicPartitions]) -> Partitions:
    return {topic.topic_id: frozenset(topic.partitions) for topic in topics}


async def _matching(
    broker: Broker, context: RequestContext, expression: str | None
) -> tuple[frozenset[str] | None, InvalidRegularExpression | None]:
    """Return the topics that match an expression and that the client may describe, or why it does not compile."""
    if not expression:
        return None, None
    try:
        matches = compiled(expression)
    except InvalidRegularExpression as error:
        return None, InvalidRegularExpression(detached(error).message)

    def is_matching(name: str) -> bool:
        return matches(name) and broker.may(context, Operation.DESCRIBE, ResourceType.TOPIC, name)

    names = [topic.name for topic in await broker.all_topics()]
    found = await map_in_slices(is_matching, names)
    return frozenset(name for name, is_found in zip(names, found, strict=True) if is_found), None


def _response(answer: Answer) -> ConsumerGroupHeartbeatResponse:
    beat = answer.beat
    return ConsumerGroupHeartbeatResponse(
        member_id=beat.member_id,
        member_epoch=beat.member_epoch,
        heartbeat_interval_ms=answer.heartbeat_interval_ms if beat.member_epoch >= 0 else 0,
        assignment=None if beat.assignment is None else _assignment(beat.assignment),
    )


def _assignment(partitions: Partitions) -> Assignment:
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, partitions=sorted(numbers))
            for topic_id, numbers in partitions.items()
        ]
    )
