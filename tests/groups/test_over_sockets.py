"""Waiting members, and the end of their waits by a drain or a disconnect; malicious members."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio

from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.heartbeat import HeartbeatRequest
from korvet.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from korvet.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from korvet.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.talk import Client, connect, reset, seen, serving

VERSION = 3  # the last version without MEMBER_ID_REQUIRED


def join_request(member_id: str = "", *, session_timeout_ms: int = 10_000) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id="g",
        session_timeout_ms=session_timeout_ms,
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


async def test_drain_answers_waiting_members() -> None:
    responses: list[ErrorCode] = []

    async def wait(client: Client) -> None:
        responses.append(ErrorCode((await client.ask(join_request(), VERSION)).error_code))

    async with (
        serving(group_initial_rebalance_delay_ms=60_000) as server,
        connect(server) as first,
        connect(server) as second,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(wait, first)
        nursery.start_soon(wait, second)
        await seen(server).until(lambda: seen(server).names.count("JoinGroup") == 2)
        began_s = trio.current_time()
        server.stop()

    assert [ErrorCode.NOT_COORDINATOR] * 2 == responses
    assert trio.current_time() - began_s < 1


async def test_client_that_disconnects_while_waiting_is_removed_after_its_session() -> None:
    async with (
        serving(
            sweep_interval_s=0.05, group_initial_rebalance_delay_ms=300, group_min_session_timeout_ms=1000
        ) as server,
        connect(server) as gone,
        connect(server) as client,
    ):
        await gone.send(gone.frame_of(join_request(session_timeout_ms=1000), VERSION))
        await seen(server).until(lambda: "JoinGroup" in seen(server).names)
        reset(gone)
        first = await client.ask(join_request(session_timeout_ms=1000), VERSION)
        refused = await sync(client, first)
        second = await client.ask(join_request(first.member_id, session_timeout_ms=1000), VERSION)
        synced = await sync(client, second)

    assert (1, ErrorCode.NONE) == (first.generation_id, first.error_code)
    assert first.leader != first.member_id
    assert ErrorCode.REBALANCE_IN_PROGRESS == refused.error_code
    assert (2, [first.member_id]) == (second.generation_id, [m.member_id for m in second.members])
    assert b"yours" == synced.assignment


JOINS = 10_000
ROOM = 100


async def test_ten_thousand_pending_members_are_refused_beyond_the_bound() -> None:
    responses: Counter[int] = Counter()
    async with serving(group_max_size=ROOM) as server, connect(server) as client:
        # The ids outlast the joins, also on a machine on which those take longer than a usual session.
        frames = client.frame_of(join_request(session_timeout_ms=300_000), 4) * JOINS
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, frames)
            for _ in range(JOINS):
                _, answer = await client.answer(JoinGroupRequest, 4)
                responses[answer.error_code] += 1
        group = await server.broker.groups.group("g")

    assert {
        ErrorCode.MEMBER_ID_REQUIRED: ROOM, ErrorCode.GROUP_MAX_SIZE_REACHED: JOINS - ROOM
    } == responses  # fmt: skip
    assert (0, ROOM) == (len(group.members), len(group._pending))


async def test_huge_metadata_is_refused_before_a_group_is_created() -> None:
    huge = b"x" * 100_001
    async with (
        serving(group_max_metadata_bytes=100_000, group_initial_rebalance_delay_ms=0) as server,
        connect(server) as client,
    ):
        request = join_request()
        request.protocols = [JoinGroupRequestProtocol(name="range", metadata=huge)]
        refused = await client.ask(request, VERSION)
        groups = await server.broker.groups.groups()
        joined = await client.ask(join_request(), VERSION)
        synced = await client.ask(
            SyncGroupRequest(
                group_id="g",
                generation_id=joined.generation_id,
                member_id=joined.member_id,
                assignments=[SyncGroupRequestAssignment(member_id=joined.member_id, assignment=huge)],
            ),
            2,
        )

    assert (ErrorCode.INVALID_REQUEST, []) == (refused.error_code, groups)
    assert (ErrorCode.INVALID_REQUEST, b"") == (synced.error_code, synced.assignment)


@pytest.mark.parametrize(
    "member_id, generation_id",
    [("nobody", 1), ("", 1), ("x" * 30_000, 1), ("nobody", -1), ("nobody", 2**31 - 1)],
)
async def test_requests_of_unknown_members_are_refused_without_side_effects(
    member_id: str, generation_id: int
) -> None:
    async with (
        serving(group_initial_rebalance_delay_ms=0) as server,
        connect(server) as client,
        connect(server) as foreign,
    ):
        joined = await client.ask(join_request(), VERSION)
        await sync(client, joined)
        responses = []
        for group_id in ("g", "unknown"):
            requests: list[tuple[object, int]] = [
                (HeartbeatRequest(group_id=group_id, generation_id=generation_id, member_id=member_id), 4),
                (
                    SyncGroupRequest(
                        group_id=group_id, generation_id=generation_id, member_id=member_id, assignments=[]
                    ),
                    4,
                ),
                (LeaveGroupRequest(group_id=group_id, members=[MemberIdentity(member_id=member_id)]), 5),
            ]
            for request, version in requests:
                answer = await foreign.ask(request, version)
                members = getattr(answer, "members", None)
                responses.append(ErrorCode(members[0].error_code if members else answer.error_code))
        heartbeat = await client.ask(
            HeartbeatRequest(
                group_id="g", generation_id=joined.generation_id, member_id=joined.member_id
            ), 4
        )  # fmt: skip
        known = [group.group_id for group in await server.broker.groups.groups()]

    assert [ErrorCode.UNKNOWN_MEMBER_ID] * 6 == responses
    assert ErrorCode.NONE == heartbeat.error_code
    assert ["g"] == known


async def test_long_ids_are_refused_and_shortened_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with serving(group_initial_rebalance_delay_ms=0) as server, connect(server) as client:
        request = join_request()
        request.group_id = "g" * 32_768
        no_group = await client.ask(request, 9)
        heartbeat = await client.ask(
            HeartbeatRequest(group_id=request.group_id, generation_id=1, member_id="m"), 4
        )
        request.group_id, request.group_instance_id = "g" * 32_767, "i" * 32_768
        no_member = await client.ask(request, 9)
        request.group_instance_id = "i" * 32_767
        joined = await client.ask(request, 9)

    assert no_group.error_code == heartbeat.error_code == ErrorCode.INVALID_GROUP_ID
    assert ErrorCode.INVALID_REQUEST == no_member.error_code
    assert ErrorCode.NONE == joined.error_code
    assert max(len(record.getMessage()) for record in caplog.records) < 1000


async def test_protocol_names_count_as_metadata() -> None:
    async with serving(group_max_metadata_bytes=100_000) as server, connect(server) as client:
        request = join_request()
        request.protocols = [JoinGroupRequestProtocol(name="p" * 100_001, metadata=b"")]
        refused = await client.ask(request, 9)

    assert ErrorCode.INVALID_REQUEST == refused.error_code
