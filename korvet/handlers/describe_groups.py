"""DescribeGroups: v0-6.

Behaviour: the response has each group's state, protocol type, and members with their assignments. It has the protocol's
name and the members' metadata only while the group is Stable, as in Kafka. A group that does not exist is Dead,
and so is one whose broker assigns partitions: ConsumerGroupDescribe describes it.

Versions: authorized operations, if requested, from v3; group instance ids from v4. A Dead group is GROUP_ID_NOT_FOUND
from v6 (KIP-1043), and no error before.
"""

from __future__ import annotations

from functools import partial

from korvet.broker.broker import Broker, coordinator_error
from korvet.broker.context import RequestContext
from korvet.concurrency.tasks import in_parallel
from korvet.groups.classic import ClassicGroup
from korvet.groups.members import Member, State
from korvet.protocol.codec import element_writer
from korvet.protocol.errors import ErrorCode, GroupIdNotFound, KafkaError
from korvet.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from korvet.protocol.repetitions import repeated
from korvet.security.acls import Operation, ResourceType


async def handle(
    broker: Broker, request: DescribeGroupsRequest, context: RequestContext
) -> DescribeGroupsResponse:
    names = list(dict.fromkeys(request.groups))
    groups = dict(zip(names, await in_parallel(partial(_describe, broker, context), names), strict=True))
    if request.include_authorized_operations:
        for group in groups.values():
            if not group.error_code:
                operations = broker.authorized_operations(context, ResourceType.GROUP, group.group_id)
                group.authorized_operations = operations
    write = element_writer(DescribeGroupsResponse, DescribedGroup, context.version)
    return DescribeGroupsResponse(groups=repeated(request.groups, groups, write))


async def _describe(broker: Broker, context: RequestContext, group_id: str) -> DescribedGroup:
    try:
        group = await broker.groups.group(broker.group(context, group_id, Operation.DESCRIBE))
        if not isinstance(group, ClassicGroup):
            raise GroupIdNotFound(f"Group {group_id} is not a classic group.")
    except GroupIdNotFound as error:
        if context.version < 6:
            return _without_members(group_id, State.DEAD.value)
        return _without_members(group_id, State.DEAD.value, error)
    except KafkaError as error:
        return _without_members(group_id, "", coordinator_error(error))
    return _described(group)


def _described(group: ClassicGroup) -> DescribedGroup:
    protocol_name = group.protocol_name or "" if group.state is State.STABLE else ""
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol_name,
        members=[_described_member(member, protocol_name) for member in group.members.values()],
    )


def _described_member(member: Member, protocol_name: str) -> DescribedGroupMember:
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata(protocol_name) if protocol_name else b"",
        member_assignment=member.assignment,
    )


def _without_members(group_id: str, state: str, error: KafkaError | None = None) -> DescribedGroup:
    described = DescribedGroup(
        error_code=ErrorCode.NONE if error is None else error.error_code,
        group_id=group_id,
        group_state=state,
        protocol_type="",
        protocol_data="",
        members=[],
    )
    if error is not None and error.error_code is ErrorCode.GROUP_ID_NOT_FOUND:
        described.error_message = error.message
    return described
