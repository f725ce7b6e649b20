"""Listeners with TLS over real sockets: bytes, handshakes that fail, client certificates, new certificates."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from attrs import evolve
from trio.testing import MockClock, wait_all_tasks_blocked

from korvet.client import open_client
from korvet.client.model import Record, TopicPartition
from korvet.client.security import Sasl
from korvet.config import Config, Listener
from korvet.protocol.buffers import Buffer
from korvet.protocol.errors import ErrorCode, ProtocolError
from korvet.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from korvet.protocol.messages.metadata import MetadataRequest
from korvet.server.keystores import ListenerTls, listeners_tls, refresh
from korvet.server.readiness import Readiness, open_readiness
from korvet.server.server import Server
from korvet.server.tls import TlsTransport
from tests.certificates import Authority
from tests.server.test_authentication import storage_with_alice
from tests.talk import Client, connect, port_of, seen, serving

LISTENERS = (Listener("SSL", "localhost", 0),)
METADATA = MetadataRequest(topics=[])


@asynccontextmanager
async def secured(authority: Authority, **settings: Any) -> AsyncIterator[Server]:
    """Serve a listener with TLS."""
    defaults: dict[str, Any] = {
        "listeners": LISTENERS,
        "ssl_keystore_location": str(authority.broker),
        "ssl_truststore_location": str(authority.ca),
    }
    async with serving(**defaults | settings) as server:
        yield server


@asynccontextmanager
async def connect_tls(server: Server, context: ssl.SSLContext) -> AsyncIterator[Client]:
    async with await trio.open_tcp_stream("127.0.0.1", port_of(server)) as plain:
        stream = trio.SSLStream(plain, context, server_hostname="localhost", https_compatible=True)
        await stream.do_handshake()
        yield Client(stream)


def principals(server: Server) -> list[str]:
    return [connection._principal for connection in server._connections]


# --- Bytes --------------------------------------------------------------------------------------------------


@pytest.fixture
def tls(authority: Authority) -> ListenerTls:
    settings = {"listeners": LISTENERS, "ssl_keystore_location": str(authority.broker)}
    return listeners_tls(Config(**settings))["SSL"]


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A non-blocking socket of the broker, and the client's."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        theirs = socket.create_connection(listening.getsockname())
        ours, _ = listening.accept()
    with ours, theirs:
        ours.settimeout(0)
        yield ours, theirs


@pytest.fixture(params=[True, False], ids=["epoll", "trio"])
async def readiness(request: pytest.FixtureRequest) -> AsyncIterator[Readiness | None]:
    """The task that waits for all clients, or None where every connection's task does."""
    if not request.param:
        yield None
        return
    with open_readiness() as readiness:
        assert readiness is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(readiness.run)
            yield readiness
            nursery.cancel_scope.cancel()


@pytest.fixture
async def ends(
    tls: ListenerTls,
    sockets: tuple[socket.socket, socket.socket],
    authority: Authority,
    readiness: Readiness | None,
) -> AsyncIterator[tuple[TlsTransport, trio.SSLStream[trio.SocketStream]]]:
    """A transport after the handshake, and the client's stream."""
    ours, theirs = sockets
    transport = TlsTransport(ours, tls, readiness)
    plain = trio.SocketStream(trio.socket.from_stdlib_socket(theirs))
    stream = trio.SSLStream(plain, authority.context(), server_hostname="localhost", https_compatible=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.do_handshake)
        await transport.handshake()
    yield transport, stream
    transport.close()


Ends = tuple[TlsTransport, "trio.SSLStream[trio.SocketStream]"]


async def received(transport: TlsTransport, count: int, size: int) -> bytes:
    """Receive that many bytes into buffers of that size."""
    data = bytearray()
    while len(data) < count:
        await transport.wait_readable()
        buffer = bytearray(size)
        try:
            data += memoryview(buffer)[: transport.receive_into(buffer)]
        except BlockingIOError:
            continue
    return bytes(data)


