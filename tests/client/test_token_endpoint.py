"""Tokens from a server, over HTTPS: kept, renewed, and asked for again if the server fails for a moment."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator

import pytest

from korvet.client import token_endpoint
from korvet.client.token_endpoint import ATTEMPTS, Grant, NoToken, TokenRefused, forget, token_of
from tests.client.token_server import Answer, TokenServer, granted, token_server


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[TokenServer]:
    monkeypatch.setattr(token_endpoint, "BACKOFF_S", 0.0)
    with token_server() as made:
        yield made


def test_token_is_asked_for_with_the_client_s_credentials(server: TokenServer) -> None:
    assert "one" == token_of(server.grant())

    login = base64.b64encode("alice:hush:é".encode()).decode()
    assert [(f"Basic {login}", {"grant_type": ["client_credentials"], "scope": ["kafka"]})] == server.requests
    token_of(server.grant(scope=""))
    assert {"grant_type": ["client_credentials"]} == server.requests[1][1]


def test_token_is_kept_for_most_of_its_lifetime(server: TokenServer, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    grant = server.grant()

    assert "one" == token_of(grant)
    now += 239
    assert "one" == token_of(grant)
    now += 2
    assert "two" == token_of(grant)


def test_token_that_a_broker_refused_is_not_kept(server: TokenServer) -> None:
    token_of(server.grant())
    forget(server.grant())

    assert "two" == token_of(server.grant())


@pytest.mark.parametrize("more", [{}, {"expires_in": 0}, {"expires_in": "soon"}])
def test_token_without_a_lifetime_is_used_once(server: TokenServer, more: dict[str, object]) -> None:
    server.answers = [granted("one", **more), granted("two")]

    assert ["one", "two"] == [token_of(server.grant()) for _ in range(2)]


def test_connections_at_the_same_time_use_one_token(server: TokenServer) -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(token_of(server.grant()))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (["one"] * 8, 1) == (found, len(server.requests))


@pytest.mark.parametrize(
    "failure", [(503, {}, b""), (429, {}, b"{}"), (200, {}, b"<html>"), (200, {}, b"[]")]
)
def test_temporary_failures_are_retried(server: TokenServer, failure: Answer) -> None:
    server.answers = [failure, failure, granted("one")]
    assert "one" == token_of(server.grant())

    server.answers = [failure]
    with pytest.raises(NoToken, match=r"^https://localhost:\d+/token answers "):
        token_of(server.grant())
    assert 2 * ATTEMPTS == len(server.requests)


@pytest.mark.parametrize(
    "refusal, reason",
    [
        ((401, {}, b'{"error": "invalid_client"}'), "401 invalid_client"),
        ((400, {}, b"no JSON"), "400 Bad Request"),
        ((302, {"Location": "https://elsewhere/token"}, b""), "302 Found"),
    ],
)
def test_refusals_are_not_retried_and_redirects_not_followed(
    server: TokenServer, refusal: Answer, reason: str
) -> None:
    server.answers = [refusal]

    with pytest.raises(TokenRefused, match=reason) as raised:
        token_of(server.grant())
    assert 1 == len(server.requests)
    assert "hush" not in str(raised.value)


def test_server_of_an_unknown_authority_is_not_asked(server: TokenServer) -> None:
    with pytest.raises(NoToken, match="certificate verify failed"):
        token_of(server.grant(trusted=""))
    assert [] == server.requests


def test_server_that_does_not_answer_is_named() -> None:
    with pytest.raises(NoToken, match=r"http://127\.0\.0\.1:1/token: .*Connection refused"):
        token_of(Grant("http://127.0.0.1:1/token", "alice", "hush"))
