"""Settings that are URLs: their passwords are not shown, neither in errors nor by commands."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import urlsplit

import pytest

from korvet.config import ConfigError, load_config
from korvet.config.settings import settings
from korvet.doctor.lake import lake_findings
from korvet.security.jwks import Jwks
from korvet.urls import split_hosts, without_password

JWKS = "sasl.oauthbearer.jwks.endpoint.url"
WITH_PASSWORDS = {
    JWKS: "https://me:pw123@issuer/keys?token=pw123",
    "lake.url": "s3://key:pw123@bucket/prefix",
    "storage": "redis://me:pw123@host:6379/0",
}


@pytest.mark.parametrize(
    "url,expected",
    [
        ("redis://me:pw@host:1/0", "redis://me@host:1/0"),
        ("https://me:p@w@host/keys", "https://me@host/keys"),
        ("https://host/keys?a=1&token=pw&x=2", "https://host/keys"),
        ("redis://host?password=pw", "redis://host"),
        ("s3://key:secret@bucket/prefix", "s3://key@bucket/prefix"),
        ("file:///a/b", "file:///a/b"),
        ("/a/b", "/a/b"),
        ("redis://host:1/0?db=2", "redis://host:1/0?db=2"),
    ],
)
def test_url_is_shown_without_its_password(url: str, expected: str) -> None:
    assert expected == without_password(url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://me:pw@host:1/0?db=2#x",
        "redis://[::1]:2/0",
        "unix:///a/b?db=2",
        "embedded:a/b",
        "memory:",
        "redis+cluster://h1,h2?protocol=3",
        "//host/path",
        "",
    ],
)
def test_url_of_one_server_is_split_as_usual(url: str) -> None:
    assert urlsplit(url) == split_hosts(url)


def test_several_servers_may_have_ipv6_addresses() -> None:
    parts = split_hosts("redis+sentinel://me:pw@h1:1,h2,[::1]:3/name/2?protocol=3")

    assert ("redis+sentinel", "me:pw@h1:1,h2,[::1]:3", "/name/2", "protocol=3", "") == tuple(parts)


@pytest.mark.parametrize("name", WITH_PASSWORDS)
def test_password_is_neither_in_repr_nor_in_errors(name: str) -> None:
    config = load_config(flags={name: WITH_PASSWORDS[name]})
    with pytest.raises(ConfigError) as refusal:
        load_config(flags={name: WITH_PASSWORDS[name] + "\n"})

    assert "pw123" not in repr(config)
    assert name in str(refusal.value)
    assert "pw123" not in str(refusal.value)


def test_settings_that_are_urls_hide_passwords() -> None:
    known = settings().items()
    urls = {
        name for name, each in known if each.kind.type != "list" and re.search("://|URL", each.kind.accepted)
    }

    assert urls == {name for name, each in known if each.kind.hides_passwords}


async def test_doctor_shows_no_password_of_a_lake() -> None:
    found = await lake_findings("s3://key:pw123@bucket/prefix")

    assert "bucket" in found.reason
    assert "pw123" not in found.reason


# --- Keys of tokens ------------------------------------------------------------------------------------------


class Guarded(BaseHTTPRequestHandler):
    """A key set behind a password, and a redirect to another server, which must not get the password."""

    seen: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers["Authorization"]))
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/keys")  # type: ignore[attr-defined]
            self.end_headers()
            return
        self.send_response(200 if self.headers["Authorization"] else 401)
        self.end_headers()
        self.wfile.write(json.dumps({"keys": []}).encode())

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def guarded() -> Iterator[HTTPServer]:
    Guarded.seen = []
    with HTTPServer(("127.0.0.1", 0), Guarded) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


async def test_keys_are_read_with_the_login_of_the_url(
    guarded: HTTPServer, caplog: pytest.LogCaptureFixture
) -> None:
    await Jwks(f"http://me:p%40w@127.0.0.1:{guarded.server_port}/keys").refresh()

    assert not caplog.records
    assert [("/keys", f"Basic {base64.b64encode(b'me:p@w').decode()}")] == Guarded.seen


async def test_failure_is_logged_without_the_password(
    guarded: HTTPServer, caplog: pytest.LogCaptureFixture
) -> None:
    address = f"127.0.0.1:{guarded.server_port}"
    await Jwks(f"http://me:pw123@{address}/moved").refresh()

    assert [None] == [login for path, login in Guarded.seen if path == "/keys"]
    assert f"the keys at http://me@{address}/moved cannot be read" in caplog.text
    assert "pw123" not in caplog.text
    assert "401" in caplog.text
