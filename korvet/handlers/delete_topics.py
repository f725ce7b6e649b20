"""DeleteTopics: v1-6.

Behaviour: the topic's records, its settings and the groups' committed offsets on it are deleted before the response.
Errors per topic: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, and INVALID_REQUEST for a duplicate topic, or one with
both a name and an id, or neither. With `delete.topic.enable=false`, the error is TOPIC_DELETION_DISABLED for all topics
(INVALID_REQUEST before v3).

Versions: by name or by id (KIP-516) from v6. Messages from v5.

Declined: `timeout_ms`, as in CreateTopics.
"""

from __future__ import annotations

from collections import Counter
from uuid import UUID

from korvet.broker.broker import Broker, Operation, RequestContext
from korvet.protocol.errors import InvalidRequest, KafkaError, TopicDeletionDisabled
from korvet.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from korvet.protocol.schema import ZERO_UUID
from korvet.storage.interface import Topic

# The requested topic: its name or None, and its id or zero.
Asked = tuple[str | None, UUID]


async def handle(
    broker: Broker, request: DeleteTopicsRequest, context: RequestContext
) -> DeleteTopicsResponse:
    states = [DeleteTopicState(name=name) for name in request.topic_names] + request.topics
    asked = Counter((state.name, state.topic_id) for state in states)
    return DeleteTopicsResponse(
        responses=[await _delete(broker, context, each, times) for each, times in asked.items()]
    )


async def _delete(broker: Broker, context: RequestContext, asked: Asked, times: int) -> DeletableTopicResult:
    name, topic_id = asked
    try:
        _check(broker, context, asked, times)
        topic = await _find(broker, context, asked)
        name, topic_id = topic.name, topic.topic_id
        await broker.delete_topic(topic)
    except KafkaError as error:
        return DeletableTopicResult(
            name=name, topic_id=topic_id, error_code=error.error_code, error_message=error.message
        )
    return DeletableTopicResult(name=name, topic_id=topic_id)


def _check(broker: Broker, context: RequestContext, asked: Asked, times: int) -> None:
    name, topic_id = asked
    if not broker.config.delete_topic_enable:
        if context.version < 3:
            raise InvalidRequest("Topic deletion is disabled.")
        raise TopicDeletionDisabled
    if name is None and topic_id == ZERO_UUID:
        raise InvalidRequest("Neither topic name nor id were specified.")
    if name is not None and topic_id != ZERO_UUID:
        raise InvalidRequest("You may not specify both topic name and topic id.")
    if times > 1:
        raise InvalidRequest("Duplicate topic name." if name is not None else "Duplicate topic id.")


async def _find(broker: Broker, context: RequestContext, asked: Asked) -> Topic:
    name, topic_id = asked
    if name is None:
        return await broker.topic_by_id(context, topic_id, Operation.DELETE)
    return await broker.topic(context, name, Operation.DELETE)
