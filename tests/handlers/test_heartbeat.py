from __future__ import annotations

import pytest

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.heartbeat import HeartbeatRequest
from tests.handlers.members import HEARTBEAT, answer, new_group_broker, take_part


@pytest.fixture
async def broker() -> Broker:
    return await new_group_broker()


@pytest.mark.parametrize("version", range(5))
async def test_heartbeats_in_every_version(broker: Broker, version: int) -> None:
    joined = await take_part(broker)

    async def beat(member_id: str, generation_id: int, group_id: str = "g") -> ErrorCode:
        request = HeartbeatRequest(group_id=group_id, generation_id=generation_id, member_id=member_id)
        return ErrorCode((await answer(broker, HEARTBEAT, version, request)).error_code)

    assert ErrorCode.NONE == await beat(joined.member_id, 1)
    assert ErrorCode.ILLEGAL_GENERATION == await beat(joined.member_id, 2)
    assert ErrorCode.UNKNOWN_MEMBER_ID == await beat("made-up", 1)
    assert ErrorCode.UNKNOWN_MEMBER_ID == await beat(joined.member_id, 1, "other")
    assert ErrorCode.INVALID_GROUP_ID == await beat(joined.member_id, 1, "")
