"""AlterReplicaLogDirs: v1-2.

Behaviour: the storage is the only log directory, and every partition is in it. A move to it is done at once.

Errors, for each partition: LOG_DIR_NOT_FOUND for every other directory, UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from korvet.broker.broker import Broker, partition_of
from korvet.broker.context import RequestContext
from korvet.concurrency.time_slices import TimeSlices
from korvet.protocol.errors import ErrorCode, KafkaError, detached
from korvet.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
    AlterReplicaLogDirTopicResult,
)
from korvet.security.acls import Operation
from korvet.storage.interface import Topic


async def handle(
    broker: Broker, request: AlterReplicaLogDirsRequest, context: RequestContext
) -> AlterReplicaLogDirsResponse:
    refused: KafkaError | None = None
    try:
        broker.cluster(context, Operation.ALTER)
    except KafkaError as error:
        refused = detached(error)
    results: dict[str, AlterReplicaLogDirTopicResult] = {}
    time_slices = TimeSlices()
    for directory in request.dirs:
        for topic in directory.topics:
            found = results.setdefault(
                topic.name, AlterReplicaLogDirTopicResult(topic_name=topic.name, partitions=[])
            )
            is_known = directory.path == broker.log_dir
            found.partitions += await _results(broker, topic, refused, time_slices, is_known=is_known)
    return AlterReplicaLogDirsResponse(results=[*results.values()])


async def _results(
    broker: Broker,
    asked: AlterReplicaLogDirTopic,
    refused: KafkaError | None,
    time_slices: TimeSlices,
    *,
    is_known: bool,
) -> list[AlterReplicaLogDirPartitionResult]:
    """Return the result of each partition of a topic; `is_known` if the directory is that of the broker."""
    topic: Topic | KafkaError
    try:
        topic = refused or await broker.find_topic(asked.name)
    except KafkaError as error:
        topic = detached(error)
    results = []
    for number in asked.partitions:
        result = AlterReplicaLogDirPartitionResult(partition_index=number)
        try:
            if refused is None and not is_known:
                result.error_code = ErrorCode.LOG_DIR_NOT_FOUND
            elif isinstance(topic, KafkaError):
                result.error_code = topic.error_code
            else:
                partition_of(topic, number)
        except KafkaError as error:
            result.error_code = error.error_code
        results.append(result)
        await time_slices.next()
    return results