@pytest.mark.parametrize("size", [1, 1000, 65536, 1 << 20])
async def test_bytes_are_received_into_buffers_of_any_size(ends: Ends, size: int) -> None:
    transport, client = ends
    data = Random(1).randbytes(3000 if size == 1 else 3_000_000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send_all, data)
        assert data == await received(transport, len(data), size)


async def test_bytes_that_are_decrypted_already_are_noticed(ends: Ends) -> None:
    transport, client = ends
    await client.send_all(b"abcdef")
    assert b"ab" == await received(transport, 2, 2)
    assert transport.has_arrived()
    with trio.fail_after(10):
        await transport.wait_readable()
    assert b"cdef" == await received(transport, 4, 10)
    assert not transport.has_arrived()
    with pytest.raises(BlockingIOError):
        transport.receive_into(bytearray(10))


@pytest.mark.parametrize("size", [3, 1000])
async def test_client_is_served_with_all_its_bytes_until_its_end(ends: Ends, size: int) -> None:
    transport, client = ends
    got = bytearray()

    def serve() -> bool:
        buffer = bytearray(size)
        try:
            count = transport.receive_into(buffer)
        except BlockingIOError:
            return True
        got.extend(buffer[:count])
        return bool(count)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(transport.serve_readable, serve)
        for data in (b"a", b"bcdefgh", b"i" * 5000):
            await wait_all_tasks_blocked()
            await client.send_all(data)
        await wait_all_tasks_blocked()
        client.transport_stream.socket.shutdown(socket.SHUT_WR)
    assert b"abcdefgh" + b"i" * 5000 == got


async def test_error_is_raised_where_the_client_is_waited_for(ends: Ends) -> None:
    transport, client = ends

    def serve() -> bool:
        raise ProtocolError("what it has sent")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send_all, b"x")
        with pytest.raises(ProtocolError, match="what it has sent"):
            await transport.serve_readable(serve)


async def test_end_of_the_clients_bytes_is_reported_after_them(ends: Ends) -> None:
    transport, client = ends
    await client.send_all(b"x" * 20_000)
    client.transport_stream.socket.shutdown(socket.SHUT_WR)
    assert 20_000 == len(await received(transport, 20_000, 1 << 20))
    await transport.wait_readable()
    assert transport.has_arrived()
    assert 0 == transport.receive_into(bytearray(10))


@pytest.mark.parametrize("sizes", [[5], [100, 1_000_000, 20, 3], [16_384, 1], [10] * 5000, [3_000_000]])
async def test_buffers_are_sent_to_a_client_that_reads_slowly(ends: Ends, sizes: list[int]) -> None:
    transport, client = ends
    random = Random(1)
    data = [random.randbytes(size) for size in sizes]

    async def send() -> None:
        buffers: list[Buffer] = list(data)
        first = 0
        while first < len(buffers):
            sent = transport.send(buffers, first)
            while first < len(buffers) and sent >= len(buffers[first]):
                sent -= len(buffers[first])
                first += 1
            if first < len(buffers):
                buffers[first] = memoryview(buffers[first])[sent:]
                await transport.wait_writable()

    got = bytearray()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        while len(got) < sum(sizes):
            got += await client.receive_some(10_000)
    assert b"".join(data) == got


async def test_client_is_notified_of_the_end_of_the_connection(ends: Ends) -> None:
    transport, client = ends
    transport.close()
    # Without close_notify, this would raise: the client requires one.
    client._https_compatible = False
    assert b"" == await client.receive_some()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_client_is_served_with_each_version(authority: Authority, version: ssl.TLSVersion) -> None:
    context = authority.context()
    context.minimum_version = context.maximum_version = version
    async with secured(authority) as server, connect_tls(server, context) as client:
        assert 1 == (await client.ask(METADATA, 12)).controller_id
        assert ["User:ANONYMOUS"] == principals(server)


