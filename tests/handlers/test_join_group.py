from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from korvet.protocol.messages.list_groups import ListGroupsRequest
from tests.groups.conversation import subscription
from tests.handlers.members import JOIN, LIST, answer, describe, join, leave, new_group_broker, take_part
from tests.handlers.support import Shim, ask, away, install, new_broker


@pytest.fixture
async def broker() -> Broker:
    return await new_group_broker()


@pytest.mark.parametrize("version", range(10))
async def test_member_joins_in_every_version(broker: Broker, version: int) -> None:
    joined = await join(broker, version)

    assert (ErrorCode.NONE, 1, "range") == (joined.error_code, joined.generation_id, joined.protocol_name)
    assert (joined.member_id, "consumer" if version >= 7 else None) == (joined.leader, joined.protocol_type)
    assert [(joined.member_id, None, subscription("t"))] == [
        (each.member_id, each.group_instance_id, each.metadata) for each in joined.members
    ]
    assert joined.member_id.startswith("test-")


@pytest.mark.parametrize("version", range(10))
async def test_new_members_get_member_id_required_once_from_version_4(broker: Broker, version: int) -> None:
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=6000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    joined = await answer(broker, JOIN, version, request)

    expected = ErrorCode.MEMBER_ID_REQUIRED if version >= 4 else ErrorCode.NONE
    assert expected == joined.error_code
    if version in (4, 5, 6):
        assert ("", -1) == (joined.protocol_name, joined.generation_id)
    elif version >= 7:
        assert joined.protocol_name is None


@pytest.mark.parametrize("version", range(5, 10))
async def test_static_leader_rejoins_in_every_version(broker: Broker, version: int) -> None:
    first = await take_part(broker, instance="i")
    second = await join(broker, version, instance="i")

    assert (ErrorCode.NONE, 1) == (second.error_code, second.generation_id)
    assert second.member_id != first.member_id
    assert (version >= 9, version >= 9) == (second.skip_assignment, second.leader == second.member_id)


async def test_session_timeout_is_the_rebalance_timeout_in_version_0(broker: Broker) -> None:
    await join(broker, 0)
    group = await broker.groups.group("g")

    assert [6000] == [member.rebalance_timeout_ms for member in group.members.values()]


async def test_invalid_joins_are_answered_with_their_error(broker: Broker) -> None:
    assert ErrorCode.INVALID_GROUP_ID == (await join(broker, group_id="")).error_code
    assert ErrorCode.INVALID_SESSION_TIMEOUT == (await join(broker, session_ms=5999)).error_code
    unknown = await join(broker, member_id="made-up")
    assert (ErrorCode.UNKNOWN_MEMBER_ID, "made-up") == (unknown.error_code, unknown.member_id)
    assert (-1, "", []) == (unknown.generation_id, unknown.leader, unknown.members)


async def test_member_with_very_many_protocols_is_refused(broker: Broker) -> None:
    protocols = [JoinGroupRequestProtocol(name=f"p{number}", metadata=b"") for number in range(1_001)]
    request = JoinGroupRequest(
        group_id="g", session_timeout_ms=6000, protocol_type="consumer", member_id="", protocols=protocols
    )

    assert ErrorCode.INVALID_REQUEST == (await ask(broker, 11, 2, request)).error_code


async def test_drain_answers_waiting_joins(autojump_clock: MockClock) -> None:
    broker = await new_broker(group_initial_rebalance_delay_ms=60_000)
    told: list[ErrorCode] = []

    async def wait() -> None:
        told.append(ErrorCode((await join(broker)).error_code))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        nursery.start_soon(wait)
        await trio.sleep(1)
        broker.drain()

    assert [ErrorCode.NOT_COORDINATOR] * 2 == told


async def test_unreachable_storage_is_a_retriable_error(broker: Broker) -> None:
    install(broker, Shim(broker._storage, load_parts=away, documents=away))

    assert ErrorCode.COORDINATOR_NOT_AVAILABLE == (await join(broker)).error_code
    assert ErrorCode.COORDINATOR_NOT_AVAILABLE == (await leave(broker, "m")).error_code
    assert (ErrorCode.COORDINATOR_NOT_AVAILABLE, "") == (
        (await describe(broker)).error_code,
        (await describe(broker)).group_state,
    )
    assert ErrorCode.COORDINATOR_NOT_AVAILABLE == (
        (await answer(broker, LIST, 5, ListGroupsRequest())).error_code
    )
