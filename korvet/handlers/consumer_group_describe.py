"""ConsumerGroupDescribe: v0-1.

Behaviour: the response has each group's state, epochs and assignor, and its members with their subscriptions, current
and target assignments (KIP-848). DESCRIBE on the group is required, and on every topic of its members: without the
latter the group gets TOPIC_AUTHORIZATION_FAILED and no members, as in Kafka. GROUP_ID_NOT_FOUND for a group that does
not exist and for a classic one. Topics that have been deleted are left out of assignments. A current assignment has the
partitions that the member is still revoking, too.

Versions: v1 has the type of each member, 0 for classic and 1 for consumer.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from uuid import UUID

from korvet.broker.broker import Broker, coordinator_error
from korvet.broker.context import RequestContext
from korvet.concurrency.tasks import in_parallel
from korvet.groups.consumer import ConsumerGroup
from korvet.groups.consumer_members import ConsumerMember
from korvet.groups.subscriptions import Assignment as Partitions
from korvet.protocol.codec import element_writer
from korvet.protocol.errors import GroupIdNotFound, KafkaError, TopicAuthorizationFailed
from korvet.protocol.messages.consumer_group_describe import (
    CLASSIC_MEMBER,
    CONSUMER_MEMBER,
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
    TopicPartitions,
)
from korvet.protocol.repetitions import repeated
from korvet.security.acls import Operation, ResourceType

Names = Mapping[UUID, str]


async def handle(
    broker: Broker, request: ConsumerGroupDescribeRequest, context: RequestContext
) -> ConsumerGroupDescribeResponse:
    ids = list(dict.fromkeys(request.group_ids))
    described = await in_parallel(partial(_describe, broker, context), ids)
    groups = dict(zip(ids, described, strict=True))
    if request.include_authorized_operations:
        for group in groups.values():
            if not group.error_code:
                operations = broker.authorized_operations(context, ResourceType.GROUP, group.group_id)
                group.authorized_operations = operations
    write = element_writer(ConsumerGroupDescribeResponse, DescribedGroup, context.version)
    return ConsumerGroupDescribeResponse(groups=repeated(request.group_ids, groups, write))


async def _describe(broker: Broker, context: RequestContext, group_id: str) -> DescribedGroup:
    try:
        names = {topic.topic_id: topic.name for topic in await broker.all_topics()}
        group = await broker.groups.group(broker.group(context, group_id, Operation.DESCRIBE))
        if not isinstance(group, ConsumerGroup):
            raise GroupIdNotFound(f"Group {group_id} is not a consumer group.")
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
    for member in described.members:
        for assignment in (member.assignment, member.target_assignment):
            names |= {topic.topic_name for topic in assignment.topic_partitions}
    return names


def _described(group: ConsumerGroup, names: Names) -> DescribedGroup:
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.assignor,
        members=[
            _described_member(member, group.targets.get(member.member_id, {}), names)
            for member in group.members.values()
        ],
    )


def _described_member(member: ConsumerMember, target: Partitions, names: Names) -> Member:
    details = member.details
    return Member(
        member_id=member.member_id,
        instance_id=details.instance_id,
        rack_id=details.rack_id,
        member_epoch=member.epoch,
        client_id=details.client_id,
        client_host=details.client_host,
        subscribed_topic_names=sorted(member.subscription.names),
        subscribed_topic_regex=member.subscription.expression,
        assignment=_assignment(member.current.owned, names),
        target_assignment=_assignment(target, names),
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
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
