"""Fake brokers that require TLS, SASL PLAIN, or both; like Kafka's, they do not answer clients without."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import trio
from attrs import define, field

from korvet.protocol.connection import Connection, Request
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages import sasl_authenticate, sasl_handshake
from tests.client.fake_cluster import HERE, FakeCluster

SASL: dict[int, tuple[str, type[Any], type[Any], int, int]] = {
    17: (
        "sasl_handshake",
        sasl_handshake.SaslHandshakeRequest,
        sasl_handshake.SaslHandshakeResponse,
        0,
        1,
    ),
    36: (
        "sasl_authenticate",
        sasl_authenticate.SaslAuthenticateRequest,
        sasl_authenticate.SaslAuthenticateResponse,
        0,
        2,
    ),
}
BEFORE_LOGIN = {17, 18, 36}


@define(eq=False)
class SecuredCluster(FakeCluster):
    """Without `users`, there is no SASL. A session lasts `lifetime_ms`, or without limit if that is 0."""

    context: ssl.SSLContext | None = None
    users: dict[str, str] = field(factory=dict)
    lifetime_ms: int = 0
    logins: int = 0
    _known: list[Connection] = field(factory=list)

    async def _converse(self, node: int, stream: trio.abc.Stream) -> None:
        if self.context is not None:
            stream = trio.SSLStream(stream, self.context, server_side=True, https_compatible=True)
        await super()._converse(node, stream)

    async def _answer(
        self, node: int, connection: Connection, request: Request, stream: trio.abc.Stream
    ) -> bool:
        logins = self.logins
        if (
            self.users
            and request.api.key not in BEFORE_LOGIN
            and not any(each is connection for each in self._known)
        ):
            return False
        answered = await super()._answer(node, connection, request, stream)
        if self.logins > logins:
            self._known.append(connection)
        return answered

    async def on_sasl_handshake(self, body: sasl_handshake.SaslHandshakeRequest, _: int, __: int) -> object:
        if not self.users:
            code = ErrorCode.ILLEGAL_SASL_STATE
        else:
            code = ErrorCode.NONE if body.mechanism == "PLAIN" else ErrorCode.UNSUPPORTED_SASL_MECHANISM
        return sasl_handshake.SaslHandshakeResponse(error_code=code, mechanisms=["PLAIN"])

    async def on_sasl_authenticate(
        self, body: sasl_authenticate.SaslAuthenticateRequest, _: int, __: int
    ) -> object:
        username, password = bytes(body.auth_bytes).decode().split("\0")[1:]
        right = self.users.get(username) == password
        self.logins += right
        return sasl_authenticate.SaslAuthenticateResponse(
            error_code=0 if right else ErrorCode.SASL_AUTHENTICATION_FAILED,
            error_message=None if right else "Invalid username or password",
            auth_bytes=b"",
            session_lifetime_ms=self.lifetime_ms,
        )


C = TypeVar("C", bound=SecuredCluster)


@asynccontextmanager
async def serving(kind: type[C], **how: Any) -> AsyncIterator[C]:
    """Run one broker of this kind."""
    cluster = kind(apis=HERE | SASL, **how)
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(cluster.serve, 1))
        yield cluster
        nursery.cancel_scope.cancel()


def secured_cluster(**how: Any) -> AbstractAsyncContextManager[SecuredCluster]:
    """Run one broker that requires TLS, SASL PLAIN, or both."""
    return serving(SecuredCluster, **how)
