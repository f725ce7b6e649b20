"""DeleteGroups: v0-3.

Behaviour: groups without members are deleted with all their committed offsets, each separately. NON_EMPTY_GROUP if the
group has members, GROUP_ID_NOT_FOUND if it does not exist. On Redis, the group's consumer groups of the streams are
deleted, too: their last-delivered IDs would otherwise serve as committed offsets. A share group's states of partitions
are deleted with it.

Versions: v3 adds an error message.
"""

from __future__ import annotations

from functools import partial

from korvet.broker.broker import Broker, coordinator_error
from korvet.broker.context import RequestContext
from korvet.concurrency.time_slices import each_in_slices
from korvet.groups.share import ShareGroup
from korvet.protocol.errors import ErrorCode, KafkaError
from korvet.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from korvet.security.acls import Operation


async def handle(
    broker: Broker, request: DeleteGroupsRequest, context: RequestContext
) -> DeleteGroupsResponse:
    names = dict.fromkeys(request.groups_names)
    return DeleteGroupsResponse(results=await each_in_slices(partial(_delete, broker, context), names))


async def _delete(broker: Broker, context: RequestContext, group_id: str) -> DeletableGroupResult:
    try:
        broker.group(context, group_id, Operation.DELETE)
        if isinstance(await broker.groups.group(group_id), ShareGroup):
            await broker.groups.alter_share(group_id)
            await broker.share.partitions.forget_group(group_id)
        await broker.groups.delete(group_id)
    except KafkaError as error:
        refusal = coordinator_error(error)
        return DeletableGroupResult(
            group_id=group_id, error_code=refusal.error_code, error_message=refusal.message
        )
    return DeletableGroupResult(group_id=group_id, error_code=ErrorCode.NONE)
