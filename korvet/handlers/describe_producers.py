"""DescribeProducers: v0.

Behaviour: the response has the idempotent and transactional producers that each partition remembers, with the first
offset of the transaction that is open there (-1 if none is). READ on the topic is required. A partition that the
request contains twice is described twice, as in Kafka.

Errors: INVALID_TOPIC_EXCEPTION, TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from functools import partial

from korvet.broker.broker import Broker, partition_of
from korvet.broker.context import RequestContext
from korvet.broker.topics import validate_name
from korvet.concurrency.tasks import in_parallel
from korvet.concurrency.time_slices import each_in_slices, map_in_slices
from korvet.protocol.errors import KafkaError
from korvet.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicRequest,
    TopicResponse,
)
from korvet.security.acls import Operation
from korvet.storage.interface import ActiveProducer, Topic


async def handle(
    broker: Broker, request: DescribeProducersRequest, context: RequestContext
) -> DescribeProducersResponse:
    topics = await each_in_slices(partial(_topic, broker, context), request.topics)
    return DescribeProducersResponse(topics=topics)


async def _topic(broker: Broker, context: RequestContext, asked: TopicRequest) -> TopicResponse:
    topic: Topic | KafkaError
    try:
        validate_name(asked.name)
        topic = await broker.topic(context, asked.name, Operation.READ)
    except KafkaError as error:
        topic = error
    partitions = await in_parallel(partial(_partition, broker, topic), asked.partition_indexes)
    return TopicResponse(name=asked.name, partitions=partitions)


async def _partition(broker: Broker, topic: Topic | KafkaError, index: int) -> PartitionResponse:
    try:
        if isinstance(topic, KafkaError):
            raise topic
        producers = await broker.log.active_producers(partition_of(topic, index))
    except KafkaError as error:
        return PartitionResponse(
            partition_index=index, error_code=error.error_code, error_message=error.message
        )
    states = await map_in_slices(_state, producers)
    return PartitionResponse(partition_index=index, active_producers=states)


def _state(producer: ActiveProducer) -> ProducerState:
    return ProducerState(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        last_sequence=producer.last_sequence,
        last_timestamp=producer.last_timestamp,
        coordinator_epoch=producer.coordinator_epoch,
        current_txn_start_offset=producer.current_txn_start_offset,
    )
