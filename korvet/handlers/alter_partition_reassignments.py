"""AlterPartitionReassignments: v0-1.

Behaviour: the broker places partitions by itself, on the living brokers. A reassignment to the brokers that a partition
has is done at once, which is all that a cluster of one broker can do; so Kafka's tools print what they print there.

Errors, for each partition: NO_REASSIGNMENT_IN_PROGRESS for one that is to be cancelled (null), since none goes on;
UNKNOWN_TOPIC_OR_PARTITION; INVALID_REPLICA_ASSIGNMENT for no brokers, a broker named twice, one that does not live, and
for other brokers than the partition has. INVALID_REPLICATION_FACTOR for another number of brokers if the request does
not allow it (from v1).

Declined: `timeout_ms`, and moving partitions.
"""

from __future__ import annotations

from collections.abc import Sequence

from korvet.broker.broker import Broker, partition_of
from korvet.broker.context import RequestContext
from korvet.concurrency.time_slices import TimeSlices
from korvet.protocol.errors import (
    ErrorCode,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    KafkaError,
    NoReassignmentInProgress,
    UnknownTopicOrPartition,
    detached,
)
from korvet.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopic,
    ReassignableTopicResponse,
)
from korvet.security.acls import Operation
from korvet.storage.interface import Topic, TopicPartition


async def handle(
    broker: Broker, request: AlterPartitionReassignmentsRequest, context: RequestContext
) -> AlterPartitionReassignmentsResponse:
    if not request.topics:
        # As in Kafka, all fields have their defaults, unless the client lacks the permission.
        return _without_topics(broker, context)
    reassigning = _Reassigning(broker, context, allows_change=request.allow_replication_factor_change)
    response = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
        responses=[await reassigning.topic(topic) for topic in request.topics],
    )
    if reassigning.refused is not None:
        response.error_code = reassigning.refused.error_code
        response.error_message = reassigning.refused.message or None
    return response


def _without_topics(broker: Broker, context: RequestContext) -> AlterPartitionReassignmentsResponse:
    refused = _refused(broker, context)
    code = ErrorCode.NONE if refused is None else refused.error_code
    return AlterPartitionReassignmentsResponse(error_code=code, responses=[])


def _refused(broker: Broker, context: RequestContext) -> KafkaError | None:
    """Return the error of a client that may not reassign partitions. It is also the error of each partition."""
    try:
        broker.cluster(context, Operation.ALTER)
    except KafkaError as error:
        return detached(error)
    return None


class _Reassigning:
    """The checks of one request."""

    def __init__(self, broker: Broker, context: RequestContext, *, allows_change: bool) -> None:
        self.broker = broker
        self.context = context
        self.allows_change = allows_change
        self.refused = _refused(broker, context)
        self.time_slices = TimeSlices()

    async def topic(self, asked: ReassignableTopic) -> ReassignableTopicResponse:
        """Return the result of each partition of a topic."""
        topic: Topic | KafkaError
        try:
            topic = self.refused or await self.broker.find_topic(asked.name)
        except UnknownTopicOrPartition:
            topic = UnknownTopicOrPartition(f"Unable to find a topic ID for topic {asked.name}.")
        except KafkaError as error:
            topic = error
        results = []
        for partition in asked.partitions:
            results.append(self._result(topic, partition))
            await self.time_slices.next()
        return ReassignableTopicResponse(name=asked.name, partitions=results)

    def _result(
        self, topic: Topic | KafkaError, partition: ReassignablePartition
    ) -> ReassignablePartitionResponse:
        result = ReassignablePartitionResponse(partition_index=partition.partition_index, error_message=None)
        try:
            if isinstance(topic, KafkaError):
                raise topic
            tp = partition_of(topic, partition.partition_index)
            if partition.replicas is None:
                raise NoReassignmentInProgress
            self._check(tp, partition.replicas)
        except KafkaError as error:
            result.error_code, result.error_message = error.error_code, error.message or None
        return result

    def _check(self, tp: TopicPartition, wanted: Sequence[int]) -> None:
        """Raise the error of a reassignment to these brokers."""
        if not wanted:
            raise InvalidReplicaAssignment("The manual partition assignment includes an empty replica list.")
        if len(wanted) != len(set(wanted)):
            raise InvalidReplicaAssignment(f"The assignment of {tp} names a broker twice.")
        leaders = self.broker.membership.leaders_on(self.context.listener_name)
        present = self.broker.replicas(leaders.of(*tp), leaders.seeds)
        for node_id in wanted:
            if node_id not in self.broker.membership.living:
                raise InvalidReplicaAssignment(
                    f"The manual partition assignment includes broker {node_id}, but no such broker is registered."
                )
        if len(wanted) != len(present) and not self.allows_change:
            raise InvalidReplicationFactor(f"{tp} has {len(present)} replicas, not {len(wanted)}.")
        if set(wanted) != set(present):
            raise InvalidReplicaAssignment(
                f"The brokers place partitions by themselves: {tp} is on {present}."
            )
