"""TLS on a listener: the handshake of a connection, and its bytes, without copies that plain TCP does not have.

OpenSSL reads from the socket and decrypts into the buffer that `receive_into` is given. An SSLObject between two memory
BIOs needs fewer system calls, 5 to 10 % less processor time with 1 MB batches, but a copy of the encrypted bytes.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import trio
from attrs import define, field

from korvet.pem import words
from korvet.protocol.buffers import Buffer
from korvet.protocol.errors import ProtocolError
from korvet.server.keystores import ListenerTls
from korvet.server.readiness import Readiness
from korvet.server.transport import BYTES_AT_ONCE, Transport, is_readable

# The largest plaintext of a TLS record, the unit in which OpenSSL encrypts and decrypts.
RECORD_BYTES: Final = 16 * 1024
# A smaller record is usually the last one of a message, so it is not worth a call that finds nothing.
SHORT_RECORD_BYTES: Final = 8 * 1024
# The first byte of a TLS handshake.
HANDSHAKE: Final = b"\x16"
# Pause before another attempt if the connection's other task already waits for the same event.
BUSY_PAUSE_S: Final = 0.01

Wait = Callable[[socket.socket], Awaitable[None]]
WAITS: Final[dict[type[OSError], Wait]] = {
    ssl.SSLWantReadError: trio.lowlevel.wait_readable,
    ssl.SSLWantWriteError: trio.lowlevel.wait_writable,
}
WANTS: Final = tuple(WAITS)
#: OpenSSL's reasons why a handshake failed, in the operator's terms. For others, OpenSSL's own words are used.
REASONS: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client has no certificate, and ssl.client.auth requires one",
    "UNSUPPORTED_PROTOCOL": "the client supports no version of ssl.enabled.protocols",
    "NO_SHARED_CIPHER": "the client supports no cipher suite of the listener",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust the broker's certificate: unknown ca",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client does not accept the broker's certificate: bad certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client does not accept the broker's certificate: certificate unknown",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client does not accept the broker's certificate: certificate expired",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the client does not support the version of TLS",
}


@define(eq=False)
class TlsTransport(Transport):
    """A non-blocking TCP socket with TLS."""

    plain: socket.socket  # until the handshake begins
    tls: ListenerTls
    readiness: Readiness | None = None
    number: int = field(init=False)
    username: str | None = None
    _sock: ssl.SSLSocket = field(init=False)
    _is_over: bool = False  # the client has closed its side, or the connection is lost
    # What has to happen before more can be received or sent: receiving an update of the keys may require sending.
    _until_readable: Wait = trio.lowlevel.wait_readable
    _until_writable: Wait = trio.lowlevel.wait_writable

    def __attrs_post_init__(self) -> None:
        self.number = self.plain.fileno()

    # --- The handshake ----------------------------------------------------------------------------------

    async def handshake(self) -> None:
        await self._expect_handshake()
        # The context may have been replaced since the connection was accepted.
        self._sock = self.tls.context.wrap_socket(self.plain, server_side=True, do_handshake_on_connect=False)
        try:
            await self._shake_hands()
        except ssl.SSLCertVerificationError as error:
            raise ProtocolError(
                f"TLS handshake: the client's certificate is not valid: {error.verify_message}"
            ) from None
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError):
            raise ProtocolError("TLS handshake: the client has closed the connection") from None
        except ssl.SSLError as error:
            reason = REASONS.get(error.reason or "", words(error))
            raise ProtocolError(f"TLS handshake: {reason}") from None
        self.username = self._authenticated_name()

    async def _expect_handshake(self) -> None:
        """Wait for the client's first byte. OpenSSL would answer a client without TLS, and its errors vary."""
        await trio.lowlevel.wait_readable(self.plain)
        first = self.plain.recv(1, socket.MSG_PEEK)
        if not first:
            raise ConnectionAbortedError("it has closed the connection before the TLS handshake")
        if first != HANDSHAKE:
            raise ProtocolError("the client does not use TLS, which the listener requires")

    async def _shake_hands(self) -> None:
        while True:
            try:
                self._sock.do_handshake()
                return
            except WANTS as wanted:
                await WAITS[type(wanted)](self._sock)

    def _authenticated_name(self) -> str | None:
        certificate = self._sock.getpeercert(binary_form=True)
        if certificate is None:
            return None
        name = self.tls.principal_name(certificate)
        if name is None:
            raise ProtocolError("no rule of ssl.principal.mapping.rules applies to the client's certificate")
        return name

    # --- Bytes ------------------------------------------------------------------------------------------

    def receive_into(self, buffer: bytearray | memoryview) -> int:
        view, count = memoryview(buffer)[:BYTES_AT_ONCE], 0
        received, self._is_over = RECORD_BYTES, False
        try:
            while received >= SHORT_RECORD_BYTES and count < len(view):
                received = self._sock.recv_into(view[count:])
                count += received
        except WANTS as wanted:
            self._until_readable = WAITS[type(wanted)]
            if not count:
                raise BlockingIOError from None
        except OSError:
            if not count:
                raise
            received = 0  # the next call raises it again
        self._is_over = not received
        return count

    def has_arrived(self) -> bool:
        return self._has_bytes or is_readable(self._sock)

    def send(self, buffers: list[Buffer], first: int) -> int:
        # After one of WANTS, OpenSSL must be called again with the same bytes, and the caller's buffers are the same.
        try:
            return self._sock.send(piece(buffers, first))
        except WANTS as wanted:
            self._until_writable = WAITS[type(wanted)]
            return 0

    async def wait_readable(self) -> None:
        if self._has_bytes:
            await trio.lowlevel.checkpoint()
        else:
            await self._wait(self._until_readable)

    async def serve_readable(self, serve: Callable[[], bool]) -> None:
        if self.readiness is None:
            await super().serve_readable(serve)
            return
        is_served = True

        def serve_bytes() -> bool:
            nonlocal is_served
            is_served = serve()
            return is_served and self._waits_for_bytes

        while is_served:
            if self._waits_for_bytes:
                await self.readiness.serve(self.number, serve_bytes)
            else:
                await self.wait_readable()
                is_served = serve()

    @property
    def _has_bytes(self) -> bool:
        """True if `receive_into` does not depend on the socket: OpenSSL has decrypted bytes, or none will follow."""
        return self._is_over or self._sock.pending() > 0

    @property
    def _waits_for_bytes(self) -> bool:
        """True if the socket must be readable for `receive_into`."""
        return not self._has_bytes and self._until_readable is trio.lowlevel.wait_readable

    async def wait_writable(self) -> None:
        await self._wait(self._until_writable)

    async def _wait(self, until: Wait) -> None:
        try:
            await until(self._sock)
        except trio.BusyResourceError:
            await trio.sleep(BUSY_PAUSE_S)

    def close(self) -> None:
        if self.readiness is not None:
            self.readiness.forget(self.number)
        if hasattr(self, "_sock"):
            with suppress(OSError, ValueError):
                self._sock.unwrap()  # sends close_notify
            self._sock.close()
        self.plain.close()


def piece(buffers: list[Buffer], first: int) -> Buffer:
    """Return the bytes from `first` to send in one call: a large buffer uncopied, or small ones joined to a record."""
    if len(buffers[first]) >= RECORD_BYTES or first + 1 == len(buffers):
        return memoryview(buffers[first])[:BYTES_AT_ONCE]
    joined = bytearray()
    while first < len(buffers) and len(joined) < RECORD_BYTES:
        joined += memoryview(buffers[first])[: RECORD_BYTES - len(joined)]
        first += 1
    return joined
