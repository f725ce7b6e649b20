"""The floor: the speed of this machine with the same bytes and no broker.

An echo server sends the bytes back over loopback TCP. A raw pipelined connection writes them to a Valkey that is
configured like korvet's own, as one entry per batch or one entry per record, and reads them back. korvet cannot be
faster than this.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import hiredis
from attrs import frozen

from bench.processes import DidNotStart
from bench.rdkafka import WrongCount
from tests.support.frames import connect

# Bytes of a record in a batch, besides its value of 100 bytes.
RECORD_OVERHEAD_BYTES = 7
MEGABYTE = 1_000_000
COMMANDS_A_WRITE = 500
ENTRIES_A_READ = 1_000
RECEIVE_BYTES = 1 << 20


@contextmanager
def echo_server() -> Iterator[int]:
    """Run an echo server in a separate process, as the broker is one. Yield its port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.floor"], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    try:
        if process.stdout is None or not (line := process.stdout.readline()):
            message = "the echo server said no port"
            raise DidNotStart(message)
        yield int(line)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def serve_echo() -> None:
    """Echo every byte, one connection after the other."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        buffer = memoryview(bytearray(RECEIVE_BYTES))
        while True:
            connection, _ = listener.accept()
            with connection:
                while received := connection.recv_into(buffer):
                    connection.sendall(buffer[:received])


def echo(port: int, *, records: int, record_bytes: int) -> float:
    """Send the bytes of `records` records and receive them back. Return records per second."""
    wire_bytes = record_bytes + RECORD_OVERHEAD_BYTES
    chunk = os.urandom(MEGABYTE)
    total = records * wire_bytes

    def send() -> None:
        for start in range(0, total, len(chunk)):
            connection.sendall(chunk[: total - start])

    with connect(("127.0.0.1", port)) as connection:
        buffer = memoryview(bytearray(RECEIVE_BYTES))
        sender = threading.Thread(target=send, daemon=True)
        started = time.perf_counter()
        sender.start()
        received = 0
        while received < total:
            received += connection.recv_into(buffer)
        elapsed_s = time.perf_counter() - started
        sender.join()
    return records / elapsed_s


def echo_round_trip_us(port: int, *, size: int, count: int) -> float:
    """Return the median round trip of messages of `size` bytes, one at a time."""
    message, buffer = os.urandom(size), bytearray(size)
    with connect(("127.0.0.1", port)) as connection:

        def round_trip() -> None:
            connection.sendall(message)
            connection.recv_into(buffer, 0, socket.MSG_WAITALL)

        return _median_us(round_trip, count)


@frozen
class RawRedis:
    """One pipelined connection to a Valkey, at the full speed of Python and hiredis: commands are packed in advance."""

    path: Path

    def write_batches(self, *, records: int, record_bytes: int, batch_bytes: int, partitions: int) -> float:
        """Write one entry per batch, alternating between the partitions' streams. Return records per second."""
        each, count = _batches(records, record_bytes, batch_bytes)
        payload = os.urandom(each * (record_bytes + RECORD_OVERHEAD_BYTES))
        commands = [
            _command("XADD", f"batches:{index % partitions}", f"{index}-0", "$batch", payload)
            for index in range(1, count + 1)
        ]
        elapsed_s, _ = self._pipeline(commands, count)
        return count * each / elapsed_s

    def read_batches(self, *, records: int, record_bytes: int, batch_bytes: int, partitions: int) -> float:
        """Read what `write_batches` wrote, one megabyte per command. Return records per second."""
        each, count = _batches(records, record_bytes, batch_bytes)
        at_once = max(1, MEGABYTE // batch_bytes)
        commands = [
            _command("XRANGE", f"batches:{start % partitions}", f"{start}-0", "+", "COUNT", str(at_once))
            for first in range(1, count + 1, partitions * at_once)
            for start in range(first, min(first + partitions, count + 1))
        ]
        elapsed_s, replies = self._pipeline(commands, len(commands))
        _verify(
            count * each * (record_bytes + RECORD_OVERHEAD_BYTES),
            sum(len(fields[1]) for reply in replies for _, fields in reply),
        )
        return count * each / elapsed_s

    def write_records(self, *, records: int, record_bytes: int) -> float:
        """Write one entry per record, with the fields of korvet's record layout. Return records per second."""
        payload = os.urandom(record_bytes)
        commands = [
            _command("XADD", "records", f"{index}-0", "value", payload, "timestamp", "1700000000000")
            for index in range(1, records + 1)
        ]
        starts = range(0, records, COMMANDS_A_WRITE)
        writes = [b"".join(commands[start : start + COMMANDS_A_WRITE]) for start in starts]
        elapsed_s, _ = self._pipeline(writes, records)
        return records / elapsed_s

    def read_records(self, *, records: int) -> float:
        """Read what `write_records` wrote, many entries per command. Return records per second."""
        firsts = range(1, records + 1, ENTRIES_A_READ)
        commands = [
            _command("XRANGE", "records", f"{i}-0", "+", "COUNT", str(ENTRIES_A_READ)) for i in firsts
        ]
        elapsed_s, replies = self._pipeline(commands, len(commands))
        _verify(records, sum(map(len, replies)))
        return records / elapsed_s

    def append_round_trip_us(self, *, record_bytes: int, count: int) -> float:
        """Return the median time until one entry is acknowledged, one command at a time."""
        command = _command("XADD", "batches:0", "*", "$batch", os.urandom(record_bytes))
        with connect(str(self.path)) as connection:

            def round_trip() -> None:
                connection.sendall(command)
                connection.recv(RECEIVE_BYTES)

            return _median_us(round_trip, count)

    def forget(self, *, partitions: int) -> None:
        """Delete what was written. DEL replies after the memory is freed."""
        self._pipeline([_command("DEL", "records", *(f"batches:{i}" for i in range(partitions)))], 1)

    def _pipeline(self, writes: Sequence[bytes], replies_expected: int) -> tuple[float, list[Any]]:
        """Send everything from a thread while receiving. Return the seconds and the replies."""
        reader: Any = hiredis.Reader()  # its type annotations lack buffers
        replies: list[Any] = []
        buffer = memoryview(bytearray(RECEIVE_BYTES))
        with connect(str(self.path)) as connection:
            sender = threading.Thread(target=_send_all, args=(connection, writes), daemon=True)
            started = time.perf_counter()
            sender.start()
            while len(replies) < replies_expected:
                received = connection.recv_into(buffer)
                if received == 0:
                    message = "Valkey closed the connection"
                    raise ConnectionError(message)
                reader.feed(buffer, 0, received)
                while (reply := reader.gets()) is not False:
                    replies.append(reply)
            elapsed_s = time.perf_counter() - started
            sender.join()
        if errors := [reply for reply in replies if isinstance(reply, Exception)]:
            raise errors[0]
        return elapsed_s, replies


def _median_us(work: Callable[[], None], count: int) -> float:
    times_s = []
    for _ in range(count):
        started = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - started)
    return median(times_s) * 1e6


def _send_all(connection: socket.socket, writes: Sequence[bytes]) -> None:
    for write in writes:
        connection.sendall(write)


def _command(*words: str | bytes) -> bytes:
    packed: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]  # typed for one word only
    return packed


def _batches(records: int, record_bytes: int, batch_bytes: int) -> tuple[int, int]:
    """Return the number of records per batch, and the number of batches."""
    each = max(1, batch_bytes // (record_bytes + RECORD_OVERHEAD_BYTES))
    return each, max(1, records // each)


def _verify(expected: int, actual: int) -> None:
    if actual != expected:
        message = f"{expected} expected from a raw read, but: {actual}"
        raise WrongCount(message)


if __name__ == "__main__":
    serve_echo()
