"""SaslHandshake: v0-1.

Behaviour: choose a mechanism for the messages that follow. UNSUPPORTED_SASL_MECHANISM if it is not enabled on the
listener; the broker then closes the connection. ILLEGAL_SASL_STATE on a listener without SASL, and if the client is
authenticated and its session has no limit, or it began another one in the last second.

Versions: after v0 the mechanism's messages follow as frames of their own, after v1 in SaslAuthenticate.
"""

from __future__ import annotations

import trio

from korvet.broker.broker import Broker
from korvet.broker.context import RequestContext
from korvet.protocol.errors import ErrorCode, IllegalSaslState, UnsupportedSaslMechanism
from korvet.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


async def handle(
    broker: Broker,  # noqa: ARG001  the session has it all
    request: SaslHandshakeRequest,
    context: RequestContext,
) -> SaslHandshakeResponse:
    session = context.session
    if session is None:
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])
    try:
        session.handshake(request.mechanism, context.version)
    except IllegalSaslState as error:
        return SaslHandshakeResponse(error_code=error.error_code, mechanisms=[])
    except UnsupportedSaslMechanism as error:
        await trio.sleep(session.sasl.failure_delay_s)
        return SaslHandshakeResponse(error_code=error.error_code, mechanisms=list(session.sasl.enabled))
    return SaslHandshakeResponse(mechanisms=list(session.sasl.enabled))