async def test_large_batches_are_produced_and_fetched(authority: Authority) -> None:
    values = [Random(number).randbytes(900_000) for number in range(3)]
    async with (
        secured(authority) as server,
        open_client(server.bootstrap_servers, security=authority.security()) as client,
    ):
        records = [Record(partition=0, key=None, value=value) for value in values]
        await client.produce("t", records, create_topic=True)
        consumer = client.consume({TopicPartition("t", 0): 0})
        assert values == [(await anext(consumer)).value for _ in values]


# --- Handshakes that fail -----------------------------------------------------------------------------------


async def attempt(server: Server, context: ssl.SSLContext) -> None:
    """Connect, and read until the broker closes the connection. Unlike Trio's streams, this sends alerts."""

    def connect() -> None:
        with (
            suppress(OSError),
            socket.create_connection(("127.0.0.1", port_of(server)), 30) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as sock,
        ):
            assert b"" == sock.recv(1)

    await trio.to_thread.run_sync(connect)


async def until_none_is_open(server: Server) -> None:
    await seen(server).until(lambda: seen(server).connections == 0)


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def contexts(authority: Authority) -> dict[str, ssl.SSLContext]:
    """Return contexts of clients by the reason why a broker that requires certificates refuses them."""
    certificate = authority.client
    stranger = ssl.create_default_context()
    stranger.load_cert_chain(certificate)
    foreign = Authority(authority.folder / "foreign")
    foreign.folder.mkdir(exist_ok=True)
    expired = authority.issue("expired", "a.example", days=(-20, -10))
    future = authority.issue("future", "a.example", days=(10, 20))
    return {
        "the client has no certificate, and ssl.client.auth requires one": authority.context(),
        "the client's certificate is not valid: unable to get local issuer certificate": authority.context(
            foreign.issue("foreign", "a.example")
        ),
        "the client's certificate is not valid: certificate has expired": authority.context(expired),
        "the client's certificate is not valid: certificate is not yet valid": authority.context(future),
        "the client does not trust the broker's certificate: unknown ca": stranger,
    }


