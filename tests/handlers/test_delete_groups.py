from __future__ import annotations

import pytest

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.delete_groups import DeleteGroupsRequest
from korvet.storage.interface import OffsetAndMetadata
from tests.handlers.members import DELETE, answer, new_group_broker, take_part
from tests.handlers.support import T0, create


@pytest.fixture
async def broker() -> Broker:
    return await new_group_broker()


@pytest.mark.parametrize("version", range(4))
async def test_groups_are_deleted_independently(broker: Broker, version: int) -> None:
    await create(broker)
    await take_part(broker, group_id="g")
    await broker.groups.commit("alone", {T0: OffsetAndMetadata(1)})
    request = DeleteGroupsRequest(groups_names=["g", "alone", "made-up", "alone"])
    response = await answer(broker, DELETE, version, request)

    assert [
        ("g", ErrorCode.NON_EMPTY_GROUP),
        ("alone", ErrorCode.NONE),
        ("made-up", ErrorCode.GROUP_ID_NOT_FOUND),
    ] == [(each.group_id, each.error_code) for each in response.results]
    messages = [None, "Group made-up not found."] if version >= 3 else [None, None]
    assert messages == [each.error_message for each in response.results[1:]]
    assert {} == await broker._storage.committed("alone")
