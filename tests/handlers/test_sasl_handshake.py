from __future__ import annotations

import pytest
import trio

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from korvet.security.session import Sasl, Session, State
from tests.handlers.support import ask


@pytest.fixture
def session(broker: Broker) -> Session:
    return Session(Sasl(("PLAIN", "SCRAM-SHA-256"), broker.users, failure_delay_s=60), "client")


@pytest.mark.parametrize("version", [0, 1])
async def test_enabled_mechanism_is_selected(broker: Broker, session: Session, version: int) -> None:
    response = await ask(broker, 17, version, SaslHandshakeRequest(mechanism="PLAIN"), session=session)

    assert SaslHandshakeResponse(mechanisms=["PLAIN", "SCRAM-SHA-256"]) == response
    assert (State.EXCHANGE, version == 0) == (session.state, session.is_bare)


@pytest.mark.parametrize("version", [0, 1])
async def test_other_mechanism_is_refused_after_a_delay(
    broker: Broker, session: Session, version: int, autojump_clock: trio.testing.MockClock
) -> None:
    began = trio.current_time()
    response = await ask(broker, 17, version, SaslHandshakeRequest(mechanism="GSSAPI"), session=session)

    assert ErrorCode.UNSUPPORTED_SASL_MECHANISM == response.error_code
    assert ["PLAIN", "SCRAM-SHA-256"] == response.mechanisms
    assert State.FAILED == session.state
    assert 60 == trio.current_time() - began


@pytest.mark.parametrize("version", [0, 1])
async def test_listener_without_sasl_refuses_the_handshake(broker: Broker, version: int) -> None:
    response = await ask(broker, 17, version, SaslHandshakeRequest(mechanism="PLAIN"))

    assert SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[]) == response
