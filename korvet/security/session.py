"""The SASL state of a client's connection: choose a mechanism, exchange its messages, authenticate again (KIP-368)."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum, auto
from functools import partial
from typing import Protocol

from attrs import define, field

from korvet.logs import LogLimit
from korvet.protocol.errors import (
    IllegalSaslState,
    KafkaStorageError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanism,
)
from korvet.security.oauthbearer import OAuthBearerServer, Token
from korvet.security.password_checks import Check, PasswordChecks
from korvet.security.plain import PlainServer
from korvet.security.sasl import Rejected, SaslServer
from korvet.security.scram import MECHANISMS, ScramServer
from korvet.security.users import Users

logger = logging.getLogger(__name__)

ANONYMOUS = "User:ANONYMOUS"
SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 17, 18, 36
# A client may authenticate again once in this time, as in Kafka.
SHORTEST_INTERVAL_S = 1.0


class State(Enum):
    """The states of a session, by the requests that the broker accepts next."""

    CONNECTED = auto()
    HANDSHAKE = auto()  # the client knows the broker's versions
    EXCHANGE = auto()  # messages of the mechanism
    AUTHENTICATED = auto()  # any request
    FAILED = auto()  # nothing


#: The keys of the APIs that are accepted in each state; all if the state is missing.
ACCEPTED = {
    State.CONNECTED: frozenset({SASL_HANDSHAKE, API_VERSIONS}),
    State.HANDSHAKE: frozenset({SASL_HANDSHAKE}),
    State.EXCHANGE: frozenset({SASL_AUTHENTICATE}),
    State.FAILED: frozenset[int](),
}


async def refuse_tokens(_: str) -> Token:
    """Verify tokens if OAUTHBEARER is not enabled."""
    raise Rejected("no tokens are accepted")


class HasPassword(Protocol):
    """Verifies the password of a user. `check` compares it with a credential."""

    async def __call__(self, username: str, password: str, check: Check = ...) -> bool: ...


@define
class Sasl:
    """The settings of SASL on a listener, and the sources of credentials."""

    enabled: Sequence[str]
    users: Users
    verify_token: Callable[[str], Awaitable[Token]] = refuse_tokens
    has_password: HasPassword = field(kw_only=True)  # for PLAIN
    checks: PasswordChecks = field(factory=PasswordChecks, kw_only=True)
    failures: LogLimit = field(
        factory=lambda: LogLimit(logger, logging.INFO, "failed authentications", 60), kw_only=True
    )
    max_reauth_ms: int = 0
    failure_delay_s: float = 0.1
    max_receive_bytes: int = 524_288
    clock: Callable[[], float] = time.monotonic
    wall_clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000

    @has_password.default
    def _has_password_in_store(self) -> HasPassword:
        return self.users.has_password

    def server(self, mechanism: str, address: str) -> SaslServer:
        """Return the server of an exchange with a client that has that address."""
        if mechanism == "PLAIN":
            return PlainServer(partial(self.has_password, check=partial(self.checks.check, address)))
        if mechanism == "OAUTHBEARER":
            return OAuthBearerServer(self.verify_token)
        scram = MECHANISMS[mechanism]
        return ScramServer(scram, partial(self.users.credential, mechanism=scram))


@define(eq=False)
class Session:
    """The state of one connection. `peer` is its name in logs."""

    sasl: Sasl
    peer: str
    state: State = State.CONNECTED
    principal: str = ANONYMOUS
    _has_bare_messages: bool = False
    _mechanism: str = ""  # of the first exchange
    _requested: str = ""  # in the last SaslHandshake
    _server: SaslServer | None = None
    _expires: float | None = None  # when the session expires, on the clock of `sasl`
    _began_again: float = field(default=float("-inf"))  # when the client last authenticated again

    @property
    def accepted(self) -> frozenset[int] | None:
        """The keys of the APIs that are accepted now; None if all are."""
        return ACCEPTED.get(self.state)

    @property
    def is_bare(self) -> bool:
        """True if the mechanism's messages come next, without SaslAuthenticate around them (SaslHandshake v0)."""
        return self._has_bare_messages and self.state is State.EXCHANGE

    @property
    def is_authenticated(self) -> bool:
        """True once the client has authenticated, also while it does so again."""
        return self._expires is not None or self.state is State.AUTHENTICATED

    def has_expired(self, api_key: int) -> bool:
        """Return True if the session has expired and the request of that API does not begin another one."""
        is_over = self._expires is not None and self.sasl.clock() > self._expires
        return is_over and self.state is State.AUTHENTICATED and api_key != SASL_HANDSHAKE

    def versions_listed(self) -> None:
        """Record that ApiVersions was answered. As in Kafka, the client may send it once before its handshake."""
        if self.state is State.CONNECTED:
            self.state = State.HANDSHAKE

    def handshake(self, mechanism: str, version: int) -> None:
        """Begin an exchange. Raises UnsupportedSaslMechanism, and IllegalSaslState if the client may not begin one."""
        if self.state is State.AUTHENTICATED:
            self._begin_again()
        self._server, self._requested = None, mechanism
        if mechanism not in self.sasl.enabled:
            self._fail("it is not enabled")
            raise UnsupportedSaslMechanism
        self._mechanism = self._mechanism or mechanism
        if mechanism == self._mechanism:
            self._server = self.sasl.server(mechanism, self.peer.rpartition(":")[0])
        self._has_bare_messages = version == 0
        self.state = State.EXCHANGE

    def _begin_again(self) -> None:
        now = self.sasl.clock()
        if self._expires is None or now < self._began_again + SHORTEST_INTERVAL_S:
            raise IllegalSaslState
        self._began_again = now

    async def authenticate(self, message: bytes) -> tuple[bytes, int]:
        """Return the answer to a message of the mechanism, and the session's lifetime in ms (0: no limit).

        Raises SaslAuthenticationFailed, and IllegalSaslState if no exchange has begun. Errors of the store are raised
        unchanged: the client may connect and try again.
        """
        if self.state is not State.EXCHANGE:
            raise IllegalSaslState("SaslAuthenticate request received after successful authentication")
        try:
            return await self._evaluate(message)
        except SaslAuthenticationFailed as error:
            self._fail(str(error.__cause__ or error.message))
            raise
        except Rejected as error:
            self._fail(str(error))
            again = "re-authentication" if self._expires is not None else "authentication"
            raise SaslAuthenticationFailed(
                f"Authentication failed during {again} due to invalid credentials with SASL mechanism {self._mechanism}"
            ) from None
        except KafkaStorageError:
            self.state = State.FAILED
            raise

    async def _evaluate(self, message: bytes) -> tuple[bytes, int]:
        server = self._server
        if server is None:
            raise SaslAuthenticationFailed(
                f"SASL mechanism '{self._requested}' requested by client is not supported for re-authentication of"
                f" mechanism '{self._mechanism}'"
            )
        answer = await server.evaluate(message)
        return answer, self._complete(server) if server.is_complete else 0

    def _complete(self, server: SaslServer) -> int:
        """Begin the session, and return its lifetime in ms."""
        principal = f"User:{server.username}"
        if self.is_authenticated and principal != self.principal:
            raise SaslAuthenticationFailed(
                f"Cannot change principals during re-authentication from {self.principal.replace(':', '.', 1)}:"
                f" {principal.replace(':', '.', 1)}"
            )
        limits = [self.sasl.max_reauth_ms] if self.sasl.max_reauth_ms else []
        if server.expires_ms is not None:
            limits.append(max(0, server.expires_ms - self.sasl.wall_clock_ms()))
        self._expires = self.sasl.clock() + min(limits) / 1000 if limits else None
        self.principal, self.state = principal, State.AUTHENTICATED
        fields = {"peer": self.peer, "principal": principal, "mechanism": self._mechanism}
        logger.debug("%(peer)s: authenticated as %(principal)s with %(mechanism)s", fields)
        return min(limits, default=0)

    def _fail(self, reason: str) -> None:
        self.state = State.FAILED
        username = "" if self._server is None else self._server.username
        self.sasl.failures.log(
            "%(peer)s: authentication failed: mechanism %(mechanism).50s, user %(user)r: %(error)s",
            {
                "peer": self.peer,
                "mechanism": self._requested,
                "user": username[:100],
                "error": reason,
            },
        )
