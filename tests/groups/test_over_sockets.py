"""Members that wait, and what ends their waits: a drain, and clients that go."""

from __future__ import annotations

from typing import Any

import trio

from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from korvet.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.talk import Client, connect, reset, seen, serving

VERSION = 3  # the last one in which newcomers are not sent away


def join_request(member_id: str = "") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id="g",
        session_timeout_ms=1000,
        rebalance_timeout_ms=5000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\0\0\0\0\0")],
    )


async def sync(client: Client, joined: JoinGroupResponse) -> Any:
    request = SyncGroupRequest(
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[
            SyncGroupRequestAssignment(member_id=member.member_id, assignment=b"yours")
            for member in joined.members
        ],
    )
    return await client.ask(request, 2)


async def test_a_drain_answers_members_that_wait_for_others() -> None:
    told: list[ErrorCode] = []

    async def wait(client: Client) -> None:
        told.append(ErrorCode((await client.ask(join_request(), VERSION)).error_code))

    async with (
        serving(group_initial_rebalance_delay_ms=60_000, group_min_session_timeout_ms=1) as server,
        connect(server) as first,
        connect(server) as second,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(wait, first)
        nursery.start_soon(wait, second)
        await seen(server).until(lambda: seen(server).names.count("JoinGroup") == 2)
        began_s = trio.current_time()
        server.stop()

    assert [ErrorCode.NOT_COORDINATOR] * 2 == told
    assert trio.current_time() - began_s < 1


async def test_a_client_that_goes_while_it_waits_is_missed_after_its_session() -> None:
    async with (
        serving(
            sweep_interval_s=0.05, group_initial_rebalance_delay_ms=300, group_min_session_timeout_ms=1000
        ) as server,
        connect(server) as gone,
        connect(server) as client,
    ):
        await gone.send(gone.frame_of(join_request(), VERSION))
        await seen(server).until(lambda: "JoinGroup" in seen(server).names)
        reset(gone)
        first = await client.ask(join_request(), VERSION)
        refused = await sync(client, first)
        second = await client.ask(join_request(first.member_id), VERSION)
        synced = await sync(client, second)

    assert (1, ErrorCode.NONE) == (first.generation_id, first.error_code)
    assert first.leader != first.member_id
    assert ErrorCode.REBALANCE_IN_PROGRESS == refused.error_code
    assert (2, [first.member_id]) == (second.generation_id, [m.member_id for m in second.members])
    assert b"yours" == synced.assignment
