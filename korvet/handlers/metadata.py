"""Metadata: v0-12.

Behaviour: the brokers, at the address meant for the listener that was asked; a controller, always; topics with
their partitions, each led by this broker and replicated once. A topic that is not there is created, with the
broker's defaults, where both sides allow it, and is in this very answer; otherwise UNKNOWN_TOPIC_OR_PARTITION, or
INVALID_TOPIC_EXCEPTION where no topic could have that name.

Versions: null asks for all topics (in v0 an empty list does), an empty list for none. Clients may forbid creation
from v4. Authorized operations from v8, of topics and (up to v10) the cluster, only when asked for. By id from v12:
UNKNOWN_TOPIC_ID; a request with ids is about these alone, as in Kafka. In v10 and v11 a null name, or an id, is
INVALID_REQUEST.

Declined: topics that Kafka keeps for itself (`__consumer_offsets`) are never created on demand.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from korvet.broker import Broker, Disconnect, Operation, RequestContext, Resource
from korvet.protocol.errors import ErrorCode, KafkaError
from korvet.protocol.messages.metadata import (
    AUTHORIZED_OPERATIONS_OMITTED,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from korvet.protocol.schema import ZERO_UUID
from korvet.storage.interface import Topic, TopicPartition
from korvet.topics import INTERNAL_TOPICS, validate_name


async def handle(broker: Broker, request: MetadataRequest, context: RequestContext) -> MetadataResponse:
    nodes = broker.nodes(context)
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
            for node in nodes
        ],
        cluster_id=broker.cluster_id,
        controller_id=broker.controller_id,
        topics=await _topics(broker, request, context),
        cluster_authorized_operations=_cluster_operations(broker, request, context),
    )


def _cluster_operations(broker: Broker, request: MetadataRequest, context: RequestContext) -> int:
    if not request.include_cluster_authorized_operations:
        return AUTHORIZED_OPERATIONS_OMITTED
    return broker.authorized_operations(context, Resource.CLUSTER, "kafka-cluster")


async def _topics(
    broker: Broker, request: MetadataRequest, context: RequestContext
) -> list[MetadataResponseTopic]:
    wanted = request.topics
    if wanted is None or (context.version == 0 and not wanted):
        return await _all_topics(broker, request, context)
    if context.version < 12 and any(topic.name is None or topic.topic_id != ZERO_UUID for topic in wanted):
        return [_error(ErrorCode.INVALID_REQUEST, topic.name or "") for topic in wanted]

    ids = [topic.topic_id for topic in wanted if topic.topic_id != ZERO_UUID]
    if ids:
        return [await _by_id(broker, request, context, topic_id) for topic_id in dict.fromkeys(ids)]
    return [await _by_name(broker, request, context, name) for name in _names(wanted)]


def _names(wanted: Iterable[MetadataRequestTopic]) -> Iterable[str]:
    return dict.fromkeys(topic.name or "" for topic in wanted)


async def _all_topics(
    broker: Broker, request: MetadataRequest, context: RequestContext
) -> list[MetadataResponseTopic]:
    try:
        topics = await broker.topics(context, Operation.DESCRIBE)
    except KafkaError as error:
        # The answer has no place for an error of its own, and fewer topics would be taken for the truth.
        raise Disconnect(f"the topics cannot be listed: {error}") from error
    return [_described(broker, request, context, topic) for topic in topics]


async def _by_id(
    broker: Broker, request: MetadataRequest, context: RequestContext, topic_id: UUID
) -> MetadataResponseTopic:
    try:
        topic = await broker.topic_by_id(context, topic_id, Operation.DESCRIBE)
        return _described(broker, request, context, topic)
    except KafkaError as error:
        return _error(error.error_code, None, topic_id)


async def _by_name(
    broker: Broker, request: MetadataRequest, context: RequestContext, name: str
) -> MetadataResponseTopic:
    try:
        validate_name(name)
        if _may_create(broker, request, name):
            topic = await broker.topic_or_new(context, name)
        else:
            topic = await broker.topic(context, name, Operation.DESCRIBE)
        return _described(broker, request, context, topic)
    except KafkaError as error:
        return _error(error.error_code, name)


def _may_create(broker: Broker, request: MetadataRequest, name: str) -> bool:
    allowed = broker.config.auto_create_topics_enable and request.allow_auto_topic_creation
    return allowed and name not in INTERNAL_TOPICS


def _described(
    broker: Broker, request: MetadataRequest, context: RequestContext, topic: Topic
) -> MetadataResponseTopic:
    operations = AUTHORIZED_OPERATIONS_OMITTED
    if request.include_topic_authorized_operations:
        operations = broker.authorized_operations(context, Resource.TOPIC, topic.name)
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[
            _partition(broker, TopicPartition(topic.name, number)) for number in range(topic.partitions)
        ],
        topic_authorized_operations=operations,
    )


def _partition(broker: Broker, tp: TopicPartition) -> MetadataResponsePartition:
    leader_id = broker.leader_id(tp)
    return MetadataResponsePartition(
        partition_index=tp.partition,
        leader_id=leader_id,
        leader_epoch=broker.leader_epoch(tp),
        replica_nodes=[leader_id],
        isr_nodes=[leader_id],
    )


def _error(code: ErrorCode, name: str | None, topic_id: UUID = ZERO_UUID) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=code,
        name=name,
        topic_id=topic_id,
        is_internal=name in INTERNAL_TOPICS,
        partitions=[],
    )
