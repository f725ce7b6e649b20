from __future__ import annotations

import pytest

from korvet.broker.broker import Broker
from korvet.groups.coordinator import GroupCoordinator
from korvet.groups.machine import Group
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.describe_groups import DescribeGroupsRequest
from tests.groups.conversation import subscription
from tests.handlers.members import DESCRIBE, answer, describe, join, new_group_broker, take_part


@pytest.fixture
async def broker() -> Broker:
    return await new_group_broker()


@pytest.mark.parametrize("version", range(7))
async def test_stable_group_is_described_with_its_members(broker: Broker, version: int) -> None:
    joined = await take_part(broker, instance="i")
    group = await describe(broker, version=version)
    (member,) = group.members

    assert ("g", "Stable", "consumer", "range") == (
        group.group_id,
        group.group_state,
        group.protocol_type,
        group.protocol_data,
    )
    assert (joined.member_id, "i" if version >= 4 else None, "test", "/127.0.0.1", b"mine") == (
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        member.member_assignment,
    )
    assert subscription("t") == member.member_metadata
    assert (3400 if version >= 3 else -(2**31)) == group.authorized_operations


async def test_group_that_rebalances_is_described_without_its_protocol(broker: Broker) -> None:
    await join(broker)
    group = await describe(broker)

    assert ("CompletingRebalance", "", [b""]) == (
        group.group_state,
        group.protocol_data,
        [member.member_metadata for member in group.members],
    )


@pytest.mark.parametrize("version", range(7))
async def test_missing_group_is_dead(broker: Broker, version: int) -> None:
    group = await describe(broker, "made-up", version)

    assert ("made-up", "Dead", []) == (group.group_id, group.group_state, group.members)
    expected = ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE
    assert (expected, version >= 6) == (group.error_code, group.error_message is not None)


async def test_repeated_groups_are_described_each_time_from_one_computation(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await take_part(broker)
    found: list[str] = []
    group = GroupCoordinator.group

    async def counting(coordinator: GroupCoordinator, group_id: str) -> Group:
        found.append(group_id)
        return await group(coordinator, group_id)

    monkeypatch.setattr(GroupCoordinator, "group", counting)
    names = ["g", "missing", "g"] * 100
    request = DescribeGroupsRequest(groups=names, include_authorized_operations=True)
    response = await answer(broker, DESCRIBE, 6, request)

    assert [each.group_id for each in response.groups] == names
    assert [len(each.members) for each in response.groups] == [1, 0, 1] * 100
    assert {each.authorized_operations for each in response.groups if not each.error_code} == {3400}
    assert sorted(found) == ["g", "missing"]
