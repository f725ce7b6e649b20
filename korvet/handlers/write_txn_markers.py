"""WriteTxnMarkers: v1-2.

Behaviour: end the open transaction of a producer in partitions, by a control batch in each. The broker's own
coordinator does not use this API: administrators abort hanging transactions by it. ALTER or CLUSTER_ACTION on the
cluster is required. A marker is also written if no transaction is open there, as in Kafka. Markers are written in the
order of the request. The response has one entry for each producer id with partitions.

Versions: v2 has the transaction version (KIP-1228). From 2 on, the marker's epoch must be above the producer's, unless
no transaction is open.

Errors: CLUSTER_AUTHORIZATION_FAILED; UNKNOWN_TOPIC_OR_PARTITION; INVALID_PRODUCER_EPOCH below the known epoch;
TRANSACTION_COORDINATOR_FENCED below the coordinator epoch of the producer's last marker.
"""

from __future__ import annotations

from itertools import islice

from korvet.broker.broker import Broker, partition_of
from korvet.broker.context import RequestContext
from korvet.concurrency.time_slices import TimeSlices, map_in_slices
from korvet.protocol.errors import ErrorCode, KafkaError, detached
from korvet.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from korvet.security.acls import Operation
from korvet.storage.interface import Marker, Topic, TopicPartition, TransactionResult

# Kafka's default of `request.timeout.ms`.
TIMEOUT_S = 30.0
# Markers that storage writes in one call, which takes some ten milliseconds.
MARKERS_AT_ONCE = 500
RAISED_EPOCH_VERSION = 2  # the transaction version whose markers have a raised epoch

Outcomes = dict[TopicPartition, ErrorCode]


async def handle(
    broker: Broker, request: WriteTxnMarkersRequest, context: RequestContext
) -> WriteTxnMarkersResponse:
    if not broker.may_on_cluster(context, Operation.ALTER):
        try:
            broker.cluster(context, Operation.CLUSTER_ACTION)
        except KafkaError as error:
            return await _refused(request, error)
    outcomes: dict[int, Outcomes] = {}
    for marker in request.markers:
        outcomes.setdefault(marker.producer_id, {}).update(await _write(broker, marker))
    return await _response(outcomes)


async def _refused(request: WriteTxnMarkersRequest, error: KafkaError) -> WriteTxnMarkersResponse:
    """Return the error for every partition of every marker."""
    time_slices = TimeSlices()
    outcomes: dict[int, Outcomes] = {}
    for marker in request.markers:
        refused = outcomes.setdefault(marker.producer_id, {})
        for topic in marker.topics:
            for index in topic.partition_indexes:
                refused[TopicPartition(topic.name, index)] = error.error_code
            await time_slices.next()
    return await _response(outcomes)


async def _write(broker: Broker, marker: WritableTxnMarker) -> Outcomes:
    """Write a marker to its partitions, and return the outcome of each."""
    outcomes: Outcomes = {}
    markers: dict[TopicPartition, Marker] = {}
    time_slices = TimeSlices()
    written: Marker | KafkaError
    try:
        written = _stored(marker)
    except KafkaError as error:
        written = detached(error)
    for asked in marker.topics:
        topic: Topic | KafkaError
        try:
            topic = await broker.find_topic(asked.name)
        except KafkaError as error:
            topic = detached(error)
        for index in asked.partition_indexes:
            try:
                if isinstance(topic, KafkaError):
                    raise topic
                tp = partition_of(topic, index)
                if isinstance(written, KafkaError):
                    raise written
                markers[tp] = written
            except KafkaError as error:
                outcomes[TopicPartition(asked.name, index)] = error.error_code
            await time_slices.next()
    left = iter(markers.items())
    while part := dict(islice(left, MARKERS_AT_ONCE)):
        results = await broker.log.write_markers(part, timeout_s=TIMEOUT_S)
        for tp, result in results.items():
            outcomes[tp] = result.error_code if isinstance(result, KafkaError) else ErrorCode.NONE
        await time_slices.next()
    return outcomes


def _stored(marker: WritableTxnMarker) -> Marker:
    """Return the marker for storage. Raises InvalidRequest without a producer id and epoch."""
    return Marker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        coordinator_epoch=marker.coordinator_epoch,
        result=TransactionResult.COMMIT if marker.transaction_result else TransactionResult.ABORT,
        version=RAISED_EPOCH_VERSION if marker.transaction_version >= RAISED_EPOCH_VERSION else 1,
    )


async def _response(outcomes: dict[int, Outcomes]) -> WriteTxnMarkersResponse:
    written = [(producer_id, each) for producer_id, each in outcomes.items() if each]
    return WriteTxnMarkersResponse(markers=await map_in_slices(_result, written))


def _result(outcome: tuple[int, Outcomes]) -> WritableTxnMarkerResult:
    producer_id, outcomes = outcome
    topics: dict[str, list[WritableTxnMarkerPartitionResult]] = {}
    for tp, error_code in outcomes.items():
        result = WritableTxnMarkerPartitionResult(partition_index=tp.partition, error_code=error_code)
        topics.setdefault(tp.topic, []).append(result)
    return WritableTxnMarkerResult(
        producer_id=producer_id,
        topics=[
            WritableTxnMarkerTopicResult(name=name, partitions=partitions)
            for name, partitions in topics.items()
        ],
    )