async def test_failed_handshakes_are_logged_with_peer_and_reason(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    for expected, context in contexts(authority).items():
        caplog.clear()
        async with secured(authority, ssl_client_auth="required") as server:
            await attempt(server, context)
            await until_none_is_open(server)
        (line,) = complaints(caplog)
        address, _, reason = line.partition(": connection closed: TLS handshake: ")
        assert expected == reason
        assert address.startswith("127.0.0.1:")


async def test_client_without_an_enabled_version_is_refused(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    context = authority.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with secured(authority, ssl_enabled_protocols=("TLSv1.3",)) as server:
        await attempt(server, context)
        await until_none_is_open(server)
    (line,) = complaints(caplog)
    assert line.endswith("TLS handshake: the client supports no version of ssl.enabled.protocols")


@pytest.mark.parametrize("suite", ["ECDHE-ECDSA-AES256-SHA384", "ECDHE-ECDSA-AES128-SHA"])
async def test_cipher_suites_with_cbc_are_not_accepted_by_default(
    authority: Authority, suite: str, caplog: pytest.LogCaptureFixture
) -> None:
    context = authority.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with secured(authority) as server:
        context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
        async with connect_tls(server, context) as client:
            assert "TLSv1.2" == client.stream.cipher()[1]
        context.set_ciphers(suite)
        await attempt(server, context)
    (line,) = complaints(caplog)
    assert line.endswith("TLS handshake: the client supports no cipher suite of the listener")


async def test_client_without_an_enabled_cipher_suite_is_refused(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    suite = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
    context = authority.context()
    async with secured(authority, ssl_cipher_suites=(suite,)) as server:
        async with connect_tls(server, context) as client:
            assert ("ECDHE-ECDSA-AES256-GCM-SHA384", "TLSv1.2") == client.stream.cipher()[:2]
        context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
        await attempt(server, context)
    (line,) = complaints(caplog)
    assert line.endswith("TLS handshake: the client supports no cipher suite of the listener")


@pytest.mark.parametrize("first", [b"\0\0\0\x10\0\x12\0\3", b"GET / HTTP/1.1\r\n\r\n", b"\xff"])
async def test_client_without_tls_is_refused(
    authority: Authority, first: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with secured(authority) as server, connect(server) as client:
        name = client.name
        await client.send(first)
        await client.closed()
    expected = f"{name}: connection closed: the client does not use TLS, which the listener requires"
    assert [expected] == complaints(caplog)


@pytest.mark.parametrize("hello", [b"\x16", b"\x16\x03\x01\x02\x00\x01", b"\x16\x03\x01\x00\x05hello"])
async def test_client_that_ends_in_the_handshake_is_logged(
    authority: Authority, hello: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with secured(authority) as server:
        async with connect(server) as client:
            name = client.name
            await client.send(hello)
        await until_none_is_open(server)
    (line,) = complaints(caplog)
    assert line.startswith(f"{name}: connection closed: TLS handshake: ")


async def test_client_that_closes_without_a_byte_is_not_logged(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async with secured(authority) as server:
        async with connect(server):
            await seen(server).until(lambda: seen(server).connections == 1)
        await until_none_is_open(server)
    assert [] == complaints(caplog)


async def test_client_with_tls_on_a_plaintext_listener_is_refused(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as server:
        await attempt(server, authority.context())
        await until_none_is_open(server)
    (line,) = complaints(caplog)
    assert line.endswith(": connection closed: the client uses TLS, which the listener does not")


async def test_mutated_handshakes_end_only_their_connections(authority: Authority) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        authority.context().wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    hello, random = outgoing.read(), Random(1)
    async with secured(authority) as server:
        for _ in range(200):
            mutated = bytearray(hello)
            for _ in range(random.randint(1, 5)):
                mutated[random.randrange(len(mutated))] = random.randrange(256)
            async with connect(server) as client:
                await client.send(mutated[: random.randint(1, len(mutated))])
        await until_none_is_open(server)
        async with connect_tls(server, authority.context()) as client:
            assert 1 == (await client.ask(METADATA, 12)).controller_id


async def test_connections_in_the_handshake_count_and_are_drained(authority: Authority) -> None:
    async with secured(authority, max_connections=2) as server, connect(server), connect(server) as second:
        await second.send(b"\x16\x03\x01")
        await seen(server).until(lambda: seen(server).connections == 2)
        server.stop()
        await second.closed()


# --- Client certificates ------------------------------------------------------------------------------------


async def principal_of(authority: Authority, certificate: Path | None, **settings: Any) -> str:
    """Return the principal of a client with that certificate."""
    async with (
        secured(authority, **settings) as server,
        connect_tls(server, authority.context(certificate)) as client,
    ):
        await client.ask(METADATA, 12)
        (connection,) = server._connections
        return connection._principal


async def test_principal_is_the_subject_of_the_clients_certificate(authority: Authority) -> None:
    principal = await principal_of(authority, authority.client, ssl_client_auth="required")
    assert principal.startswith("User:CN=alice,OU=Testing cert")


@pytest.mark.parametrize("client_auth", ["none", "requested"])
async def test_client_without_a_certificate_is_anonymous(authority: Authority, client_auth: str) -> None:
    assert "User:ANONYMOUS" == await principal_of(authority, None, ssl_client_auth=client_auth)


async def test_rules_map_the_subject_to_the_principal(authority: Authority) -> None:
    rules = "RULE:^CN=([a-z]+),.*$/$1/U"
    assert "User:ALICE" == await principal_of(
        authority, authority.client, ssl_client_auth="required", ssl_principal_mapping_rules=rules
    )


async def test_client_that_no_rule_maps_is_refused(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    rules = "RULE:^CN=bob$/$0/"
    async with secured(authority, ssl_client_auth="required", ssl_principal_mapping_rules=rules) as server:
        await attempt(server, authority.context(authority.client))
        await until_none_is_open(server)
    (line,) = complaints(caplog)
    assert line.endswith("no rule of ssl.principal.mapping.rules applies to the client's certificate")


async def test_acls_apply_to_the_principal_of_a_certificate(authority: Authority) -> None:
    settings = {
        "ssl_client_auth": "requested",
        "ssl_principal_mapping_rules": "RULE:^CN=([a-z]+),.*$/$1/",
        "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super_users": "User:alice",
    }
    creation = CreateTopicsRequest(topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1)])
    async with secured(authority, **settings) as server:
        for certificate, expected in (
            (None, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
            (authority.client, ErrorCode.NONE),
        ):
            async with connect_tls(server, authority.context(certificate)) as client:
                assert expected == (await client.ask(creation, 7)).topics[0].error_code


@pytest.mark.parametrize("override, certificate", [({}, False), ({"SASL_SSL": "required"}, True)])
async def test_principal_with_sasl_is_the_one_of_sasl(
    authority: Authority, override: dict[str, str], *, certificate: bool
) -> None:
    settings = {
        "listeners": (Listener("SASL_SSL", "localhost", 0),),
        "ssl_client_auth": "required",  # of listeners without SASL
        "overrides": {(name, "ssl_client_auth"): value for name, value in override.items()},
        "storage": await storage_with_alice(),
    }
    security = authority.security(authority.client if certificate else None)
    security = evolve(security, sasl=Sasl("SCRAM-SHA-256", "alice", "hush"))
    async with (
        secured(authority, **settings) as server,
        open_client(server.bootstrap_servers, security=security) as client,
    ):
        assert server.broker.cluster_id == client.cluster_id
        assert {"User:alice"} == {each._principal for each in server._connections}


async def test_listener_with_sasl_requires_a_certificate_by_its_own_setting(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    listeners = (Listener("SASL_SSL", "localhost", 0),)
    overrides = {("SASL_SSL", "ssl_client_auth"): "required"}
    async with secured(authority, listeners=listeners, overrides=overrides) as server:
        await attempt(server, authority.context())
        await until_none_is_open(server)
    (line,) = complaints(caplog)
    assert line.endswith("TLS handshake: the client has no certificate, and ssl.client.auth requires one")


# --- New certificates ---------------------------------------------------------------------------------------


def serial_number(client: Client) -> object:
    return client.stream.getpeercert()["serialNumber"]


async def test_new_certificates_are_used_and_open_connections_stay(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keystore.pem"
    file.write_bytes(authority.broker.read_bytes())
    context = authority.context()
    async with secured(authority, ssl_keystore_location=str(file)) as server:
        tls = server._tls["SSL"]
        async with connect_tls(server, context) as old:
            before = tls.context
            await tls.refresh()
            assert before is tls.context
            file.write_text("no certificate")
            await tls.refresh()
            await tls.refresh()
            assert before is tls.context
            renewed = authority.issue("renewed", "localhost")
            file.write_bytes(renewed.read_bytes())
            await tls.refresh()
            async with connect_tls(server, context) as new:
                assert serial_number(old) != serial_number(new)
                assert 1 == (await new.ask(METADATA, 12)).controller_id
            assert 1 == (await old.ask(METADATA, 12)).controller_id
    (line,) = complaints(caplog)
    assert line == (
        "$.ssl.keystore.location: it has no certificate as PEM (-----BEGIN …); new connections to"
        f" SSL://localhost:{LISTENERS[0].port} use the previous certificates"
    )


async def test_files_are_read_again_at_intervals(autojump_clock: MockClock) -> None:
    class Refreshed(Exception):  # noqa: N818
        pass

    class Tls:
        async def refresh(self) -> None:
            raise Refreshed

    began = trio.current_time()
    with pytest.raises(Refreshed):
        await refresh([Tls()])
    assert 5 == trio.current_time() - began
