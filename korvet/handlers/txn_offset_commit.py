"""TxnOffsetCommit: v0-6.

Behaviour: store offsets of a group that become its committed offsets when the producer's transaction commits. Until
then, OffsetFetch with `require_stable` gets UNSTABLE_OFFSET_COMMIT for their partitions. WRITE on the transactional id,
READ on the group and on the topics are required.

Versions: leader epochs from v2. From v3 the consumer's generation and member id fence it (KIP-447: UNKNOWN_MEMBER_ID,
ILLEGAL_GENERATION, FENCED_INSTANCE_ID). Up to v4 the group must be in the transaction (AddOffsetsToTxn), otherwise the
error is TRANSACTION_ABORTABLE in v4, INVALID_TXN_STATE below. v5 adds the group to the transaction (KIP-890). v6 has
ids of topics instead of names (KIP-1319): UNKNOWN_TOPIC_ID; and returns GROUP_ID_NOT_FOUND and STALE_MEMBER_EPOCH,
where earlier versions return ILLEGAL_GENERATION.

Errors: INVALID_GROUP_ID for the empty group id; UNKNOWN_TOPIC_OR_PARTITION; OFFSET_METADATA_TOO_LARGE;
INVALID_PRODUCER_ID_MAPPING; INVALID_PRODUCER_EPOCH of a producer that was fenced; CONCURRENT_TRANSACTIONS while the
transaction ends; NOT_COORDINATOR of the group.
"""

from __future__ import annotations

from korvet.broker.broker import Broker
from korvet.broker.commits import Commits, Outcomes, sort_commits
from korvet.broker.context import RequestContext
from korvet.broker.transactional import Generation, commit_error, number_of
from korvet.concurrency.time_slices import map_in_slices
from korvet.protocol.errors import (
    ErrorCode,
    GroupIdNotFound,
    IllegalGeneration,
    InvalidGroupId,
    InvalidTxnState,
    KafkaError,
    StaleMemberEpoch,
    detached,
)
from korvet.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from korvet.security.acls import Operation, ResourceType
from korvet.storage.interface import ProducerTransaction, TopicPartition

# The first versions whose clients know TRANSACTION_ABORTABLE, that let the broker add the group, and that name topics
# by their ids.
ABORTABLE_SINCE, ADDS_SINCE, BY_ID_SINCE = 4, 5, 6


async def handle(
    broker: Broker, request: TxnOffsetCommitRequest, context: RequestContext
) -> TxnOffsetCommitResponse:
    try:
        broker.authorize(context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
        group_id = broker.group(context, request.group_id, Operation.READ)
    except KafkaError as error:
        refused = detached(error)
        return TxnOffsetCommitResponse(
            topics=await map_in_slices(lambda topic: _refused(topic, refused), request.topics)
        )
    is_by_id = context.version >= BY_ID_SINCE
    ids = [topic.topic_id for topic in request.topics] if is_by_id else None
    commits = await sort_commits(broker, context, request.topics, ids)
    outcomes = commits.outcomes
    if commits.asked:
        generation = Generation.of(context.version, ABORTABLE_SINCE, ADDS_SINCE)
        staged = await _stage(broker, request, group_id, commits, generation)
        outcomes |= staged if is_by_id else {tp: _in_generations(error) for tp, error in staged.items()}
    answered = [topic for topic in request.topics if topic.partitions]
    return TxnOffsetCommitResponse(
        topics=await map_in_slices(lambda topic: _answer(topic, outcomes), answered)
    )


async def _stage(
    broker: Broker,
    request: TxnOffsetCommitRequest,
    group_id: str,
    commits: Commits,
    generation: Generation,
) -> Outcomes:
    """Stage the offsets, and return the outcome of each partition."""
    try:
        if not group_id:
            raise InvalidGroupId
        broker.groups.routing.check(group_id)
        outcomes = await _stage_once(broker, request, group_id, commits, generation)
        if any(isinstance(outcome, InvalidTxnState) for outcome in outcomes.values()):
            # The transaction has ended: this process may have had an outdated state of it.
            await broker.transactions.reload(request.transactional_id)
            outcomes = await _stage_once(broker, request, group_id, commits, generation)
    except KafkaError as error:
        return dict.fromkeys(commits.asked, detached(commit_error(error, generation)))
    return {tp: error and commit_error(error, generation) for tp, error in outcomes.items()}


async def _stage_once(
    broker: Broker,
    request: TxnOffsetCommitRequest,
    group_id: str,
    commits: Commits,
    generation: Generation,
) -> Outcomes:
    producer = request.producer_id, request.producer_epoch
    transaction = await number_of(broker, request.transactional_id, producer, generation, groups=[group_id])
    return await broker.groups.stage(
        group_id,
        commits.offsets,
        ProducerTransaction(*producer, transaction.number),
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        generation_id=request.generation_id,
    )


def _in_generations(error: KafkaError | None) -> KafkaError | None:
    """Return the error for clients that know generations only."""
    if isinstance(error, GroupIdNotFound | StaleMemberEpoch):
        return IllegalGeneration(error.message)
    return error


def _refused(data: TxnOffsetCommitRequestTopic, error: KafkaError) -> TxnOffsetCommitResponseTopic:
    """Return a topic whose partitions all have the error."""
    tps = [TopicPartition(data.name, partition.partition_index) for partition in data.partitions]
    return _answer(data, dict.fromkeys(tps, error))


def _answer(data: TxnOffsetCommitRequestTopic, outcomes: Outcomes) -> TxnOffsetCommitResponseTopic:
    return TxnOffsetCommitResponseTopic(
        name=data.name,
        topic_id=data.topic_id,
        partitions=[
            TxnOffsetCommitResponsePartition(
                partition_index=partition.partition_index,
                error_code=_code(outcomes[TopicPartition(data.name, partition.partition_index)]),
            )
            for partition in data.partitions
        ],
    )


def _code(error: KafkaError | None) -> ErrorCode:
    return ErrorCode.NONE if error is None else error.error_code
