"""OffsetCommit: v2-10.

Behaviour: store offsets that a member of a group commits in its current generation. If a group has no members, any
client may commit without a generation (-1). A committed offset N means that N is the next offset to read. Its metadata
is stored, up to `offset.metadata.max.bytes` characters (OFFSET_METADATA_TOO_LARGE). A commit counts as a heartbeat.
Errors: UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, FENCED_INSTANCE_ID; REBALANCE_IN_PROGRESS while a generation waits for
its assignments; UNKNOWN_TOPIC_OR_PARTITION; COORDINATOR_NOT_AVAILABLE, which clients retry, while the store is
unavailable.

Versions: leader epochs from v6, static members from v7. For a member of a group that does not exist: GROUP_ID_NOT_FOUND
from v9, ILLEGAL_GENERATION before. v10 has ids of topics instead of names, UNKNOWN_TOPIC_ID if there is no such topic.
Members of groups whose broker assigns partitions commit with their epochs from v9 (KIP-848): STALE_MEMBER_EPOCH, for
single partitions if they were granted later; UNSUPPORTED_VERSION before.

Declined: `retention_time_ms` (up to v4) is ignored. All offsets of a group expire together, as in Kafka since 2.1
unless a client requests another retention time.
"""

from __future__ import annotations

from korvet.broker.broker import Broker, coordinator_error
from korvet.broker.commits import Commits, Outcomes, sort_commits
from korvet.broker.context import RequestContext
from korvet.concurrency.time_slices import map_in_slices
from korvet.protocol.errors import ErrorCode, GroupIdNotFound, IllegalGeneration, KafkaError, detached
from korvet.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from korvet.security.acls import Operation
from korvet.storage.interface import TopicPartition

# The first versions that have member epochs, and that name topics by their ids.
EPOCH_SINCE, BY_ID_SINCE = 9, 10


async def handle(
    broker: Broker, request: OffsetCommitRequest, context: RequestContext
) -> OffsetCommitResponse:
    try:
        group_id = broker.group(context, request.group_id, Operation.READ)
    except KafkaError as error:
        refused = detached(error)
        return OffsetCommitResponse(
            topics=await map_in_slices(lambda topic: _refused(topic, refused), request.topics)
        )
    ids = [topic.topic_id for topic in request.topics] if context.version >= BY_ID_SINCE else None
    commits = await sort_commits(broker, context, request.topics, ids)
    outcomes = commits.outcomes
    if commits.asked:
        outcomes |= await _commit(broker, request, context, group_id, commits)
    answered = [topic for topic in request.topics if topic.partitions]
    topics = await map_in_slices(lambda topic: _answer(topic, outcomes), answered)
    return OffsetCommitResponse(topics=topics)


async def _commit(
    broker: Broker,
    request: OffsetCommitRequest,
    context: RequestContext,
    group_id: str,
    commits: Commits,
) -> Outcomes:
    """Commit the offsets, and return the outcome of each partition."""
    try:
        outcomes = await broker.groups.commit(
            group_id,
            commits.offsets,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            generation_id=request.generation_id_or_member_epoch,
            has_epoch=context.version >= EPOCH_SINCE,
        )
    except GroupIdNotFound as error:
        return dict.fromkeys(commits.asked, error if context.version >= 9 else IllegalGeneration())
    except KafkaError as error:
        return dict.fromkeys(commits.asked, coordinator_error(error))
    return {tp: error and coordinator_error(error) for tp, error in outcomes.items()}


def _refused(data: OffsetCommitRequestTopic, error: KafkaError) -> OffsetCommitResponseTopic:
    """Return a topic whose partitions all have the error."""
    tps = [TopicPartition(data.name, partition.partition_index) for partition in data.partitions]
    return _answer(data, dict.fromkeys(tps, error))


def _answer(data: OffsetCommitRequestTopic, outcomes: Outcomes) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        name=data.name,
        topic_id=data.topic_id,
        partitions=[
            OffsetCommitResponsePartition(
                partition_index=partition.partition_index,
                error_code=_code(outcomes[TopicPartition(data.name, partition.partition_index)]),
            )
            for partition in data.partitions
        ],
    )


def _code(error: KafkaError | None) -> ErrorCode:
    return ErrorCode.NONE if error is None else error.error_code
