"""Authentication over real sockets: the mechanisms, the requests before, failures, and sessions that expire."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet

from korvet.client import open_client
from korvet.client.scram import ScramClient
from korvet.client.security import Sasl, Security, security_of
from korvet.client.token_endpoint import Grant, forget
from korvet.config import Config, ConfigError, Listener, load_config
from korvet.protocol.errors import ErrorCode, SaslAuthenticationFailed
from korvet.protocol.frames import SIZE
from korvet.protocol.messages.api_versions import ApiVersionsRequest
from korvet.protocol.messages.metadata import MetadataRequest
from korvet.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from korvet.protocol.messages.sasl_handshake import SaslHandshakeRequest
from korvet.security import password_file
from korvet.security.scram import MECHANISMS, credential_of, salted_password
from korvet.security.users import Users
from korvet.server.assembly import open_server
from korvet.server.server import Server
from korvet.storage.memory import MemoryStorage
from tests.client.token_server import granted, token_server
from tests.handlers.support import Shim, away
from tests.talk import Client, connect, serving

LISTENERS = (Listener("SASL_PLAINTEXT", "localhost", 0),)
ALL = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
METADATA = MetadataRequest(topics=[])
PLAIN = b"\0alice\0hush"
OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
KEY = ECKey.generate_key("P-256", {"kid": "key"})


async def storage_with_alice() -> MemoryStorage:
    storage = MemoryStorage()
    for mechanism in MECHANISMS.values():
        salted = salted_password(mechanism, "hush", b"salt", 4096)
        await Users(storage).put("alice", mechanism, credential_of(mechanism, salted, b"salt", 4096))
    return storage


@asynccontextmanager
async def secured(**settings: Any) -> AsyncIterator[Server]:
    """Serve a listener with SASL, and the user alice with the password hush."""
    settings = {
        "listeners": LISTENERS,
        "sasl_enabled_mechanisms": ALL,
        "storage": await storage_with_alice(),
        "connection_failed_authentication_delay_ms": 0,
        **settings,
    }
    async with serving(**settings) as server:
        yield server


async def log_in(client: Client, message: bytes = PLAIN, mechanism: str = "PLAIN", version: int = 2) -> Any:
    assert 0 == (await client.ask(SaslHandshakeRequest(mechanism=mechanism), 1)).error_code
    return await client.ask(SaslAuthenticateRequest(auth_bytes=message), version)


async def send_bare(client: Client, message: bytes) -> None:
    """Send a message without a header."""
    await client.send(SIZE.pack(len(message)) + message)


# --- The mechanisms -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ALL)
async def test_client_with_the_password_is_served(mechanism: str) -> None:
    async with secured() as server:
        security = Security(sasl=Sasl(mechanism, "alice", "hush"))
        async with open_client(server.bootstrap_servers, security=security) as client:
            assert server.broker.cluster_id == client.cluster_id


@pytest.mark.parametrize("mechanism", ALL)
@pytest.mark.parametrize("username, password", [("alice", "hush!"), ("bob", "hush")])
async def test_client_without_the_password_is_refused_with_the_same_error(
    mechanism: str, username: str, password: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    expected = (
        "Authentication failed: Invalid username or password"
        if mechanism == "PLAIN"
        else f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}"
    )
    async with secured() as server:
        security = Security(sasl=Sasl(mechanism, username, password))
        with pytest.raises(SaslAuthenticationFailed, match=re.escape(expected)):
            async with open_client(server.bootstrap_servers, security=security):
                pass

    (line,) = [each.getMessage() for each in caplog.records if "authentication failed" in each.getMessage()]
    assert re.match(rf"[^ ]+:\d+: authentication failed: mechanism {mechanism}, user '{username}': ", line)
    assert password not in caplog.text


async def test_user_added_by_another_broker_is_served_immediately() -> None:
    storage = MemoryStorage()
    async with secured(storage=storage) as server, connect(server) as first:
        assert ErrorCode.SASL_AUTHENTICATION_FAILED == (await log_in(first)).error_code
        salted = salted_password(MECHANISMS["SCRAM-SHA-512"], "hush", b"salt", 4096)
        await Users(storage).put(
            "alice",
            MECHANISMS["SCRAM-SHA-512"],
            credential_of(MECHANISMS["SCRAM-SHA-512"], salted, b"salt", 4096),
        )
        async with connect(server) as second:
            assert 0 == (await log_in(second)).error_code


async def test_users_of_a_file_log_in_with_plain_only(tmp_path: Path) -> None:
    path = tmp_path / "users.properties"
    path.write_text("alice: from the file\ncarol: new\n")
    async with secured(sasl_plain_users_file=str(path)) as server:
        accepted = set()
        for mechanism in ("PLAIN", "SCRAM-SHA-256"):
            for user, password in (("alice", "from the file"), ("alice", "hush"), ("carol", "new")):
                security = Security(sasl=Sasl(mechanism, user, password))
                with suppress(SaslAuthenticationFailed):
                    async with open_client(server.bootstrap_servers, security=security):
                        accepted.add((mechanism, user, password))

    assert {
        ("PLAIN", "alice", "from the file"),
        ("PLAIN", "carol", "new"),
        ("SCRAM-SHA-256", "alice", "hush"),
    } == accepted


async def test_broker_does_not_start_with_an_unusable_file_of_users() -> None:
    config = Config(listeners=LISTENERS, sasl_plain_users_file="/missing")
    with pytest.raises(ConfigError, match=r"\$\.sasl\.plain\.users\.file: /missing: No such file"):
        async with open_server(config):
            pass


async def test_new_passwords_are_used_and_authenticated_connections_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "users.properties"
    path.write_text("carol: old\n")
    monkeypatch.setattr(password_file, "REFRESH_INTERVAL_S", 0.01)
    async with secured(sasl_plain_users_file=str(path)) as server, connect(server) as first:
        assert 0 == (await log_in(first, b"\0carol\0old")).error_code
        path.write_text("carol: new\n")
        code = ErrorCode.SASL_AUTHENTICATION_FAILED
        with trio.fail_after(30):
            while code:
                async with connect(server) as second:
                    code = (await log_in(second, b"\0carol\0new")).error_code
        async with connect(server) as third:
            response = await log_in(third, b"\0carol\0old")
            assert ErrorCode.SASL_AUTHENTICATION_FAILED == response.error_code
        assert 1 == (await first.ask(METADATA, 12)).controller_id


def token(expires_s: float) -> bytes:
    claims = {"sub": "alice", "iat": int(time.time()), "exp": int(time.time() + expires_s)}
    text = jwt.encode({"alg": "ES256", "kid": "key"}, claims, KEY, ["ES256"])
    return f"n,,\x01auth=Bearer {text}\x01\x01".encode()


@pytest.fixture
def tokens(tmp_path: Path) -> dict[str, Any]:
    """Settings that enable OAUTHBEARER."""
    (tmp_path / "keys").write_text(json.dumps(KeySet([KEY]).as_dict(private=False)))
    url = (tmp_path / "keys").as_uri()
    return {
        "sasl_enabled_mechanisms": ("OAUTHBEARER", "PLAIN"),
        "sasl_oauthbearer_jwks_endpoint_url": url,
    }


async def test_client_with_a_token_is_served_for_its_lifetime(tokens: dict[str, Any]) -> None:
    async with secured(**tokens) as server, connect(server) as client:
        response = await log_in(client, token(300), "OAUTHBEARER")

        assert 0 == response.error_code
        assert 200_000 < response.session_lifetime_ms <= 300_000
        assert 0 == (await client.ask(METADATA, 12)).controller_id - 1


def bearer(path: Path, expires_s: float) -> Security:
    """Write a token to a file, and return the security of a client that reads it."""
    text = token(expires_s).decode().split()[1].rstrip("\x01")
    (path / "token").write_text(text + "\n")
    return security_of(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.jaas.config": f"{OAUTH_MODULE} required;",
            "sasl.oauthbearer.token.endpoint.url": (path / "token").as_uri(),
        }
    )


async def test_client_gets_its_token_from_a_server(tokens: dict[str, Any]) -> None:
    text = token(300).decode().split()[1].rstrip("\x01")

    async def cluster_id(server: Server, grant: Grant) -> str | None:
        security = Security(sasl=Sasl("OAUTHBEARER", grant=grant))
        async with open_client(server.bootstrap_servers, security=security) as client:
            return client.cluster_id

    with token_server() as given:
        given.answers = [granted("not a token", expires_in=300), granted(text, expires_in=300)]
        grant = given.grant()
        async with secured(**tokens) as server:
            with pytest.raises(SaslAuthenticationFailed):
                await cluster_id(server, grant)
            assert [server.broker.cluster_id] * 2 == [await cluster_id(server, grant) for _ in range(2)]
            given.answers = [(401, {}, b"{}")]
            forget(grant)
            with pytest.raises(
                SaslAuthenticationFailed, match="gives this client no token: 401 Unauthorized"
            ):
                await cluster_id(server, grant)

    assert 3 == len(given.requests)


async def test_client_reads_its_token_from_a_file(tokens: dict[str, Any], tmp_path: Path) -> None:
    async with secured(**tokens) as server:
        security = security_of(bearer(tmp_path, 300).settings())
        async with open_client(server.bootstrap_servers, security=security) as client:
            assert server.broker.cluster_id == client.cluster_id

        for write in (lambda: bearer(tmp_path, -300), (tmp_path / "token").unlink):
            write()
            with pytest.raises(SaslAuthenticationFailed, match=r"invalid_token|the token cannot be read"):
                async with open_client(server.bootstrap_servers, security=security):
                    pass


async def test_expired_token_is_answered_with_json_and_then_fails(
    tokens: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with secured(**tokens) as server, connect(server) as client:
        response = await log_in(client, token(-300), "OAUTHBEARER")
        assert (0, b'{"status":"invalid_token"}') == (response.error_code, bytes(response.auth_bytes))
        response = await client.ask(SaslAuthenticateRequest(auth_bytes=b"\x01"), 2)
        assert (ErrorCode.SASL_AUTHENTICATION_FAILED, '{"status":"invalid_token"}') == (
            response.error_code,
            response.error_message,
        )
        await client.closed()
    assert "mechanism OAUTHBEARER, user '': the token is not acceptable: expired_token" in caplog.text


# --- Before authentication ----------------------------------------------------------------------------------


async def test_other_requests_before_authentication_end_the_connection() -> None:
    async with secured() as server:
        for step in range(3):
            async with connect(server) as client:
                if step > 0:
                    versions = ApiVersionsRequest(client_software_name="a", client_software_version="1")
                    assert 0 == (await client.ask(versions, 3)).error_code
                if step > 1:
                    await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
                await client.send(client.frame_of(METADATA, 12))
                await client.closed()


async def test_second_api_versions_before_the_handshake_ends_the_connection() -> None:
    versions = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    async with secured() as server, connect(server) as client:
        unnamed = await client.ask(ApiVersionsRequest(client_software_name=" "), 3)
        assert ErrorCode.INVALID_REQUEST == unnamed.error_code
        assert ErrorCode.NONE == (await client.ask(versions, 3)).error_code
        await client.send(client.frame_of(versions, 3))
        await client.closed()


async def test_message_of_a_mechanism_before_the_handshake_ends_the_connection() -> None:
    async with secured() as server, connect(server) as client:
        await client.send(client.frame_of(SaslAuthenticateRequest(auth_bytes=PLAIN), 2))
        await client.closed()


@pytest.mark.parametrize("mechanism", ["OAUTHBEARER", "GSSAPI", "plain", "", "x" * 1000])
async def test_mechanism_that_is_not_enabled_is_refused(mechanism: str) -> None:
    async with secured() as server, connect(server) as client:
        response = await client.ask(SaslHandshakeRequest(mechanism=mechanism), 1)

        assert (ErrorCode.UNSUPPORTED_SASL_MECHANISM, list(ALL)) == (response.error_code, response.mechanisms)
        await client.closed()


async def test_request_above_the_limit_before_authentication_ends_the_connection() -> None:
    async with secured(sasl_server_max_receive_size=1000) as server:
        async with connect(server) as client:
            await client.send(client.frame_of(SaslHandshakeRequest(mechanism="x" * 1000), 1))
            await client.closed()
        async with connect(server) as client:
            await log_in(client)
            large = MetadataRequest(topics=[], allow_auto_topic_creation=False)
            assert 0 == (await client.ask(large, 12)).controller_id - 1


async def test_client_that_does_not_authenticate_is_disconnected(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with secured(sweep_interval_s=0.01) as server, connect(server) as one, connect(server) as other:
        await log_in(one)
        for connection in server._connections:
            connection.progress.connected -= 31
        await other.closed()
        assert 1 == (await one.ask(METADATA, 12)).controller_id
    assert "it has not authenticated in 31 s" in caplog.text


async def test_failed_authentication_is_answered_after_the_delay() -> None:
    async with secured(connection_failed_authentication_delay_ms=200) as server, connect(server) as client:
        began = time.monotonic()
        response = await log_in(client, b"\0alice\0wrong")
        assert ErrorCode.SASL_AUTHENTICATION_FAILED == response.error_code
        assert time.monotonic() - began >= 0.2


async def test_connection_is_closed_without_a_response_while_the_store_is_unavailable(
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage = Shim(await storage_with_alice(), load=away)
    async with secured() as server, connect(server) as client:
        server.broker.users.storage = storage
        await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        await client.send(client.frame_of(SaslAuthenticateRequest(auth_bytes=PLAIN), 2))
        await client.closed()
    assert "authentication needs the store: the store is away" in caplog.text


# --- Messages without SaslAuthenticate (SaslHandshake v0) ---------------------------------------------------


async def test_mechanism_may_follow_a_handshake_of_version_0_without_headers() -> None:
    async with secured() as server, connect(server) as client:
        await client.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 0)
        scram = ScramClient("SCRAM-SHA-256", "alice", "hush")
        await send_bare(client, scram.first())
        await send_bare(client, scram.final(bytes(await client.receive())))
        scram.verify(bytes(await client.receive()))
        assert 1 == (await client.ask(METADATA, 12)).controller_id


async def test_failure_without_headers_has_no_response() -> None:
    async with secured() as server, connect(server) as client:
        await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 0)
        await send_bare(client, b"\0alice\0wrong")
        await client.closed()


# --- Sessions -----------------------------------------------------------------------------------------------


async def test_reauthentication_of_an_unlimited_session_is_refused() -> None:
    async with secured() as server, connect(server) as client:
        assert 0 == (await log_in(client)).session_lifetime_ms
        response = await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        assert ErrorCode.ILLEGAL_SASL_STATE == response.error_code
        response = await client.ask(SaslAuthenticateRequest(auth_bytes=PLAIN), 2)
        assert ErrorCode.ILLEGAL_SASL_STATE == response.error_code
        assert 1 == (await client.ask(METADATA, 12)).controller_id


async def test_expired_session_ends_unless_the_client_reauthenticates(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with secured(connections_max_reauth_ms=60_000) as server:
        clock = Clock()
        server._authentication.sasl["SASL_PLAINTEXT"].clock = clock
        async with connect(server) as one, connect(server) as other:
            for client in (one, other):
                assert 60_000 == (await log_in(client)).session_lifetime_ms
            clock.now += 61
            assert 60_000 == (await log_in(one)).session_lifetime_ms
            assert 1 == (await one.ask(METADATA, 12)).controller_id
            await other.send(other.frame_of(METADATA, 12))
            await other.closed()
    assert "its session has expired" in caplog.text


async def test_reauthentication_is_accepted_once_in_a_second() -> None:
    async with secured(connections_max_reauth_ms=60_000) as server, connect(server) as client:
        clock = Clock()
        server._authentication.sasl["SASL_PLAINTEXT"].clock = clock
        await log_in(client)
        await log_in(client)
        handshake = SaslHandshakeRequest(mechanism="PLAIN")
        assert ErrorCode.ILLEGAL_SASL_STATE == (await client.ask(handshake, 1)).error_code
        clock.now += 1
        assert 0 == (await log_in(client)).error_code


async def test_reauthentication_with_another_mechanism_or_user_is_refused() -> None:
    storage = await storage_with_alice()
    users = Users(storage)
    sha = MECHANISMS["SCRAM-SHA-512"]
    await users.put("bob", sha, (await users.credentials("alice"))[sha])
    async with secured(connections_max_reauth_ms=60_000, storage=storage) as server:
        async with connect(server) as client:
            await log_in(client)
            response = await log_in(client, b"n,,n=alice,r=x", "SCRAM-SHA-256")
            assert (
                "SASL mechanism 'SCRAM-SHA-256' requested by client is not supported for re-authentication of"
                " mechanism 'PLAIN'"
            ) == response.error_message
            await client.closed()
        async with connect(server) as client:
            await log_in(client)
            response = await log_in(client, b"\0bob\0hush")
            assert (
                "Cannot change principals during re-authentication from User.alice: User.bob"
                == response.error_message
            )
            await client.closed()


async def test_listeners_have_mechanisms_of_their_own() -> None:
    config = load_config(
        flags={
            "listeners": "INSIDE://localhost:0,OUTSIDE://localhost:0",
            "listener.security.protocol.map": "INSIDE:SASL_PLAINTEXT,OUTSIDE:SASL_PLAINTEXT",
            "listener.name.inside.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.inside.connections.max.reauth.ms": "1000",
        }
    )
    async with open_server(config, storage=await storage_with_alice()) as server:
        inside, outside = (bound.listener.port for bound in server.listeners)
        async with connect(server, port=inside) as client:
            assert 1000 == (await log_in(client)).session_lifetime_ms
        async with connect(server, port=outside) as client:
            response = await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
            assert ["SCRAM-SHA-256", "SCRAM-SHA-512"] == response.mechanisms


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_listener_without_sasl_refuses_the_handshake() -> None:
    async with serving() as server, connect(server) as client:
        response = await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        assert (ErrorCode.ILLEGAL_SASL_STATE, []) == (response.error_code, response.mechanisms)
        response = await client.ask(SaslAuthenticateRequest(auth_bytes=b""), 2)
        assert ErrorCode.ILLEGAL_SASL_STATE == response.error_code
        assert 1 == (await client.ask(METADATA, 12)).controller_id
