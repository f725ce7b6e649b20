"""SaslAuthenticate: v0-2.

Behaviour: pass a message of the SASL mechanism to its server and return the answer. SASL_AUTHENTICATION_FAILED, after
`connection.failed.authentication.delay.ms`, if the client does not prove its identity; the broker then closes the
connection. ILLEGAL_SASL_STATE on a listener without SASL and after authentication. While the store is unavailable, the
broker closes the connection without a response: clients connect again, but do not retry a failed authentication.

Versions: the lifetime of the session from v1 (KIP-368).
"""

from __future__ import annotations

import trio

from korvet.broker.broker import Broker
from korvet.broker.context import Disconnect, RequestContext
from korvet.protocol.errors import IllegalSaslState, KafkaError, KafkaStorageError, SaslAuthenticationFailed
from korvet.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse


async def handle(
    broker: Broker,  # noqa: ARG001  the session has it all
    request: SaslAuthenticateRequest,
    context: RequestContext,
) -> SaslAuthenticateResponse:
    session = context.session
    if session is None:
        return _failure(IllegalSaslState("SaslAuthenticate request received after successful authentication"))
    try:
        answer, lifetime_ms = await session.authenticate(bytes(request.auth_bytes))
    except IllegalSaslState as error:
        return _failure(error)
    except SaslAuthenticationFailed as error:
        await trio.sleep(session.sasl.failure_delay_s)
        return _failure(error)
    except KafkaStorageError as error:
        raise Disconnect(f"authentication needs the store: {error.message}") from None
    return SaslAuthenticateResponse(error_message="", auth_bytes=answer, session_lifetime_ms=lifetime_ms)


def _failure(error: KafkaError) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(error_code=error.error_code, error_message=error.message, auth_bytes=b"")
