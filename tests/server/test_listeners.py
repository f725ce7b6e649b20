from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from korvet.config import Config, Listener
from korvet.server import listeners
from korvet.server.listeners import BoundListener, ListenError, is_loopback, open_listeners, peer_name


@contextmanager
def opened(*addresses: tuple[str, int], **settings: Any) -> Iterator[list[BoundListener]]:
    wanted = tuple(Listener(f"L{number}", host, port) for number, (host, port) in enumerate(addresses))
    bound = open_listeners(Config(listeners=wanted, **settings))
    try:
        yield bound
    finally:
        for each in bound:
            each.close()


def hosts(bound: BoundListener) -> list[str]:
    return [sock.getsockname()[0] for sock in bound.sockets]


def test_localhost_is_bound_for_both_families_at_one_port() -> None:
    with opened(("localhost", 0)) as (bound,):
        assert ["127.0.0.1", "::1"] == hosts(bound)
        assert {bound.listener.port} == {sock.getsockname()[1] for sock in bound.sockets}
        assert bound.is_loopback
        assert Listener("L0", "localhost", bound.listener.port) == bound.advertised


def test_empty_host_binds_every_address_and_advertises_the_host_name() -> None:
    with opened(("", 0)) as (bound,):
        assert ["0.0.0.0", "::"] == hosts(bound)
        assert not bound.is_loopback
        assert Listener("L0", socket.gethostname(), bound.listener.port) == bound.advertised


def test_several_listeners_are_bound_separately() -> None:
    with opened(("127.0.0.1", 0), ("::1", 0)) as bound:
        assert [["127.0.0.1"], ["::1"]] == [hosts(each) for each in bound]


def test_advertised_listener_without_port_gets_the_bound_port() -> None:
    told = (Listener("L0", "broker.example", 0),)
    with opened(("127.0.0.1", 0), advertised_listeners=told) as (bound,):
        assert Listener("L0", "broker.example", bound.listener.port) == bound.advertised


def test_port_in_use_is_reported() -> None:
    with opened(("127.0.0.1", 0)) as (taken,):
        port = taken.listener.port
        with (
            pytest.raises(ListenError, match=f"127.0.0.1:{port}: port {port} is in use"),
            opened(("127.0.0.1", port)),
        ):
            pass


def test_port_in_use_in_one_family_is_in_use() -> None:
    with opened(("::1", 0)) as (taken,):
        port = taken.listener.port
        with pytest.raises(ListenError, match="in use"), opened(("localhost", port)):
            pass


def test_all_sockets_are_closed_when_one_listener_fails() -> None:
    with opened(("127.0.0.1", 0)) as (taken,), socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
        probe.close()
        with pytest.raises(ListenError), opened(("127.0.0.1", free), ("127.0.0.1", taken.listener.port)):
            pass
        with opened(("127.0.0.1", free)) as (bound,):
            assert free == bound.listener.port


def test_unknown_host_is_reported_in_one_line() -> None:
    with (
        pytest.raises(ListenError, match=r"cannot listen on nobody\.invalid:0"),
        opened(("nobody.invalid", 0)),
    ):
        pass


def test_unsupported_address_family_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    bind = listeners._bind

    def without_ipv6(host: str, family: socket.AddressFamily, *rest: Any, **options: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(97, "Address family not supported by protocol")
        return bind(host, family, *rest, **options)

    monkeypatch.setattr(listeners, "_bind", without_ipv6)
    with opened(("localhost", 0)) as (bound,):
        assert ["127.0.0.1"] == hosts(bound)
    with pytest.raises(ListenError), opened(("::1", 0)):
        pass


@pytest.mark.parametrize(
    "host, expected",
    [("localhost", True), ("127.0.0.9", True), ("::1", True), ("", False), ("10.0.0.1", False), ("x", False)],
)
def test_is_loopback(host: str, expected: bool) -> None:
    assert expected == is_loopback(host)


def test_peer_names_contain_host_and_port() -> None:
    assert ["1.2.3.4:5", "[::1]:6"] == [peer_name(("1.2.3.4", 5)), peer_name(("::1", 6))]
