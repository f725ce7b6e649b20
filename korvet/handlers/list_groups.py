"""ListGroups: v0-5.

Behaviour: the response has all groups that this broker coordinates and the client is authorized to describe, including
groups that have only committed offsets. COORDINATOR_NOT_AVAILABLE while the storage is unavailable.

Versions: filters by state from v4 (KIP-518), by type from v5 (KIP-848); both ignore case. Groups whose broker assigns
partitions are of type consumer, share groups (KIP-932) of type share, the others classic.
"""

from __future__ import annotations

from korvet.broker.broker import Broker, coordinator_error
from korvet.broker.context import RequestContext
from korvet.groups.classic import ClassicGroup
from korvet.groups.machine import Group, type_of
from korvet.groups.members import CONSUMER
from korvet.groups.share import ShareGroup
from korvet.protocol.errors import KafkaError
from korvet.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from korvet.security.acls import Operation, ResourceType


async def handle(broker: Broker, request: ListGroupsRequest, context: RequestContext) -> ListGroupsResponse:
    states = {state.strip().lower() for state in request.states_filter}
    types = {kind.strip().lower() for kind in request.types_filter}
    sees_all = broker.may_on_cluster(context, Operation.DESCRIBE)
    try:
        groups = await broker.groups.groups()
    except KafkaError as error:
        return ListGroupsResponse(error_code=coordinator_error(error).error_code, groups=[])
    return ListGroupsResponse(
        groups=[
            ListedGroup(
                group_id=group.group_id,
                protocol_type=_protocol_type(group),
                group_state=group.state.value,
                group_type=type_of(group),
            )
            for group in groups
            if (not states or group.state.value.lower() in states)
            and (not types or type_of(group) in types)
            and (sees_all or broker.may(context, Operation.DESCRIBE, ResourceType.GROUP, group.group_id))
        ]
    )


def _protocol_type(group: Group) -> str:
    if isinstance(group, ClassicGroup):
        return group.protocol_type or ""
    return type_of(group) if isinstance(group, ShareGroup) else CONSUMER
