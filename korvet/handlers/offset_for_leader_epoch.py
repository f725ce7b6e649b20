"""OffsetForLeaderEpoch: v2-4.

Behaviour: the response has the end offset of an epoch, by which a consumer detects that the storage has lost records
that the consumer had read (KIP-320). The epoch rises only when the storage has detectably lost acknowledged records. An
unknown epoch gets epoch -1, offset -1. The current epoch in the request is checked first: FENCED_LEADER_EPOCH,
UNKNOWN_LEADER_EPOCH.
"""

from __future__ import annotations

from functools import partial

from korvet.broker.broker import NO_EPOCH, Broker, partition_of
from korvet.broker.context import RequestContext
from korvet.concurrency.tasks import in_parallel
from korvet.concurrency.time_slices import each_in_slices
from korvet.protocol.errors import KafkaError
from korvet.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
    OffsetForLeaderTopicResult,
)
from korvet.security.acls import Operation, ResourceType
from korvet.storage.interface import EpochEnd, Topic


async def handle(
    broker: Broker, request: OffsetForLeaderEpochRequest, context: RequestContext
) -> OffsetForLeaderEpochResponse:
    # Brokers, which may act on the cluster, need no permission on topics.
    is_broker = broker.may_on_cluster(context, Operation.CLUSTER_ACTION)
    find = partial(_topic, broker, context, is_broker=is_broker)
    return OffsetForLeaderEpochResponse(topics=await each_in_slices(find, request.topics))


async def _topic(
    broker: Broker, context: RequestContext, asked: OffsetForLeaderTopic, *, is_broker: bool
) -> OffsetForLeaderTopicResult:
    topic: Topic | KafkaError
    try:
        if not is_broker:
            broker.authorize(context, Operation.DESCRIBE, ResourceType.TOPIC, asked.topic)
        topic = await broker.find_topic(asked.topic)
    except KafkaError as error:
        topic = error

    async def answer(partition: OffsetForLeaderPartition) -> EpochEndOffset:
        try:
            if isinstance(topic, KafkaError):
                raise topic
            end = await _end(broker, topic, partition)
        except KafkaError as error:
            return EpochEndOffset(partition=partition.partition, error_code=error.error_code)
        return EpochEndOffset(
            partition=partition.partition, leader_epoch=end.leader_epoch, end_offset=end.end_offset
        )

    return OffsetForLeaderTopicResult(
        topic=asked.topic, partitions=await in_parallel(answer, asked.partitions)
    )


async def _end(broker: Broker, topic: Topic, asked: OffsetForLeaderPartition) -> EpochEnd:
    tp = partition_of(topic, asked.partition)
    if asked.current_leader_epoch != NO_EPOCH:
        bounds = await broker.log.local_bounds(tp)
        broker.check_leader_epoch(tp, asked.current_leader_epoch, bounds.leader_epoch)
    return await broker.log.epoch_end(tp, asked.leader_epoch)
