"""Group members for handler tests, and responses as a client of each version reads them."""

from __future__ import annotations

from typing import Any

from korvet.broker.broker import Broker
from korvet.protocol.codec import decode
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsRequest
from korvet.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from korvet.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from korvet.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from korvet.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from korvet.storage.interface import TopicPartition
from tests.groups.conversation import subscription
from tests.handlers.support import T0, ask, new_broker
from tests.protocol.samples import encoded

JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE, LIST, DELETE, OFFSET_DELETE = 11, 12, 13, 14, 15, 16, 42, 47

U0 = TopicPartition("u", 0)


async def new_group_broker(**settings: Any) -> Broker:
    """Return a broker without initial rebalance delay."""
    return await new_broker(**{"group_initial_rebalance_delay_ms": 0, **settings})


async def answer(broker: Broker, key: int, version: int, request: object) -> Any:
    """Encode a message and decode it, as a client of that version reads it."""
    response = await ask(broker, key, version, request)
    read, _ = decode(type(response), version, memoryview(encoded(response, version)))
    return read


async def join(
    broker: Broker,
    version: int = 9,
    *,
    group_id: str = "g",
    member_id: str = "",
    instance: str | None = None,
    protocol_type: str = "consumer",
    topic: str = "t",
    session_ms: int = 6000,
) -> JoinGroupResponse:
    request = JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=60_000 if version >= 1 else -1,
        member_id=member_id,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription(topic))],
        reason="because" if version >= 8 else None,
    )
    joined: JoinGroupResponse = await answer(broker, JOIN, version, request)
    if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        return await join(
            broker,
            version,
            group_id=group_id,
            member_id=joined.member_id,
            protocol_type=protocol_type,
            topic=topic,
            session_ms=session_ms,
        )
    return joined


async def sync(
    broker: Broker,
    joined: JoinGroupResponse,
    version: int = 5,
    *,
    assignments: dict[str, bytes] | None = None,
    protocol: tuple[str | None, str | None] = ("consumer", "range"),
) -> SyncGroupResponse:
    request = SyncGroupRequest(
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type=protocol[0] if version >= 5 else None,
        protocol_name=protocol[1] if version >= 5 else None,
        assignments=[
            SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
            for member_id, assignment in (assignments or {}).items()
        ],
    )
    synced: SyncGroupResponse = await answer(broker, SYNC, version, request)
    return synced


async def take_part(broker: Broker, **values: Any) -> JoinGroupResponse:
    """Join and sync as the only member of a group."""
    joined = await join(broker, **values)
    protocol = (values.get("protocol_type", "consumer"), "range")
    synced = await sync(broker, joined, assignments={joined.member_id: b"mine"}, protocol=protocol)
    assert (ErrorCode.NONE, b"mine") == (synced.error_code, synced.assignment)
    return joined


async def commit(broker: Broker, joined: JoinGroupResponse | None, tp: TopicPartition = T0) -> int:
    partition = OffsetCommitRequestPartition(
        partition_index=tp.partition, committed_offset=5, committed_metadata=None
    )
    request = OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=-1 if joined is None else joined.generation_id,
        member_id="" if joined is None else joined.member_id,
        topics=[OffsetCommitRequestTopic(name=tp.topic, partitions=[partition])],
    )
    response = await answer(broker, 8, 9, request)
    error_code: int = response.topics[0].partitions[0].error_code
    return error_code


async def leave(broker: Broker, member_id: str, version: int = 5) -> Any:
    if version < 3:
        return await answer(broker, LEAVE, version, LeaveGroupRequest(group_id="g", member_id=member_id))
    members = [MemberIdentity(member_id=member_id), MemberIdentity(member_id="made-up")]
    return await answer(broker, LEAVE, version, LeaveGroupRequest(group_id="g", members=members))


async def describe(broker: Broker, group_id: str = "g", version: int = 6) -> DescribedGroup:
    request = DescribeGroupsRequest(groups=[group_id], include_authorized_operations=version >= 3)
    (group,) = (await answer(broker, DESCRIBE, version, request)).groups
    assert isinstance(group, DescribedGroup)
    return group
