"""A relay between clients and a broker that counts connections, requests and bytes."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from attrs import define, field


@define(eq=False)
class CountingRelay:
    """A listener on ::1, for a broker at the same port of 127.0.0.1.

    Requests are counted by API key and version once the broker has answered them, and bytes without the lengths
    before the frames.
    """

    listener: socket.socket
    requests: Counter[tuple[int, int]] = field(factory=Counter)
    request_bytes: Counter[int] = field(factory=Counter)  # by API key
    response_bytes: Counter[int] = field(factory=Counter)
    connections: int = 0
    _lock: Any = field(factory=threading.Lock)

    @property
    def port(self) -> int:
        port: int = self.listener.getsockname()[1]
        return port

    def serve(self) -> None:
        """Relay connections until the listener is closed."""
        with suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                self.connections += 1
                broker = socket.create_connection(("127.0.0.1", self.port))
                asked: list[tuple[int, int, int]] = []
                for source, sink, is_client in ((client, broker, True), (broker, client, False)):
                    given = (source, sink, asked, is_client)
                    threading.Thread(target=self._relay, args=given, daemon=True).start()

    def _relay(
        self, source: socket.socket, sink: socket.socket, asked: list[tuple[int, int, int]], is_client: bool
    ) -> None:
        with source, suppress(OSError), source.makefile("rb") as stream:
            while len(head := stream.read(4)) == 4:
                frame = stream.read(int.from_bytes(head, "big"))
                if is_client:
                    key, version = (int.from_bytes(frame[at : at + 2], "big") for at in (0, 2))
                    asked.append((key, version, len(frame)))
                else:
                    self._count(*asked.pop(0), len(frame))
                sink.sendall(head + frame)
            # After a client has left, its connection to the broker stays, so that the broker answers and is counted.
            if not is_client:
                sink.shutdown(socket.SHUT_RDWR)

    def _count(self, key: int, version: int, asked: int, answered: int) -> None:
        with self._lock:
            self.requests[key, version] += 1
            self.request_bytes[key] += asked
            self.response_bytes[key] += answered


@contextmanager
def counting_relay() -> Iterator[CountingRelay]:
    """Run a relay on a port that the system picks."""
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        relay = CountingRelay(listener)
        thread = threading.Thread(target=relay.serve, daemon=True)
        thread.start()
        try:
            yield relay
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
