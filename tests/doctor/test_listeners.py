from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import trio

from korvet.config import Config, load_config
from korvet.doctor.findings import Finding, Verdict
from korvet.doctor.listeners import listener_findings
from tests.certificates import Authority
from tests.servers import free_port


def found(config: Config, resolver: trio.abc.HostnameResolver | None = None) -> dict[str, Finding]:
    """Return the last finding of each check."""

    async def main() -> dict[str, Finding]:
        trio.socket.set_custom_hostname_resolver(resolver)
        return {finding.check: finding async for finding in listener_findings(config)}

    return trio.run(main)


def config(listener: str, **flags: str) -> Config:
    return load_config(
        flags={"listeners": listener, **{name.replace("_", "."): each for name, each in flags.items()}}
    )


def test_free_loopback_port_is_fine() -> None:
    findings = found(config("127.0.0.1:0"))

    assert {Verdict.OK} == {finding.verdict for finding in findings.values()}
    assert findings["advertised"].reason.endswith("leads to this broker")


def test_file_of_users_is_read(tmp_path: Path) -> None:
    path = tmp_path / "users.properties"
    path.write_text("alice: hush\n")
    good = found(config("127.0.0.1:0", sasl_plain_users_file=str(path)))["users"]
    path.write_text("alice:\n")
    bad = found(config("127.0.0.1:0", sasl_plain_users_file=str(path)))["users"]

    assert (Verdict.OK, f"{path} has 1 user(s) of PLAIN") == (good.verdict, good.reason)
    assert Verdict.ERROR == bad.verdict
    assert "hush" not in good.reason + bad.reason


def test_port_in_use_is_a_warning() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        findings = found(config(f"127.0.0.1:{port}"))

    assert ["listeners"] == list(findings)
    assert Verdict.WARNING == findings["listeners"].verdict
    assert f"port {port} is in use" in findings["listeners"].reason


def test_address_of_another_machine_cannot_be_listened_on() -> None:
    findings = found(config("192.0.2.1:0"))

    assert Verdict.ERROR == findings["listeners"].verdict
    assert "192.0.2.1" in findings["listeners"].reason


def test_advertised_name_that_cannot_be_resolved_is_an_error() -> None:
    findings = found(config("127.0.0.1:0", advertised_listeners="no-such-host.invalid:9092"))

    assert Verdict.ERROR == findings["advertised"].verdict


def test_advertised_address_that_leads_elsewhere_is_a_warning() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        findings = found(config("127.0.0.1:0", advertised_listeners=f"127.0.0.1:{other.getsockname()[1]}"))

    assert Verdict.WARNING == findings["advertised"].verdict
    assert "correct unless a proxy" in findings["advertised"].remedy


class BothFamilies(trio.abc.HostnameResolver):
    """Resolves every name to loopback on IPv6 and IPv4, whatever this machine's hosts file has."""

    async def getaddrinfo(self, host: object, port: object, *_: object) -> list[Any]:
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 0, "", ("::1", port, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port)),
        ]

    async def getnameinfo(self, sockaddr: object, flags: int) -> tuple[str, str]:
        raise NotImplementedError


def test_advertised_name_that_one_family_cannot_reach_is_a_warning() -> None:
    finding = found(config("127.0.0.1:0", advertised_listeners="broker:0"), BothFamilies())["advertised"]

    assert Verdict.WARNING == finding.verdict
    assert "is ::1, where this broker does not listen; some clients try that first" in finding.reason


def test_unencrypted_listener_beyond_loopback_is_a_warning() -> None:
    findings = found(config(":0"))

    assert Verdict.WARNING == findings["security"].verdict
    assert "neither encryption nor authentication" in findings["security"].reason


def test_checked_ports_are_free_afterwards() -> None:
    port = free_port()

    for _ in range(2):
        assert Verdict.OK == found(config(f"127.0.0.1:{port}"))["listeners"].verdict


def test_listener_with_a_certificate_and_required_client_certificates_is_fine(authority: Authority) -> None:
    tls = {"ssl_keystore_location": str(authority.broker), "ssl_truststore_location": str(authority.ca)}
    findings = found(config("SSL://:0", ssl_client_auth="required", **tls))

    assert Verdict.OK == findings["security"].verdict
    assert Verdict.WARNING == found(config("SSL://:0", **tls))["security"].verdict


def test_missing_certificate_is_an_error() -> None:
    finding = found(config("SSL://127.0.0.1:0", ssl_keystore_location="/missing"))["certificate"]

    assert Verdict.ERROR == finding.verdict
    assert "$.ssl.keystore.location: /missing: No such file or directory" == finding.reason


@pytest.mark.parametrize(
    "days, verdict, reason",
    [
        ((-20, -10), Verdict.ERROR, "that of SSL has expired at "),
        ((-20, 10), Verdict.WARNING, ", 10 days"),
        ((-20, 300), Verdict.OK, ", and its key belongs to it"),
    ],
)
def test_certificate_that_expires_is_found(
    authority: Authority, days: tuple[int, int], verdict: Verdict, reason: str
) -> None:
    path = authority.issue(f"broker{days[1]}", "localhost", days=days)
    finding = found(config("SSL://127.0.0.1:0", ssl_keystore_location=str(path)))["certificate"]

    assert verdict == finding.verdict
    assert reason in finding.reason
