"""JoinGroup: v0-9.

Behaviour: the handler waits until the group's next generation begins. The leader's response has all members and their
metadata. Any protocol type is served. A member that joins again without changes gets the current generation
immediately, unless it is the leader. Errors: MEMBER_ID_REQUIRED, INCONSISTENT_GROUP_PROTOCOL, UNKNOWN_MEMBER_ID,
FENCED_INSTANCE_ID, GROUP_MAX_SIZE_REACHED, INVALID_SESSION_TIMEOUT, INVALID_GROUP_ID for an empty group id,
INVALID_REQUEST for metadata larger than `group.max.metadata.bytes` and for more than 1,000 protocols,
COORDINATOR_NOT_AVAILABLE while the storage is unavailable, NOT_COORDINATOR when this broker ends.

Versions: the rebalance timeout is the session timeout in v0. From v4, a new member gets its member id with
MEMBER_ID_REQUIRED and has to join again with it (KIP-394). Static members from v5 (KIP-345). A missing protocol name is
null from v7, "" before (KIP-559). Reasons are logged from v8 (KIP-800). A static leader that rejoins gets
skip_assignment from v9 (KIP-814).
"""

from __future__ import annotations

from functools import partial

from korvet.broker.broker import Broker, coordinator_error
from korvet.broker.context import RequestContext
from korvet.groups.members import Join, Joined
from korvet.protocol.errors import InvalidRequest, KafkaError
from korvet.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from korvet.security.acls import Operation

# Limit of the protocols of a member. Clients have one for each assignor, at most five or so.
MOST_PROTOCOLS = 1_000


async def handle(broker: Broker, request: JoinGroupRequest, context: RequestContext) -> JoinGroupResponse:
    try:
        group_id = broker.group(context, request.group_id, Operation.READ)
        if len(request.protocols) > MOST_PROTOCOLS:
            raise InvalidRequest(
                f"{len(request.protocols)} protocols are sent; at most {MOST_PROTOCOLS} are accepted"
            )
        joined = await broker.groups.join(group_id, _join(request, context), partial(broker.parked, context))
    except KafkaError as error:
        joined = Joined(error_code=coordinator_error(error).error_code, member_id=request.member_id)
    return JoinGroupResponse(
        error_code=joined.error_code,
        generation_id=joined.generation_id,
        protocol_type=joined.protocol_type,
        protocol_name=joined.protocol_name or (None if context.version >= 7 else ""),
        leader=joined.leader,
        skip_assignment=joined.skip_assignment,
        member_id=joined.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata,
            )
            for member in joined.members
        ],
    )


def _join(request: JoinGroupRequest, context: RequestContext) -> Join:
    timeout_ms = request.rebalance_timeout_ms if context.version >= 1 else request.session_timeout_ms
    return Join(
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        client_id=context.client_id or "",
        client_host=context.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=timeout_ms,
        protocol_type=request.protocol_type,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
        reason=request.reason,
        can_be_sent_away=context.version >= 4,
        can_skip_assignment=context.version >= 9,
    )
