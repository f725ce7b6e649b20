"""DeleteRecords: v0-2.

Behaviour: the offset becomes the log start offset, also inside a batch, and records below it are not delivered again;
-1 stands for the high watermark. An offset below the log start offset changes nothing. The response has the new log
start offset. Errors per partition: OFFSET_OUT_OF_RANGE above the high watermark, or below -1;
UNKNOWN_TOPIC_OR_PARTITION; POLICY_VIOLATION if the topic's `cleanup.policy` does not contain delete;
INVALID_TOPIC_EXCEPTION for Kafka's internal topics.

Versions: they differ only in encoding.

Declined: `timeout_ms`; the records are deleted before the response.
"""

from __future__ import annotations

from functools import partial

from korvet.broker.broker import Broker, partition_of
from korvet.broker.context import RequestContext
from korvet.broker.topics import INTERNAL_TOPICS, SETTINGS
from korvet.concurrency.time_slices import TimeSlices, each_in_slices
from korvet.protocol.errors import InvalidTopicException, KafkaError, OffsetOutOfRange, PolicyViolation
from korvet.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from korvet.security.acls import Operation
from korvet.storage.interface import Topic, TopicPartition

HIGH_WATERMARK = -1
NO_LOW_WATERMARK = -1


async def handle(
    broker: Broker, request: DeleteRecordsRequest, context: RequestContext
) -> DeleteRecordsResponse:
    # If the request contains a partition several times, the last offset counts.
    asked: dict[str, dict[int, int]] = {}
    time_slices = TimeSlices()
    for topic in request.topics:
        offsets = asked.setdefault(topic.name, {})
        offsets.update((each.partition_index, each.offset) for each in topic.partitions)
        await time_slices.next()

    async def delete(topic: tuple[str, dict[int, int]]) -> DeleteRecordsTopicResult:
        name, offsets = topic
        partitions = await each_in_slices(partial(_delete, broker, context, name), offsets.items())
        return DeleteRecordsTopicResult(name=name, partitions=partitions)

    return DeleteRecordsResponse(topics=await each_in_slices(delete, asked.items()))


async def _delete(
    broker: Broker, context: RequestContext, name: str, asked: tuple[int, int]
) -> DeleteRecordsPartitionResult:
    number, offset = asked
    tp = TopicPartition(name, number)
    try:
        topic = await broker.topic(context, tp.topic, Operation.DELETE)
        partition_of(topic, tp.partition)
        _check_deletable(topic)
        start = await _truncate(broker, tp, offset)
    except KafkaError as error:
        return DeleteRecordsPartitionResult(
            partition_index=tp.partition, low_watermark=NO_LOW_WATERMARK, error_code=error.error_code
        )
    return DeleteRecordsPartitionResult(partition_index=tp.partition, low_watermark=start)


def _check_deletable(topic: Topic) -> None:
    if topic.name in INTERNAL_TOPICS:
        raise InvalidTopicException(f"Cannot delete records of internal topic {topic.name}")
    setting = SETTINGS["cleanup.policy"]
    if "delete" not in setting.kind.parse(topic.settings.get(setting.name, setting.default)):
        raise PolicyViolation(
            f"Records of topic {topic.name} can not be deleted due to the configured policy"
        )


async def _truncate(broker: Broker, tp: TopicPartition, offset: int) -> int:
    if offset == HIGH_WATERMARK:
        offset = (await broker.log.local_bounds(tp)).high_watermark
    if offset < 0:
        raise OffsetOutOfRange(f"The offset {offset} for partition {tp.topic}-{tp.partition} is not valid")
    return await broker.log.truncate_before(tp, offset)
