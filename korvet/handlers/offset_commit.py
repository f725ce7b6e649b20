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

from collections.abc import Callable, Coroutine, Sequence
from typing import Any
from uuid import UUID

from attrs import frozen

from korvet.broker.broker import Broker, coordinator_error
from korvet.broker.commits import Commits, Outcomes, sort_commits, sort_commits_now
from korvet.broker.context import PendingResponse, RequestContext
from korvet.concurrency.time_slices import map_in_slices
from korvet.groups.coordinator import PendingCommit
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


def handle(
    broker: Broker, request: OffsetCommitRequest, context: RequestContext
) -> Handled | Coroutine[Any, Any, OffsetCommitResponse]:
    """Handle a request. Return the response itself if nothing but the store has to be waited for."""
    try:
        group_id = broker.group(context, request.group_id, Operation.READ)
    except KafkaError as error:
        return _refuse(request, detached(error))
    ids = [topic.topic_id for topic in request.topics] if context.version >= BY_ID_SINCE else None
    commits = sort_commits_now(broker, context, request.topics, ids)
    if commits is None:
        return _sort_and_commit(broker, request, context, group_id, ids)
    if commits.asked:
        outcomes = _commit_now(broker, request, context, group_id, commits)
        if isinstance(outcomes, PendingCommit):
            return PendingOffsetCommit(request, context, commits, outcomes)
        if outcomes is None:
            return _commit_and_respond(broker, request, context, group_id, commits)
        commits.outcomes |= outcomes
    return _respond(request, context, commits)


@frozen(eq=False)
class PendingOffsetCommit(PendingResponse):
    """A commit of few offsets that the store has not answered yet."""

    request: OffsetCommitRequest
    context: RequestContext
    commits: Commits
    committing: PendingCommit

    async def wait(self) -> OffsetCommitResponse:
        return self._respond(await self.committing.wait())

    def abandon(self) -> None:
        self.committing.abandon()

    def notify(self, call: Callable[[], None]) -> bool:
        return self.committing.acking.notify(call)

    def response(self) -> OffsetCommitResponse | Coroutine[Any, Any, OffsetCommitResponse]:
        outcomes = self.committing.known_outcomes()
        return self.wait() if outcomes is None else self._respond(outcomes)

    def _respond(self, outcomes: Outcomes) -> OffsetCommitResponse:
        self.commits.outcomes |= _mapped(outcomes)
        return _respond(self.request, self.context, self.commits)


Handled = OffsetCommitResponse | PendingOffsetCommit


def _respond(request: OffsetCommitRequest, context: RequestContext, commits: Commits) -> OffsetCommitResponse:
    """Return the response to a request with few partitions."""
    response = OffsetCommitResponse(
        topics=[_answer(topic, commits.outcomes) for topic in request.topics if topic.partitions]
    )
    if not any(commits.outcomes.values()):
        context.success = response
    return response


async def _sort_and_commit(
    broker: Broker,
    request: OffsetCommitRequest,
    context: RequestContext,
    group_id: str,
    topic_ids: Sequence[UUID] | None,
) -> OffsetCommitResponse:
    """Handle a request with topics that have to be looked up, or with many partitions."""
    commits = await sort_commits(broker, context, request.topics, topic_ids)
    return await _commit_and_respond(broker, request, context, group_id, commits)


async def _commit_and_respond(
    broker: Broker,
    request: OffsetCommitRequest,
    context: RequestContext,
    group_id: str,
    commits: Commits,
) -> OffsetCommitResponse:
    outcomes = commits.outcomes
    if commits.asked:
        outcomes |= await _commit(broker, request, context, group_id, commits)
    answered = [topic for topic in request.topics if topic.partitions]
    return OffsetCommitResponse(topics=await map_in_slices(lambda topic: _answer(topic, outcomes), answered))


async def _refuse(request: OffsetCommitRequest, error: KafkaError) -> OffsetCommitResponse:
    """Respond with the error for every partition."""
    return OffsetCommitResponse(
        topics=await map_in_slices(lambda topic: _refused(topic, error), request.topics)
    )


def _commit_now(
    broker: Broker,
    request: OffsetCommitRequest,
    context: RequestContext,
    group_id: str,
    commits: Commits,
) -> Outcomes | PendingCommit | None:
    """Begin what `_commit` does, or return None if something else than the store has to be waited for."""
    try:
        outcomes = broker.groups.commit_now(
            group_id,
            commits.offsets,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            generation_id=request.generation_id_or_member_epoch,
            has_epoch=context.version >= EPOCH_SINCE,
        )
    except KafkaError as error:
        return _all_refused(context, commits, error)
    return _mapped(outcomes) if isinstance(outcomes, dict) else outcomes


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
    except KafkaError as error:
        return _all_refused(context, commits, error)
    return _mapped(outcomes)


def _all_refused(context: RequestContext, commits: Commits, error: KafkaError) -> Outcomes:
    """Return the outcomes of a commit that is refused as a whole."""
    if isinstance(error, GroupIdNotFound) and context.version < EPOCH_SINCE:
        error = IllegalGeneration()
    return dict.fromkeys(commits.asked, coordinator_error(error))


def _mapped(outcomes: Outcomes) -> Outcomes:
    mapped = {**outcomes}
    for tp, error in outcomes.items():
        if error is not None:
            mapped[tp] = coordinator_error(error)
    return mapped


def _refused(data: OffsetCommitRequestTopic, error: KafkaError) -> OffsetCommitResponseTopic:
    """Return a topic whose partitions all have the error."""
    tps = [TopicPartition(data.name, partition.partition_index) for partition in data.partitions]
    return _answer(data, dict.fromkeys(tps, error))


def _answer(data: OffsetCommitRequestTopic, outcomes: Outcomes) -> OffsetCommitResponseTopic:
    partitions = []
    for partition in data.partitions:
        index = partition.partition_index
        error = outcomes[TopicPartition(data.name, index)]
        code = ErrorCode.NONE if error is None else error.error_code
        partitions.append(OffsetCommitResponsePartition(partition_index=index, error_code=code))
    return OffsetCommitResponseTopic(name=data.name, topic_id=data.topic_id, partitions=partitions)
