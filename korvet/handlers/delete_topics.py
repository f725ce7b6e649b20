"""DeleteTopics: v1-6.

Behaviour: the topic's records, its settings and the groups' committed offsets on it are deleted before the response.
Errors per topic: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, and INVALID_REQUEST for a duplicate topic, or one with
both a name and an id, or neither. With `delete.topic.enable=false`, the error is TOPIC_DELETION_DISABLED for all topics
(INVALID_REQUEST before v3).

Versions: by name or by id (KIP-516) from v6. Messages from v5, and THROTTLING_QUOTA_EXCEEDED for topics whose
partitions exceed the client's quota; before, the client is only throttled.

Declined: `timeout_ms`, as in CreateTopics.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from uuid import UUID

from korvet.broker.broker import Broker, log_topic
from korvet.broker.context import RequestContext
from korvet.concurrency.time_slices import each_in_slices, map_in_slices
from korvet.protocol.errors import InvalidRequest, KafkaError, TopicAuthorizationFailed, TopicDeletionDisabled
from korvet.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from korvet.protocol.schema import ZERO_UUID
from korvet.security.acls import Operation, ResourceType
from korvet.storage.interface import Topic

# The requested topic: its name or None, and its id or zero.
Asked = tuple[str | None, UUID]


class DescribedTopicDenied(TopicAuthorizationFailed):
    """The client may describe a topic that it may not delete, so the response has its name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


async def handle(
    broker: Broker, request: DeleteTopicsRequest, context: RequestContext
) -> DeleteTopicsResponse:
    states = [DeleteTopicState(name=name) for name in request.topic_names] + request.topics
    asked = Counter(await map_in_slices(_asked, states))
    may_all = broker.may_on_cluster(context, Operation.DELETE)
    delete = partial(_delete, broker, context, may_all=may_all)
    return DeleteTopicsResponse(responses=await each_in_slices(delete, asked.items()))


def _asked(state: DeleteTopicState) -> Asked:
    return state.name, state.topic_id


async def _delete(
    broker: Broker, context: RequestContext, counted: tuple[Asked, int], *, may_all: bool
) -> DeletableTopicResult:
    asked, times = counted
    name, topic_id = asked
    try:
        _check(broker, context, asked, times)
        topic = await _found(broker, asked) if may_all else await _authorized(broker, context, asked)
        name, topic_id = topic.name, topic.topic_id
        broker.quotas.mutated(context, topic.partitions, is_strict=context.version >= 5)
        await broker.delete_topic(topic)
        log_topic(context, topic, "deleted")
    except DescribedTopicDenied as error:
        return DeletableTopicResult(
            name=error.name, topic_id=topic_id, error_code=error.error_code, error_message=error.message
        )
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


async def _authorized(broker: Broker, context: RequestContext, asked: Asked) -> Topic:
    """Return a topic that the client may delete. A client that may not describe it does not learn of it."""
    name, topic_id = asked
    if name is not None:
        topic = await broker.topic(context, name, Operation.DESCRIBE)
        broker.authorize(context, Operation.DELETE, ResourceType.TOPIC, name)
        return topic
    topic = await broker.find_topic_by_id(topic_id)
    if broker.may(context, Operation.DELETE, ResourceType.TOPIC, topic.name):
        return topic
    broker.authorize(context, Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
    raise DescribedTopicDenied(topic.name)


async def _found(broker: Broker, asked: Asked) -> Topic:
    name, topic_id = asked
    return await broker.find_topic_by_id(topic_id) if name is None else await broker.find_topic(name)
