"""ShareGroupDescribe: v1.

Behaviour: the response has each share group's state, epochs and assignor, and its members with their subscriptions and
assignments (KIP-932). DESCRIBE on the group is required, and on every topic of its members: without the latter the
group gets TOPIC_AUTHORIZATION_FAILED and no members, as in Kafka. GROUP_ID_NOT_FOUND for a group that does not exist
and for one of another type. Topics that have been deleted are left out of assignments.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from uuid import UUID

from korvet.broker.broker import Broker, coordinator_error
from korvet.broker.context import RequestContext
from korvet.concurrency.tasks import in_parallel
from korvet.groups.share import ASSIGNOR, ShareGroup, ShareMember
from korvet.groups.subscriptions import Assignment as Partitions
from korvet.protocol.codec import element_writer
from korvet.protocol.errors import GroupIdNotFound, KafkaError, TopicAuthorizationFailed
from korvet.protocol.messages.share_group_describe import (
    Assignment,
    DescribedGroup,
    Member,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    TopicPartitions,
)
from korvet.protocol.repetitions import repeated
from korvet.security.acls import Operation, ResourceType

Names = Mapping[UUID, str]


async def handle(
    broker: Broker, request: ShareGroupDescribeRequest, context: RequestContext
) -> ShareGroupDescribeResponse:
    ids = list(dict.fromkeys(request.group_ids))
    described = await in_parallel(partial(_describe, broker, context), ids)
    groups = dict(zip(ids, described, strict=True))
    if request.include_authorized_operations:
        for group in groups.values():
            if not group.error_code:
                operations = broker.authorized_operations(context, ResourceType.GROUP, group.group_id)
                group.authorized_operations = operations
    write = element_writer(ShareGroupDescribeResponse, DescribedGroup, context.version)
    return ShareGroupDescribeResponse(groups=repeated(request.group_ids, groups, write))


async def _describe(broker: Broker, context: RequestContext, group_id: str) -> DescribedGroup:
    try:
        names = {topic.topic_id: topic.name for topic in await broker.all_topics()}
        group = await broker.groups.group(broker.group(context, group_id, Operation.DESCRIBE))
        if not isinstance(group, ShareGroup):
            raise GroupIdNotFound(f"Group {group_id} is not a share group.")
        described = _described(group, names)
        if not all(
            broker.may(context, Operation.DESCRIBE, ResourceType.TOPIC, name) for name in _topics(described)
        ):
            raise TopicAuthorizationFailed(
                "The group has described topic(s) that the client is not authorized to describe."
            )
    except KafkaError as error:
        return _without_members(group_id, coordinator_error(error))
    return described


def _topics(described: DescribedGroup) -> set[str]:
    """Return the names of the topics in a description."""
    names = {name for member in described.members for name in member.subscribed_topic_names}
    return names | {
        topic.topic_name for member in described.members for topic in member.assignment.topic_partitions
    }


def _described(group: ShareGroup, names: Names) -> DescribedGroup:
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=ASSIGNOR,
        members=[_described_member(member, names) for member in group.members.values()],
    )


def _described_member(member: ShareMember, names: Names) -> Member:
    return Member(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.subscription.names),
        assignment=_assignment(member.assignment, names),
    )


def _assignment(partitions: Partitions, names: Names) -> Assignment:
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, topic_name=names[topic_id], partitions=sorted(numbers))
            for topic_id, numbers in partitions.items()
            if topic_id in names
        ]
    )


def _without_members(group_id: str, error: KafkaError) -> DescribedGroup:
    return DescribedGroup(
        error_code=error.error_code,
        error_message=error.message,
        group_id=group_id,
        group_state="",
        assignor_name="",
        members=[],
    )
