"""URLs: what they may say, what is refused, and that no password is ever repeated."""

from __future__ import annotations

import re
import ssl
from pathlib import Path

import pytest
import trustme

from korvet.storage.interface import StorageUsageError
from korvet.storage.redis.client.address import (
    OPTIONS,
    SENTINEL_OPTIONS,
    TLS_OPTIONS,
    RedisAddress,
    Sentinels,
    parse_address,
)


def test_host_port_database_and_credentials_are_parsed() -> None:
    address = parse_address("redis://app:s%40cret@example.org:7000/3?protocol=3&socket_timeout=2.5")
    expected = RedisAddress(
        host="example.org",
        port=7000,
        db=3,
        username="app",
        password="s@cret",
        protocol=3,
        answer_limit_s=2.5,
    )

    assert expected == address


def test_sentinels_have_their_own_credentials() -> None:
    url = "rediss+sentinel://app:s%40cret@h1:1,h2/my/3?sentinel_username=watch&sentinel_password=p%26q&protocol=3"
    address = parse_address(url)

    assert Sentinels("my", (("h1", 1), ("h2", 26379)), "watch", "p&q") == address.sentinels
    assert ("app", "s@cret", 3, 3) == (address.username, address.password, address.db, address.protocol)
    assert address.tls is not None
    assert "p&q" not in repr(address)


def test_unix_socket_is_parsed() -> None:
    address = parse_address("unix://app:secret@/run/redis/redis.sock?db=2")

    assert ("/run/redis/redis.sock", 2, "app") == (address.path, address.db, address.username)
    assert "unix://app@/run/redis/redis.sock?db=2" == address.description


@pytest.mark.parametrize(
    "url,description",
    [
        ("redis://:secret@", "redis://localhost:6379"),
        ("redis://app:secret@[::1]:1/2", "redis://app@[::1]:1/2"),
        ("rediss://secret-host:1?password=secret", "rediss://secret-host:1"),
        (
            "redis+sentinel://app:secret@h1:1,h2,[::1]:3/my/2?sentinel_password=secret",
            "redis+sentinel://app@h1:1,h2:26379,[::1]:3/my/2",
        ),
        ("rediss+sentinel://h1/my", "rediss+sentinel://h1:26379/my"),
    ],
)
def test_description_and_repr_hide_the_password(url: str, description: str) -> None:
    address = parse_address(url)

    assert address.description == description
    assert "secret'" not in repr(address)


@pytest.mark.parametrize(
    "url,complaint",
    [
        ("http://u:secret@host", "one of the following"),
        ("redis://u:secret@host:port", "port"),
        ("redis://u:secret@host:99999", "range"),
        ("redis://u:secret@host/orders", "/orders: expected a database's number"),
        ("redis://u:secret@host?db=x", "db"),
        ("redis://u:secret@host?protocol=4", "expected 2 or 3"),
        ("redis://u:secret@host?ssl_ca_certs=/x", "accepted are db, "),
        ("redis://u:secret@host?decode_responses=1", "unknown option decode_responses"),
        ("rediss://u:secret@host?ssl_cert_reqs=maybe", "expected none, optional, required"),
        ("rediss://u:secret@host?ssl_ca_certs=/no/such/file", "No such file"),
        ("unix://u:secret@", "path is missing"),
        ("redis+sentinel://u:secret@h1:1", "as in redis+sentinel://HOST:PORT,HOST:PORT/NAME/DB"),
        ("redis+sentinel://u:secret@h1:1,:2/my", "':2' names no Sentinel"),
        ("redis+sentinel://u:secret@h1/my/orders", "expected a database's number"),
        ("redis+sentinel://u:secret@h1/my?sentinel_user=x", "unknown option sentinel_user"),
    ],
)
def test_invalid_urls_are_reported_without_the_password(url: str, complaint: str) -> None:
    with pytest.raises(StorageUsageError) as raised:
        parse_address(url)

    assert complaint in str(raised.value)
    assert "secret" not in str(raised.value)


def test_tls_verifies_certificates_by_default() -> None:
    assert parse_address("redis://host").tls is None
    strict = parse_address("rediss://host").tls
    lax = parse_address("rediss://host?ssl_cert_reqs=none").tls

    assert strict is not None
    assert (ssl.CERT_REQUIRED, True) == (strict.verify_mode, strict.check_hostname)
    assert lax is not None
    assert (ssl.CERT_NONE, False) == (lax.verify_mode, lax.check_hostname)


def test_tls_options_are_those_of_redis_py(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    authority.issue_cert("client").private_key_and_cert_chain_pem.write_to_path(tmp_path / "client.pem")
    address = parse_address(
        f"rediss://host?ssl_ca_certs={tmp_path}/ca.pem&ssl_certfile={tmp_path}/client.pem"
        f"&ssl_check_hostname=false&ssl_min_version={int(ssl.TLSVersion.TLSv1_3)}"
    )

    assert address.tls is not None
    assert 1 == len(address.tls.get_ca_certs())
    assert (address.tls.check_hostname, address.tls.minimum_version) == (False, ssl.TLSVersion.TLSv1_3)


def test_documentation_has_all_options() -> None:
    document = (Path(__file__).parents[2] / "docs" / "storage.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", document, re.MULTILINE))

    assert {**OPTIONS, **TLS_OPTIONS, **SENTINEL_OPTIONS}.items() <= rows.items()
