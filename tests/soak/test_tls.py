"""100,000 conversations over TLS in which bytes were changed on the way, or that end early."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random
from typing import Any

from tests.certificates import Authority
from tests.failures.conftest import Report
from tests.processes import KorvetProcess

CONVERSATIONS = 100_000
CLIENTS = 16
LIMIT_S = 30.0
# A changed length makes both sides wait for more bytes, until the client gives up.
PATIENCE_S = 0.5
API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 7, -1)
# The broker's memory may grow by this much between the first tenth and the end.
GROWTH_BYTES = 30_000_000


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * 4096


def converse(port: int, context: ssl.SSLContext, random: Random, *, is_changed: bool) -> bytes:
    """Send a request through TLS and return the response. One byte of what is sent changes, or the rest is lost."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    left = random.randrange(900) if is_changed else 1 << 30  # bytes to send before the change
    limit_s = PATIENCE_S if is_changed else LIMIT_S
    with socket.create_connection(("127.0.0.1", port), limit_s) as sock:

        def exchange() -> None:
            nonlocal left
            data = bytearray(outgoing.read())
            if 0 <= left < len(data):
                data[left] ^= 1 << random.randrange(8)
                if random.random() < 0.2:
                    sock.sendall(data[:left])
                    raise ConnectionAbortedError
            left -= len(data)
            if data:
                sock.sendall(data)
            else:
                incoming.write(sock.recv(65536) or end())

        def step(action: Callable[..., Any], *arguments: object) -> Any:
            while True:
                try:
                    result = action(*arguments)
                except ssl.SSLWantReadError:
                    exchange()
                else:
                    return result

        step(tls.do_handshake)
        tls.write(API_VERSIONS)
        exchange()
        response: bytes = step(tls.read, 65536)
        return response


def end() -> bytes:
    raise ConnectionAbortedError


def attack(port: int, authority: Authority, seed: int, count: int) -> int:
    """Return how many of that many changed conversations were answered."""
    context, random, answered = authority.context(), Random(seed), 0
    for _ in range(count):
        with suppress(OSError):
            answered += bool(converse(port, context, random, is_changed=True))
    return answered


def test_changed_conversations_end_only_their_connections(authority: Authority, report: Report) -> None:
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:SSL",
        "ssl.keystore.location": str(authority.broker),
    }
    with KorvetProcess(settings=settings) as broker, ThreadPoolExecutor(CLIENTS) as pool:

        def everybody(count: int, seed: int) -> int:
            parts = [
                pool.submit(attack, broker.port, authority, seed + client, count // CLIENTS)
                for client in range(CLIENTS)
            ]
            return sum(part.result() for part in parts)

        everybody(CONVERSATIONS // 10, 0)
        before = resident_bytes(broker.pid)
        answered = everybody(CONVERSATIONS - CONVERSATIONS // 10, CLIENTS)
        grown = resident_bytes(broker.pid) - before
        report(
            f"{CONVERSATIONS:,} changed conversations: {answered} answered, memory grew by {grown:,} bytes"
        )
        assert b"\0\0\0\7" in converse(broker.port, authority.context(), Random(0), is_changed=False)
        assert grown < GROWTH_BYTES
        assert not [line for line in broker.log if "Traceback" in line or "an error in korvet" in line]
