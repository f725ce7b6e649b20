"""Visitors of the page and their clients of the cluster.

Without a login form, all visitors share one client with the page's own credentials. With it, each session has a client
with the user's credentials, which stay in this process: the browser has a random id in a cookie.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import trio
from attrs import define, evolve, field

from korvet.client import REFUSALS, Client, Topic, open_client
from korvet.client.open_transactions import OpenTransactions
from korvet.client.security import Sasl
from korvet.protocol.errors import KafkaError, SaslAuthenticationFailed
from korvet.web.options import PageOptions

CLIENT_ID = "korvet-web"
MAX_SESSIONS = 100
IDLE_S = 30 * 60.0
LIFETIME_S = 12 * 3600.0
# Limits of the attempts to log in: concurrent ones, those of one address, and the pause before a failure is answered.
LOGINS_AT_ONCE = 32
LOGINS_OF_ADDRESS = 8
FAILURE_PAUSE_S = 1.0
REQUEST_TIMEOUT_S = 10.0
RETRY_TIMEOUT_S = 5.0
# The list of all topics is requested again after this time, and by pages that refresh themselves after the second one.
TOPICS_AGE_S = 3.0
REFRESHED_AGE_S = 60.0


class LoginFailed(Exception):  # noqa: N818  names the event
    """The cluster does not accept the user name and password. The message is one line."""


@define(eq=False)
class Visitor:
    """A client of the cluster, and what it has read recently."""

    client: Client
    user: str = ""
    open_transactions: OpenTransactions = field(init=False)
    _topics: dict[str, Topic] = field(factory=dict)
    _topics_at: float = field(default=-1e9)
    _lock: trio.Lock = field(factory=trio.Lock)

    def __attrs_post_init__(self) -> None:
        self.open_transactions = OpenTransactions(self.client)

    async def topics(self, *, age_s: float = TOPICS_AGE_S) -> dict[str, Topic]:
        """Return all topics by name. The result may be `age_s` old: with many topics, the request takes long."""
        async with self._lock:
            if trio.current_time() - self._topics_at > age_s:
                self._topics = await self.client.topics()
                self._topics_at = trio.current_time()
            return self._topics


@define(eq=False)
class Session:
    """The session of a visitor after the login."""

    visitor: Visitor
    stack: AsyncExitStack
    began_at: float
    used_at: float

    def is_over(self, now: float) -> bool:
        return now - self.used_at > IDLE_S or now - self.began_at > LIFETIME_S


@define(eq=False)
class Sessions:
    """All visitors. `close` ends their clients."""

    options: PageOptions
    _secret: bytes = field(factory=lambda: secrets.token_bytes(32), repr=False)
    _sessions: OrderedDict[str, Session] = field(factory=OrderedDict, repr=False)
    _common: Session | None = None
    _lock: trio.Lock = field(factory=trio.Lock)
    _logins: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(LOGINS_AT_ONCE))
    # By addresses from which users are logging in now.
    _of_address: dict[str, trio.CapacityLimiter] = field(factory=dict)

    async def visitor(self, session_id: str) -> Visitor | None:
        """Return the visitor of a session, or None if a login is required. Raises KafkaError."""
        if not self.options.login:
            return await self._everyone()
        session = self._sessions.get(session_id)
        if session is None:
            return None
        now = trio.current_time()
        if session.is_over(now):
            await self.end(session_id)
            return None
        session.used_at = now
        self._sessions.move_to_end(session_id)
        return session.visitor

    def is_here(self, visitor: Visitor) -> bool:
        """Return False if the visitor's session has ended."""
        if self._common is not None and self._common.visitor is visitor:
            return True
        now = trio.current_time()
        return any(each.visitor is visitor and not each.is_over(now) for each in self._sessions.values())

    async def log_in(self, user: str, password: str, address: str) -> str:
        """Return the id of a new session. Raises LoginFailed, and KafkaError if no broker answers."""
        if not user or not password:
            raise LoginFailed("Enter a user name and a password.")
        try:
            async with self._room_for(address):
                session = await self._open(Sasl(self.options.login, user, password), user)
        except SaslAuthenticationFailed:
            # After the limits, so that no other login waits for it.
            await trio.sleep(FAILURE_PAUSE_S)
            raise LoginFailed("The cluster does not accept this user name and password.") from None
        except ValueError:  # SCRAM refuses some characters
            raise LoginFailed("The user name or password has characters that are not allowed.") from None
        await self._make_room()
        session_id = secrets.token_urlsafe(32)
        self._sessions[session_id] = session
        return session_id

    @asynccontextmanager
    async def _room_for(self, address: str) -> AsyncIterator[None]:
        """Wait until another login from that address may be tried."""
        limiter = self._of_address.setdefault(address, trio.CapacityLimiter(LOGINS_OF_ADDRESS))
        try:
            async with limiter, self._logins:
                yield
        finally:
            statistics = limiter.statistics()
            if not statistics.borrowed_tokens and not statistics.tasks_waiting:
                self._of_address.pop(address, None)

    async def end(self, session_id: str) -> None:
        """End a session, if it exists."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            await session.stack.aclose()

    async def close(self) -> None:
        """Close all clients."""
        for session_id in list(self._sessions):
            await self.end(session_id)
        if self._common is not None:
            await self._common.stack.aclose()

    def token(self, session_id: str) -> str:
        """Return the token that forms of a session contain, so that other sites cannot send them."""
        return hmac.new(self._secret, session_id.encode(), hashlib.sha256).hexdigest()

    async def _everyone(self) -> Visitor:
        async with self._lock:
            if self._common is None:
                self._common = await self._open(self.options.security.sasl, "")
            return self._common.visitor

    async def _open(self, sasl: Sasl | None, user: str) -> Session:
        stack = AsyncExitStack()
        client = await stack.enter_async_context(
            open_client(
                self.options.bootstrap_servers,
                client_id=CLIENT_ID,
                security=evolve(self.options.security, sasl=sasl),
                request_timeout_s=REQUEST_TIMEOUT_S,
                retry_timeout_s=RETRY_TIMEOUT_S,
            )
        )
        now = trio.current_time()
        return Session(Visitor(client, user), stack, now, now)

    async def _make_room(self) -> None:
        now = trio.current_time()
        over = [session_id for session_id, session in self._sessions.items() if session.is_over(now)]
        # Then those that were not used for the longest time.
        excess = len(self._sessions) - len(over) - MAX_SESSIONS + 1
        kept = [session_id for session_id in self._sessions if session_id not in over]
        for session_id in [*over, *kept[: max(excess, 0)]]:
            await self.end(session_id)


def is_refusal(error: KafkaError) -> bool:
    """Return True if the cluster refuses the credentials of a visitor, so that a new login is needed."""
    return isinstance(error, REFUSALS)
