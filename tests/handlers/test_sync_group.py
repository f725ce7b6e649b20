from __future__ import annotations

import pytest

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from tests.handlers.members import join, new_group_broker, sync


@pytest.fixture
async def broker() -> Broker:
    return await new_group_broker()


@pytest.mark.parametrize("version", range(6))
async def test_members_get_the_assignment_of_the_leader(broker: Broker, version: int) -> None:
    joined = await join(broker)
    assignment = bytes(range(256))
    synced = await sync(broker, joined, version, assignments={joined.member_id: assignment})

    assert (ErrorCode.NONE, assignment) == (synced.error_code, synced.assignment)
    assert ("consumer" if version >= 5 else None) == synced.protocol_type
    assert assignment == (await sync(broker, joined, version)).assignment


@pytest.mark.parametrize("protocol", [(None, "range"), ("consumer", None), ("connect", "range")])
async def test_sync_response_contains_the_protocol_from_version_5(
    broker: Broker, protocol: tuple[str | None, str | None]
) -> None:
    joined = await join(broker)
    synced = await sync(broker, joined, protocol=protocol)

    assert ErrorCode.INCONSISTENT_GROUP_PROTOCOL == synced.error_code
