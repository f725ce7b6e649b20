from __future__ import annotations

from typing import Any

import pytest
import trio

from korvet.broker.broker import Broker
from korvet.broker.context import Disconnect
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from korvet.security.scram import ScramMechanism, credential_of, salted_password
from korvet.security.session import Sasl, Session, State
from tests.handlers.support import Shim, ask, away

SHA_512 = ScramMechanism.SCRAM_SHA_512
RIGHT, WRONG = b"\0alice\0hush", b"\0alice\0hash"


@pytest.fixture
async def session(broker: Broker) -> Session:
    """A session that has chosen PLAIN."""
    salted = salted_password(SHA_512, "hush", b"salt", 4096)
    await broker.users.put("alice", SHA_512, credential_of(SHA_512, salted, b"salt", 4096))
    made = Session(Sasl(("PLAIN",), broker.users, failure_delay_s=60, max_reauth_ms=5000), "client")
    made.handshake("PLAIN", 1)
    return made


async def authenticate(broker: Broker, version: int, message: bytes, session: Session | None) -> Any:
    return await ask(broker, 36, version, SaslAuthenticateRequest(auth_bytes=message), session=session)


@pytest.mark.parametrize("version", range(3))
async def test_correct_password_starts_a_session(broker: Broker, session: Session, version: int) -> None:
    response = await authenticate(broker, version, RIGHT, session)

    assert (0, "", b"", 5000) == (
        response.error_code,
        response.error_message,
        response.auth_bytes,
        response.session_lifetime_ms,
    )
    assert (State.AUTHENTICATED, "User:alice") == (session.state, session.principal)


@pytest.mark.parametrize("version", range(3))
async def test_wrong_password_fails_after_a_delay(
    broker: Broker, session: Session, version: int, autojump_clock: trio.testing.MockClock
) -> None:
    began = trio.current_time()
    response = await authenticate(broker, version, WRONG, session)

    assert ErrorCode.SASL_AUTHENTICATION_FAILED == response.error_code
    assert "Authentication failed: Invalid username or password" == response.error_message
    assert (State.FAILED, "User:ANONYMOUS") == (session.state, session.principal)
    assert trio.current_time() - began >= 60


async def test_message_after_authentication_is_refused(broker: Broker, session: Session) -> None:
    await authenticate(broker, 2, RIGHT, session)
    for made in (session, None):
        response = await authenticate(broker, 2, RIGHT, made)
        assert ErrorCode.ILLEGAL_SASL_STATE == response.error_code
        expected = "SaslAuthenticate request received after successful authentication"
        assert expected == response.error_message


async def test_connection_is_closed_while_the_store_is_unavailable(broker: Broker, session: Session) -> None:
    broker.users.storage = Shim(broker._storage, load=away)
    with pytest.raises(Disconnect, match="authentication needs the store"):
        await authenticate(broker, 2, RIGHT, session)
    assert State.FAILED == session.state
