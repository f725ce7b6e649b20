"""DescribeProducers: v0.

Behaviour: the response has the idempotent and transactional producers that each partition remembers, with the first
offset of the transaction that is open there (-1 if none is). READ on the topic is required. A partition that the
request contains twice is described twice, as in Kafka.

Errors: INVALID_TOPIC_EXCEPTION, TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import cast

from korvet.broker.broker import Broker, partition_of
from korvet.broker.context import RequestContext
from korvet.broker.topics import validate_name
from korvet.concurrency.tasks import in_parallel
from korvet.concurrency.time_slices import map_in_slices
from korvet.protocol.buffers import EncodedElements
from korvet.protocol.codec import element_writer
from korvet.protocol.errors import KafkaError, detached
from korvet.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicRequest,
    TopicResponse,
)
from korvet.protocol.repetitions import encoded
from korvet.security.acls import Operation
from korvet.storage.interface import ActiveProducer, Topic, TopicPartition


async def handle(
    broker: Broker, request: DescribeProducersRequest, context: RequestContext
) -> DescribeProducersResponse:
    topics = {name: await _topic(broker, context, name) for name in {each.name for each in request.topics}}
    asked = [TopicPartition(each.name, index) for each in request.topics for index in each.partition_indexes]
    unique = list(dict.fromkeys(asked))
    found = await in_parallel(partial(_partition, broker, topics), unique)
    answers = dict(zip(unique, found, strict=True))
    write = element_writer(DescribeProducersResponse, PartitionResponse, context.version)
    # A partition can have many producers: repetitions share one encoding.
    encodings = {} if len(asked) == len(unique) else {tp: encoded(write, answers[tp]) for tp in unique}

    def answer(topic: TopicRequest) -> TopicResponse:
        tps = [TopicPartition(topic.name, index) for index in topic.partition_indexes]
        if not encodings:
            return TopicResponse(name=topic.name, partitions=[answers[tp] for tp in tps])
        elements = EncodedElements(len(tps), [encodings[tp] for tp in tps])
        return TopicResponse(name=topic.name, partitions=cast(list[PartitionResponse], elements))

    return DescribeProducersResponse(topics=await map_in_slices(answer, request.topics))


async def _topic(broker: Broker, context: RequestContext, name: str) -> Topic | KafkaError:
    try:
        validate_name(name)
        return await broker.topic(context, name, Operation.READ)
    except KafkaError as error:
        return detached(error)


async def _partition(
    broker: Broker, topics: Mapping[str, Topic | KafkaError], tp: TopicPartition
) -> PartitionResponse:
    topic = topics[tp.topic]
    try:
        if isinstance(topic, KafkaError):
            raise topic
        producers = await broker.log.active_producers(partition_of(topic, tp.partition))
    except KafkaError as error:
        return PartitionResponse(
            partition_index=tp.partition, error_code=error.error_code, error_message=error.message
        )
    states = await map_in_slices(_state, producers)
    return PartitionResponse(partition_index=tp.partition, active_producers=states)


def _state(producer: ActiveProducer) -> ProducerState:
    return ProducerState(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        last_sequence=producer.last_sequence,
        last_timestamp=producer.last_timestamp,
        coordinator_epoch=producer.coordinator_epoch,
        current_txn_start_offset=producer.current_txn_start_offset,
    )
