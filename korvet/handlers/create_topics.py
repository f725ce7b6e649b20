"""CreateTopics: v2-7.

Behaviour: the broker creates each topic with a new random id, or returns an error: INVALID_TOPIC_EXCEPTION (also for a
name that differs from another only in '.' and '_'), TOPIC_ALREADY_EXISTS, INVALID_CONFIG with every invalid setting and
the accepted values, INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR, INVALID_REPLICA_ASSIGNMENT, or INVALID_REQUEST for
a topic that appears twice in the request. It returns POLICY_VIOLATION for all topics of a request with more than 10,000
partitions (or `max.partitions`, if that is larger), and for a topic that would exceed `max.broker.partitions`. It
returns THROTTLING_QUOTA_EXCEEDED for topics above the client's quota, to which topics count also with `validate_only`.
-1 means the broker's default. With `validate_only`, the response is the same and nothing is created. The broker accepts
every replication factor and reports 1; with `replication.factor.policy=strict`, at most the number of living brokers,
and with `brokers` it also reports that number.
Manual assignments may only contain living brokers.

Versions: settings, partitions and replication factor are in the response from v5, the topic's id from v7. Before v6, a
client over its quota is only throttled.

Declined: `timeout_ms`. The topics exist when the broker responds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from uuid import UUID

from korvet.broker.broker import Broker, log_topic
from korvet.broker.context import RequestContext
from korvet.broker.topics import (
    CLUSTER_METADATA_TOPIC,
    NewTopic,
    PlannedTopic,
    effective,
    requested_partitions,
    validate_request,
)
from korvet.concurrency.time_slices import TimeSlices, map_in_slices
from korvet.protocol.errors import ErrorCode, InvalidRequest, KafkaError, PolicyViolation
from korvet.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from korvet.protocol.schema import ZERO_UUID
from korvet.security.acls import Operation, ResourceType


async def handle(
    broker: Broker, request: CreateTopicsRequest, context: RequestContext
) -> CreateTopicsResponse:
    asked = Counter(topic.name for topic in request.topics)
    # A topic that appears several times has one entry in the response, in the place of its first appearance.
    topics = {topic.name: topic for topic in reversed(request.topics)}
    results = await _denied(broker, context, asked)
    denied = {result.name for result in results}
    allowed = {name: times for name, times in asked.items() if name not in denied}
    wanted = await map_in_slices(_wanted, [topic for topic in request.topics if topic.name in allowed])
    try:
        validate_request(sum(requested_partitions(each, broker.config) for each in wanted), broker.config)
    except PolicyViolation as error:
        return CreateTopicsResponse(topics=results + [_refused(name, error) for name in allowed])
    time_slices = TimeSlices()
    for name, times in allowed.items():
        results.append(
            await _create(broker, context, topics[name], times=times, validate_only=request.validate_only)
        )
        await time_slices.next()
    return CreateTopicsResponse(topics=results)


async def _denied(
    broker: Broker, context: RequestContext, asked: Mapping[str, int]
) -> list[CreatableTopicResult]:
    """Return an error for each topic that the client may not create. Invalid entries get other errors."""
    refused = []
    time_slices = TimeSlices()
    for name, times in asked.items():
        try:
            if times == 1 and name != CLUSTER_METADATA_TOPIC:
                broker.authorize_creation(context, name)
        except KafkaError as error:
            refused.append(_refused(name, error))
        await time_slices.next()
    return refused


async def _create(
    broker: Broker, context: RequestContext, topic: CreatableTopic, *, times: int, validate_only: bool
) -> CreatableTopicResult:
    try:
        if times > 1:
            raise InvalidRequest("Duplicate topic name.")
        if topic.name == CLUSTER_METADATA_TOPIC:
            raise InvalidRequest(f"Creation of internal topic {topic.name} is prohibited.")
        planned = await broker.plan_topic(_wanted(topic))
        broker.quotas.mutated(context, planned.partitions, is_strict=context.version >= 6)
        if validate_only:
            return _created(broker, context, planned, ZERO_UUID)
        created = await broker.create_topic(planned)
        log_topic(context, created, "created")
        planned = PlannedTopic(created.name, created.partitions, created.settings)
        return _created(broker, context, planned, created.topic_id)
    except KafkaError as error:
        return _refused(topic.name, error)


def _refused(name: str, error: KafkaError) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=error.error_code, error_message=error.message)


def _wanted(topic: CreatableTopic) -> NewTopic:
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        [(assignment.partition_index, assignment.broker_ids) for assignment in topic.assignments],
        [(setting.name, setting.value) for setting in topic.configs],
    )


def _created(
    broker: Broker, context: RequestContext, topic: PlannedTopic, topic_id: UUID
) -> CreatableTopicResult:
    if not broker.may(context, Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, topic.name):
        return CreatableTopicResult(
            name=topic.name,
            topic_id=topic_id,
            error_message=None,
            topic_config_error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        )
    return CreatableTopicResult(
        name=topic.name,
        topic_id=topic_id,
        error_message=None,
        num_partitions=topic.partitions,
        replication_factor=len(broker.replicas(broker.membership.node_id, broker.membership.living)),
        configs=[
            CreatableTopicConfigs(
                name=each.setting.name,
                value=each.value,
                read_only=each.setting.fixed,
                config_source=each.source,
                is_sensitive=False,
            )
            for each in effective(topic.settings, broker.config)
        ],
    )
