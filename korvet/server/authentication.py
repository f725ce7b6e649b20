"""SASL on the server's listeners, by the broker's settings."""

from __future__ import annotations

import importlib.util
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from attrs import define

from korvet.broker.broker import Broker
from korvet.config import Config, ConfigError
from korvet.security.password_file import PasswordFile
from korvet.security.session import Sasl, Session, refuse_tokens

if TYPE_CHECKING:
    from korvet.security.jwks import Jwks
    from korvet.security.oauthbearer import Token


@define(eq=False)
class Authentication:
    """Makes the sessions of connections. `jwks` has the keys of tokens, if a listener accepts tokens."""

    sasl: Mapping[str, Sasl]  # by the name of a listener that has SASL
    jwks: Jwks | None = None
    passwords: PasswordFile | None = None

    async def refresh(self) -> None:
        """Read the file with the users of PLAIN and the keys of tokens again."""
        if self.passwords is not None:
            await self.passwords.refresh()
        if self.jwks is not None:
            await self.jwks.refresh()

    def session(self, listener_name: str, peer: str) -> Session | None:
        """Return the session of a new connection, None on a listener without SASL."""
        sasl = self.sasl.get(listener_name)
        return None if sasl is None else Session(sasl, peer)


def authentication(broker: Broker) -> Authentication:
    """Return the authentication that the broker's settings require.

    Raises ConfigError if a library is missing, or the file with the users of PLAIN is not usable.
    """
    config = broker.config
    jwks, verify = _tokens(config) if config.uses_tokens else (None, refuse_tokens)
    path = config.sasl_plain_users_file
    passwords = None if path is None else PasswordFile.of(path, broker.users)
    sasl = {
        listener.name: Sasl(
            config.mechanisms(listener),
            broker.users,
            verify,
            has_password=(passwords or broker.users).has_password,
            max_reauth_ms=config.of_listener(listener, "connections_max_reauth_ms"),
            failure_delay_s=config.connection_failed_authentication_delay_ms / 1000,
            max_receive_bytes=config.of_listener(listener, "sasl_server_max_receive_size"),
        )
        for listener in config.listeners
        if config.has_sasl(listener)
    }
    return Authentication(sasl, jwks, passwords)


def _tokens(config: Config) -> tuple[Jwks, Callable[[str], Awaitable[Token]]]:
    """Return the keys of tokens, and the function that verifies tokens."""
    if importlib.util.find_spec("joserfc") is None:
        raise ConfigError(
            ["$.sasl.enabled.mechanisms: OAUTHBEARER requires: pip install 'korvet[oauthbearer]'"]
        )
    # Imported here, because joserfc and its cryptography take a fifth of the time in which a broker starts.
    from korvet.security.jwks import Jwks  # noqa: PLC0415
    from korvet.security.tokens import TokenRules, TokenVerifier  # noqa: PLC0415

    rules = TokenRules(
        config.sasl_oauthbearer_expected_issuer,
        config.sasl_oauthbearer_expected_audience,
        config.sasl_oauthbearer_scope_claim_name,
        config.sasl_oauthbearer_sub_claim_name,
        config.sasl_oauthbearer_clock_skew_seconds,
    )
    refresh_s = config.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000
    jwks = Jwks(config.sasl_oauthbearer_jwks_endpoint_url or "", refresh_s)
    return jwks, TokenVerifier(rules, jwks).verify
