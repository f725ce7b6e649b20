from __future__ import annotations

import pytest

from korvet.broker.broker import Broker
from korvet.protocol.messages.list_groups import ListGroupsRequest
from korvet.storage.interface import OffsetAndMetadata
from tests.handlers.members import LIST, answer, new_group_broker, take_part
from tests.handlers.support import T0, create


@pytest.fixture
async def broker() -> Broker:
    return await new_group_broker()


async def listed(broker: Broker, version: int, **filters: list[str]) -> list[tuple[str, str, str, str]]:
    response = await answer(broker, LIST, version, ListGroupsRequest(**filters))
    return [(g.group_id, g.protocol_type, g.group_state, g.group_type) for g in response.groups]


async def test_groups_are_listed_by_state_and_type(broker: Broker) -> None:
    await create(broker)
    await take_part(broker, group_id="g")
    await broker.groups.commit("alone", {T0: OffsetAndMetadata(1)})
    stable, empty = ("g", "consumer", "Stable", "classic"), ("alone", "", "Empty", "classic")

    assert [empty, stable] == await listed(broker, 5)
    assert [stable] == await listed(broker, 5, states_filter=[" STABLE "])
    assert [] == await listed(broker, 5, states_filter=["Dead", "made-up"])
    assert [empty, stable] == await listed(broker, 5, states_filter=["empty", "stable"])
    assert [empty, stable] == await listed(broker, 5, types_filter=["Classic"])
    assert [] == await listed(broker, 5, types_filter=["consumer", "made-up"])
    assert [("alone", "", "Empty", ""), ("g", "consumer", "Stable", "")] == await listed(broker, 4)
    for version in range(4):
        assert [("alone", "", "", ""), ("g", "consumer", "", "")] == await listed(broker, version)
