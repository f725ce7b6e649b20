"""ElectLeaders: v0-2.

Behaviour: every partition has one replica, which leads it, so there is nothing to elect: ELECTION_NOT_NEEDED for each
partition of the request. A request for all partitions (null) gets the topics without partitions: as in Kafka, those
without an election are left out.

Versions: types of elections (0 preferred, 1 unclean) and an error of the whole request from v1. That error is also the
error of each partition.

Errors: UNKNOWN_TOPIC_OR_PARTITION, INVALID_REQUEST for another type of election.
"""

from __future__ import annotations

from korvet.broker.broker import Broker
from korvet.broker.context import RequestContext
from korvet.concurrency.time_slices import TimeSlices
from korvet.protocol.errors import ErrorCode, InvalidRequest, KafkaError, UnknownTopicOrPartition
from korvet.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
    TopicPartitions,
)
from korvet.security.acls import Operation
from korvet.storage.interface import Topic

PREFERRED, UNCLEAN = 0, 1
CODE_SINCE = 1  # the version from which a response has an error of the whole request
NOT_NEEDED = "Leader election not needed for topic partition."


async def handle(
    broker: Broker, request: ElectLeadersRequest, context: RequestContext
) -> ElectLeadersResponse:
    time_slices = TimeSlices()
    try:
        broker.cluster(context, Operation.ALTER)
        if request.election_type not in (PREFERRED, UNCLEAN) and request.topic_partitions != []:
            raise InvalidRequest(f"Unknown election type {request.election_type}")
        if request.topic_partitions is None:
            results = [_none_elected(topic.name) for topic in await broker.all_topics()]
        else:
            results = [await _result(broker, asked, time_slices) for asked in request.topic_partitions]
    except KafkaError as error:
        return await _refused(request, context, error, time_slices)
    return ElectLeadersResponse(replica_election_results=results)


def _none_elected(topic: str) -> ReplicaElectionResult:
    return ReplicaElectionResult(topic=topic, partition_result=[])


async def _result(broker: Broker, asked: TopicPartitions, time_slices: TimeSlices) -> ReplicaElectionResult:
    topic: Topic | None
    try:
        topic = await broker.find_topic(asked.topic)
    except UnknownTopicOrPartition:
        topic = None
    results = []
    for number in asked.partitions:
        code, message = ErrorCode.ELECTION_NOT_NEEDED, NOT_NEEDED
        if topic is None:
            code, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {asked.topic}"
        elif not 0 <= number < topic.partitions:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            message = f"No such partition as {asked.topic}-{number}"
        results.append(PartitionResult(partition_id=number, error_code=code, error_message=message))
        await time_slices.next()
    return ReplicaElectionResult(topic=asked.topic, partition_result=results)


async def _refused(
    request: ElectLeadersRequest, context: RequestContext, error: KafkaError, time_slices: TimeSlices
) -> ElectLeadersResponse:
    """Return the error for the request, and for each partition that it names."""
    code, message = error.error_code, error.message or None
    response = ElectLeadersResponse(replica_election_results=[])
    if context.version >= CODE_SINCE:
        response.error_code = code
    for asked in request.topic_partitions or ():
        found = _none_elected(asked.topic)
        for number in asked.partitions:
            found.partition_result.append(
                PartitionResult(partition_id=number, error_code=code, error_message=message)
            )
            await time_slices.next()
        response.replica_election_results.append(found)
    return response
