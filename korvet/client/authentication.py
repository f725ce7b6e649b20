"""SASL on a new connection: SaslHandshake, then the mechanism's messages in SaslAuthenticate (KIP-152)."""

from __future__ import annotations

from functools import partial
from typing import Protocol, TypeVar

import trio

from korvet.client.msk_iam import signed_token
from korvet.client.scram import ScramClient
from korvet.client.security import Sasl
from korvet.client.tls import TlsRefused
from korvet.client.token_endpoint import NoToken, TokenRefused, forget, token_of
from korvet.protocol.errors import (
    ErrorCode,
    IllegalSaslState,
    NetworkException,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanism,
    UnsupportedVersion,
    error_for,
)
from korvet.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from korvet.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

# From this version of SaslHandshake on, the mechanism's messages are in SaslAuthenticate requests with error codes.
WITH_ERROR_CODES = 1

#: Errors of connecting to a broker that a retry cannot resolve.
REFUSALS = (TlsRefused, SaslAuthenticationFailed, UnsupportedSaslMechanism, IllegalSaslState)

R = TypeVar("R")


class Ask(Protocol):
    """The type of a connection's `request`."""

    async def __call__(self, message: object, response: type[R], *, min_version: int = 0) -> R: ...


class NotAuthenticated(SaslAuthenticationFailed):
    """The broker rejected the login. The message contains the broker's."""


async def authenticate(sasl: Sasl, ask: Ask, broker: object) -> float:
    """Authenticate to a broker, using `ask`, a connection's `request`.

    Return the lifetime of the session in seconds (KIP-368), or 0 if it lasts as long as the connection. Raises
    UnsupportedSaslMechanism, IllegalSaslState for a listener without SASL, NotAuthenticated, and the errors of `ask`.
    """
    await _choose(sasl, ask, broker)
    if sasl.mechanism == "PLAIN":
        # RFC 4616: authorization identity (empty: the same as the user name), user name, and password.
        answer = await _step(f"\0{sasl.username}\0{sasl.password}".encode(), sasl, ask, broker)
    elif sasl.offered_as == "OAUTHBEARER":
        answer = await _present_token(sasl, ask, broker)
    else:
        scram = ScramClient(sasl.mechanism, sasl.username, sasl.password)
        answer = await _step(scram.first(), sasl, ask, broker)
        answer = await _step(scram.final(bytes(answer.auth_bytes)), sasl, ask, broker)
        scram.verify(bytes(answer.auth_bytes))
    return answer.session_lifetime_ms / 1000


async def _present_token(sasl: Sasl, ask: Ask, broker: object) -> SaslAuthenticateResponse:
    """Send the token (RFC 7628). The broker answers a bad one with JSON, and then with an error to one more byte."""
    token = await _token(sasl, broker)
    try:
        answer = await _step(f"n,,\x01auth=Bearer {token}\x01\x01".encode(), sasl, ask, broker)
        if answer.auth_bytes:
            await _step(b"\x01", sasl, ask, broker)
            raise NotAuthenticated(f"{broker} does not accept the token.")
    except SaslAuthenticationFailed:
        if sasl.grant is not None:
            forget(sasl.grant)
        raise
    return answer


async def _token(sasl: Sasl, broker: object) -> str:
    """Return the token of the file, of the server, or of AWS. Raises NotAuthenticated, NetworkException."""
    if sasl.aws is not None:
        obtain = partial(signed_token, sasl.aws, str(broker))
    elif sasl.grant is not None:
        obtain = partial(token_of, sasl.grant)
    else:
        return await _token_in_file(sasl.token_file)
    try:
        return await trio.to_thread.run_sync(obtain, abandon_on_cancel=True)
    except TokenRefused as error:
        raise NotAuthenticated(f"{error}.") from None
    except NoToken as error:
        raise NetworkException(f"{error}.") from None


async def _token_in_file(path: str) -> str:
    try:
        return (await trio.Path(path).read_text()).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise NotAuthenticated(f"the token cannot be read from {path}: {error}.") from None


async def _choose(sasl: Sasl, ask: Ask, broker: object) -> None:
    request = SaslHandshakeRequest(mechanism=sasl.offered_as)
    try:
        answer = await ask(request, SaslHandshakeResponse, min_version=WITH_ERROR_CODES)
    except UnsupportedVersion:
        raise IllegalSaslState(f"{broker} {NO_SASL}") from None
    if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(sorted(answer.mechanisms)) or "none"
        raise UnsupportedSaslMechanism(f"{broker} does not offer {sasl.offered_as}; it offers {offered}.")
    if answer.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise IllegalSaslState(f"{broker} {NO_SASL}")
    if answer.error_code:
        raise error_for(answer.error_code)


NO_SASL = "does not accept SASL on this listener; security.protocol=PLAINTEXT and SSL do without."


async def _step(data: bytes, sasl: Sasl, ask: Ask, broker: object) -> SaslAuthenticateResponse:
    answer = await ask(SaslAuthenticateRequest(auth_bytes=data), SaslAuthenticateResponse)
    if answer.error_code:
        message = answer.error_message or error_for(answer.error_code).message
        raise NotAuthenticated(
            f"{broker} does not accept the login ({sasl.mechanism}): {message.rstrip('.')}."
        )
    return answer
