from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio
from attrs import define
from joserfc.jwk import ECKey, KeySet, OctKey

from korvet.security.jwks import MOST_BYTES, Jwks

OLD, NEW = (ECKey.generate_key("P-256", {"kid": name}) for name in ("old", "new"))


def key_set(*keys: ECKey) -> bytes:
    return json.dumps(KeySet(list(keys)).as_dict(private=False)).encode()


@define
class Issuer:
    """A server of a key set, unreachable if `content` is None. `requests` counts the requests."""

    content: bytes | None = key_set(OLD)
    requests: int = 0

    async def fetch(self, _: str) -> bytes:
        self.requests += 1
        await trio.lowlevel.checkpoint()
        if self.content is None:
            raise OSError("unreachable")
        return self.content


async def ids(jwks: Jwks, key_id: object) -> list[object]:
    return [key.kid for key in await jwks.keys(key_id, "EC")]


@pytest.fixture
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
def jwks(issuer: Issuer) -> Jwks:
    return Jwks("https://issuer/keys", refresh_s=600, fetch=issuer.fetch)


async def test_unknown_key_id_refreshes_the_keys(
    jwks: Jwks, issuer: Issuer, autojump_clock: trio.testing.MockClock
) -> None:
    assert ["old"] == await ids(jwks, "old")
    issuer.content = key_set(NEW)
    await trio.sleep(10)
    assert ["new"] == await ids(jwks, "new")
    await trio.sleep(10)
    assert [] == await ids(jwks, "old")


async def test_unknown_key_ids_cause_at_most_one_request_in_ten_seconds(
    jwks: Jwks, issuer: Issuer, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(ids, jwks, f"made up {number}")
    assert 1 == issuer.requests
    await trio.sleep(9)
    await ids(jwks, "made up")
    assert 1 == issuer.requests
    await trio.sleep(1)
    await ids(jwks, "made up")
    assert 2 == issuer.requests


@pytest.mark.parametrize("content", [None, b"", b"no JSON", b"{}", b"[]", b"[" * 100_000, b"\xff"], ids=repr)
async def test_known_keys_are_kept_while_the_key_set_cannot_be_read(
    jwks: Jwks,
    issuer: Issuer,
    content: bytes | None,
    caplog: pytest.LogCaptureFixture,
    autojump_clock: trio.testing.MockClock,
) -> None:
    assert ["old"] == await ids(jwks, "old")
    issuer.content = content
    await trio.sleep(10)

    assert [] == await ids(jwks, "new")
    assert ["old"] == await ids(jwks, "old")
    assert 1 == len(caplog.records)
    assert "https://issuer/keys cannot be read; the known ones stay" in caplog.text


async def test_key_set_is_refreshed_at_intervals(
    jwks: Jwks, issuer: Issuer, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    issuer.content = None
    nursery.start_soon(jwks.run)
    await trio.sleep(5)
    assert 1 == issuer.requests
    issuer.content = key_set(OLD)
    await trio.sleep(10)  # without keys it tries again soon
    assert 2 == issuer.requests
    issuer.content = key_set(OLD, NEW)
    await trio.sleep(600)
    assert 3 == issuer.requests
    assert ["new"] == await ids(jwks, "new")
    assert 3 == issuer.requests


async def test_keys_of_other_types_and_uses_are_left_out(jwks: Jwks, issuer: Issuer) -> None:
    encryption = OLD.as_dict(private=False) | {"use": "enc", "kid": "encryption"}
    secret = OctKey.generate_key(256, {"kid": "secret"}).as_dict(private=True)
    keys = [1, encryption, secret, {"kty": "unknown", "kid": "unknown"}, NEW.as_dict(private=False)]
    issuer.content = json.dumps({"keys": keys}).encode()

    assert ["new"] == await ids(jwks, None)
    assert [] == await ids(jwks, "secret")


async def test_keys_are_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(key_set(OLD))

    assert ["old"] == await ids(Jwks((tmp_path / "keys").as_uri()), None)


async def test_too_large_file_is_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "keys").write_bytes(key_set(OLD) + b" " * MOST_BYTES)

    assert [] == await ids(Jwks((tmp_path / "keys").as_uri()), None)
    assert "more than 1048576 bytes" in caplog.text


@pytest.mark.parametrize("url", ["ftp://localhost/x", "data:application/json,{}", "http://127.0.0.1:1/", "x"])
async def test_unsupported_and_unreachable_urls_have_no_keys(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert [] == await ids(Jwks(url), None)
    assert url in caplog.text
