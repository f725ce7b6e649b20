from __future__ import annotations

import pytest

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from tests.handlers.share_groups import ACCEPT, RELEASE, RENEW, ShareMember, configure
from tests.handlers.support import T0, append, create


@pytest.fixture
async def alice(broker: Broker) -> ShareMember:
    """A member that has acquired three records."""
    topic = await create(broker)
    await configure(broker)
    await append(broker, T0, b"0", b"1", b"2")
    member = ShareMember(broker, topic.topic_id)
    assert [(0, 2, 1)] == await member.acquired(0)
    return member


async def test_accepted_records_are_not_delivered_again(alice: ShareMember) -> None:
    assert ErrorCode.NONE == await alice.acknowledge((0, 1, [ACCEPT]), (2, 2, [RELEASE]))

    assert [(2, 2, 2)] == await alice.acquired()


async def test_the_last_request_of_a_session_releases_the_rest(alice: ShareMember) -> None:
    bob = ShareMember(alice.broker, alice.topic_id)

    assert ErrorCode.NONE == await alice.acknowledge((0, 0, [ACCEPT]), share_session_epoch=-1)

    assert [(1, 2, 2)] == await bob.acquired(0)
    assert ErrorCode.SHARE_SESSION_NOT_FOUND == await alice.acknowledge(
        (1, 1, [ACCEPT]), share_session_epoch=3
    )


async def test_sessions_and_epochs_are_checked(alice: ShareMember) -> None:
    stranger = ShareMember(alice.broker, alice.topic_id)

    assert ErrorCode.SHARE_SESSION_NOT_FOUND == await stranger.acknowledge(
        (0, 0, [ACCEPT]), share_session_epoch=1
    )
    assert ErrorCode.INVALID_SHARE_SESSION_EPOCH == await alice.acknowledge(
        (0, 0, [ACCEPT]), share_session_epoch=0
    )
    assert ErrorCode.INVALID_SHARE_SESSION_EPOCH == await alice.acknowledge(
        (0, 0, [ACCEPT]), share_session_epoch=9
    )
    assert ErrorCode.NONE == await alice.acknowledge((0, 0, [ACCEPT]))


async def test_records_that_were_never_acquired_are_refused(alice: ShareMember) -> None:
    assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION == await alice.acknowledge((0, 0, [ACCEPT]), partition=7)
    assert ErrorCode.INVALID_REQUEST == await alice.acknowledge((0, 3, [ACCEPT]))


async def test_renewing_needs_v2_and_its_mark(alice: ShareMember) -> None:
    assert ErrorCode.INVALID_REQUEST == await alice.acknowledge((0, 0, [RENEW]))
    assert ErrorCode.NONE == await alice.acknowledge((0, 0, [RENEW]), is_renew_ack=True)
    alice.version = 1
    assert ErrorCode.INVALID_REQUEST == await alice.acknowledge((0, 0, [RENEW]))
