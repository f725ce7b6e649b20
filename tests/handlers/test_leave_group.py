from __future__ import annotations

import pytest

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tests.handlers.members import LEAVE, answer, describe, leave, new_group_broker, take_part


@pytest.fixture
async def broker() -> Broker:
    return await new_group_broker()


@pytest.mark.parametrize("version", range(6))
async def test_members_leave_in_every_version(broker: Broker, version: int) -> None:
    joined = await take_part(broker)
    left = await leave(broker, joined.member_id, version)

    assert ErrorCode.NONE == left.error_code
    if version >= 3:
        assert [(joined.member_id, 0), ("made-up", ErrorCode.UNKNOWN_MEMBER_ID)] == [
            (each.member_id, each.error_code) for each in left.members
        ]
    else:
        assert ErrorCode.UNKNOWN_MEMBER_ID == (await leave(broker, "made-up", version)).error_code
    assert "Empty" == (await describe(broker)).group_state


async def test_static_member_is_removed_by_its_instance_id(broker: Broker) -> None:
    await take_part(broker, instance="i")
    request = LeaveGroupRequest(
        group_id="g", members=[MemberIdentity(member_id="", group_instance_id="i", reason="cleaning up")]
    )
    left = await answer(broker, LEAVE, 5, request)

    assert [("", "i", 0)] == [(m.member_id, m.group_instance_id, m.error_code) for m in left.members]
