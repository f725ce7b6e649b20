"""Effect of one client's large requests on others: `python -m bench.fairness`.

A probe produces a record and fetches it, some hundred times per second, on its own connections. Meanwhile another
process does one expensive thing: reads 50 MB slowly or fast, produces megabytes, has a topic compacted, looks up
offsets by time, deletes records, or creates a thousand partitions. The output has the probe's latencies, the long time
slices of the broker's event loop (`bench.turns`), and the Redis commands that took longer than 2 ms.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import redis
from attrs import frozen

from bench.latency import one_record
from bench.processes import SYSTEMS, storage_of, temporary_folder
from bench.turns import WatchedBroker, watched_broker
from korvet.protocol.compression import Codec
from korvet.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from korvet.protocol.record_batch import build_batch
from korvet.protocol.requests import decode_response, encode_request
from tests.support.wire import (
    Wire,
    create_topic,
    delete_topic,
    fetch_request,
    fetched,
    frame_of,
    list_offsets_request,
    listed_offset,
    produce_request,
    produced,
)

MEGABYTE = 1_000_000
# The size of topics that are read, deleted or searched.
TOPIC_BYTES = 64 * MEGABYTE
COMPACTED_BYTES = 24 * MEGABYTE
PARTITIONS = 1000
SLOW_BYTES_A_SECOND = MEGABYTE
PAUSE_S = 0.001
SLOW_COMMAND_US = 2000
NOW_MS = time.time_ns() // 1_000_000

GOALS_MS = {"memory": 5.0, "batch": 5.0, "record": 25.0}
SETTINGS = ("memory.max.bytes=3000000000", "log.cleaner.backoff.ms=50", "message.max.bytes=2000000")


@frozen
class Work:
    """Parameters of a disturbing process, and the events by which it is synchronized."""

    port: int
    settings: dict[str, str]
    ready: Any  # events of multiprocessing, which have no public type
    stop: Any

    def rounds(self) -> Iterator[int]:
        """Signal that everything is prepared, then count until `stop` is set."""
        self.ready.set()
        count = 0
        while not self.stop.is_set():
            yield count
            count += 1


def batch_of(size: int, *, keys: int = 0, codec: Codec = Codec.NONE, value: int = 100) -> bytes:
    """Return a batch of about `size` bytes, with `keys` different keys."""
    chance = random.Random(size)
    count = size // (value + 10)
    return bytes(
        build_batch(
            [
                (
                    number,
                    NOW_MS + number // 10,
                    b"key-%d" % chance.randrange(keys) if keys else None,
                    b"%0*d" % (value, number),
                    (),
                )
                for number in range(count)
            ],
            codec=codec,
        )
    )


def fill(work: Work, topic: str, size: int, batch: bytes, **settings: str) -> int:
    """Create a topic of about `size` bytes. Return the offset after the first record of its last batch."""
    create_topic(work.port, topic, settings=work.settings | settings)
    offset = 0
    request = frame_of(produce_request(topic, batch))
    with Wire(work.port) as wire:
        for _ in range(size // len(batch)):
            wire.send(request)
            offset = produced(wire.receive())
    return offset + 1


# --- Disturbances -------------------------------------------------------------------------------------------


def no_disturbance(work: Work) -> None:
    for _ in work.rounds():
        time.sleep(0.05)


def a_slow_consumer(work: Work) -> None:
    """Request 50 MB, and read one megabyte per second of it."""
    fill(work, "slow", TOPIC_BYTES, batch_of(MEGABYTE))
    request = frame_of(fetch_request("slow", 0, max_wait_ms=100, max_bytes=50 * MEGABYTE))
    with Wire(work.port) as wire:
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        wire.send(request)
        for _ in work.rounds():
            wire.socket.recv(SLOW_BYTES_A_SECOND // 20)
            time.sleep(0.05)


def fetches(work: Work, size: int, **settings: str) -> None:
    """Fetch 50 MB, or everything, from a topic of about `size` bytes."""
    fill(work, "fetched", size, batch_of(MEGABYTE), **settings)
    request = frame_of(fetch_request("fetched", 0, max_wait_ms=100, max_bytes=50 * MEGABYTE))
    with Wire(work.port) as wire:
        for _ in work.rounds():
            wire.send(request)
            wire.receive()


def fetches_of_50_mb(work: Work) -> None:
    fetches(work, TOPIC_BYTES)


def compressed_fetches(work: Work) -> None:
    """Fetch in the record layout, where the broker compresses each response again."""
    fetches(work, 16 * MEGABYTE, **{"compression.type": "zstd"})


def compaction(work: Work) -> None:
    """Have the whole topic compacted repeatedly: a single record makes it due."""
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    fill(work, "compacted", COMPACTED_BYTES, batch_of(MEGABYTE, keys=200_000), **settings)
    request = frame_of(produce_request("compacted", batch_of(110, keys=10)))
    with Wire(work.port) as wire:
        for _ in work.rounds():
            wire.send(request)
            produced(wire.receive())
            time.sleep(0.1)


def seeks_by_time(work: Work) -> None:
    """Look up times in the middle of large batches, times without a record, and the largest timestamp."""
    batch = batch_of(MEGABYTE, value=10)
    fill(work, "times", TOPIC_BYTES // 2, batch)
    last_ms = NOW_MS + MEGABYTE // 20 // 10
    with Wire(work.port) as wire:
        for count in work.rounds():
            moment = (last_ms - 1 - count % 100, last_ms + 10_000, -3, NOW_MS)[count % 4]
            wire.send(frame_of(list_offsets_request("times", moment)))
            listed_offset(wire.receive())


def produces(work: Work, codec: Codec, **settings: str) -> None:
    """Produce batches of about a megabyte, before compression, one after the other; the topic retains 50 MB."""
    create_topic(work.port, "filled", settings=work.settings | {"retention.bytes": "50000000"} | settings)
    batch = batch_of(MEGABYTE, codec=codec, keys=100_000)
    request = frame_of(produce_request("filled", batch))
    with Wire(work.port) as wire:
        for _ in work.rounds():
            wire.send(request)
            produced(wire.receive())


def produces_of_1_mb(work: Work) -> None:
    produces(work, Codec.NONE)


def compressed_produces(work: Work) -> None:
    produces(work, Codec.ZSTD)


def keyed_produces(work: Work) -> None:
    """Produce to a compacted topic, where every record must have a key."""
    produces(work, Codec.NONE, **{"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "1"})


def deletes(work: Work) -> None:
    """Repeatedly fill a partition and delete its records."""
    batch = batch_of(MEGABYTE)
    number = 0
    fill(work, f"emptied-{number}", TOPIC_BYTES, batch)
    for number in work.rounds():
        empty(work.port, f"emptied-{number}")
        delete_topic(work.port, f"emptied-{number}")
        fill(work, f"emptied-{number + 1}", TOPIC_BYTES, batch)


def empty(port: int, topic: str) -> None:
    """Send DeleteRecords up to the high watermark of partition 0."""
    partition = DeleteRecordsPartition(partition_index=0, offset=-1)
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=topic, partitions=[partition])], timeout_ms=30_000
    )
    with Wire(port) as wire:
        wire.send(b"".join(encode_request(request, 2, 1, "bench")))
        _, answer = decode_response(DeleteRecordsResponse, 2, wire.receive())
    if answer.topics[0].partitions[0].error_code:
        raise RuntimeError(f"DeleteRecords is answered with {answer.topics[0].partitions[0]}")


def partitions(work: Work) -> None:
    """Create a topic of a thousand partitions and delete it."""
    for number in work.rounds():
        topic = f"wide-{number}"
        create_topic(work.port, topic, partitions=PARTITIONS, settings=work.settings)
        delete_topic(work.port, topic)


DISTURBANCES: tuple[Callable[[Work], None], ...] = (
    no_disturbance,
    a_slow_consumer,
    fetches_of_50_mb,
    compressed_fetches,
    compaction,
    seeks_by_time,
    produces_of_1_mb,
    compressed_produces,
    keyed_produces,
    deletes,
    partitions,
)


# --- The probe ----------------------------------------------------------------------------------------------


@frozen
class Probed:
    """Latencies in milliseconds."""

    produced: list[float]
    fetched: list[float]


def probe(port: int, topic: str, seconds: float) -> Probed:
    """Produce a record, fetch it, pause, repeat."""
    request = frame_of(produce_request(topic, one_record()))
    found = Probed([], [])
    with Wire(port) as producer, Wire(port) as consumer:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            began = time.perf_counter()
            producer.send(request)
            answer = producer.receive()
            found.produced.append((time.perf_counter() - began) * 1000)
            fetch = frame_of(fetch_request(topic, produced(answer), max_wait_ms=0))
            began = time.perf_counter()
            consumer.send(fetch)
            answer = consumer.receive()
            found.fetched.append((time.perf_counter() - began) * 1000)
            if not fetched(answer):
                raise RuntimeError("a fetch was answered without the record")
            time.sleep(PAUSE_S)
    return found


def p99(times: list[float]) -> float:
    return quantiles(times, n=100)[98]


def histogram(times: list[float]) -> str:
    """Return the number of latencies in each interval of milliseconds."""
    bounds = (0.5, 1, 2, 5, 10, 25, 50, 100, float("inf"))
    counts = [
        sum(low < each <= high for each in times) for low, high in zip((0, *bounds), bounds, strict=False)
    ]
    return "  ".join(f"≤{bound:g}: {count}" for bound, count in zip(bounds, counts, strict=True) if count)


@contextmanager
def disturbed(disturbance: Callable[[Work], None], port: int, settings: dict[str, str]) -> Iterator[None]:
    """Run the disturbance in another process during the block, once it is prepared."""
    spawning = multiprocessing.get_context("spawn")
    ready, stop = spawning.Event(), spawning.Event()
    process = spawning.Process(target=disturbance, args=(Work(port, settings, ready, stop),))
    process.start()
    try:
        while not ready.wait(0.1):
            if not process.is_alive():
                raise RuntimeError(f"{disturbance.__name__} has failed")
        yield
        if not process.is_alive():
            raise RuntimeError(f"{disturbance.__name__} has failed")
    finally:
        stop.set()
        process.join(30)
        process.kill()


# --- Measuring ----------------------------------------------------------------------------------------------


@contextmanager
def system(name: str) -> Iterator[tuple[WatchedBroker, redis.Redis | None]]:
    """Run a broker. Yield it, with a client of its Redis server if it has one."""
    with temporary_folder() as folder:
        data = folder / "data"
        storage = storage_of(name, data)
        with watched_broker(storage, *SETTINGS) as watched:
            server = (
                None if storage == "memory://" else redis.Redis(unix_socket_path=str(data / "redis.sock"))
            )
            with server or nullcontext():
                if server is not None:
                    server.config_set("slowlog-log-slower-than", SLOW_COMMAND_US)
                    server.config_set("slowlog-max-len", 1000)
                yield watched, server


def slow_commands(server: redis.Redis | None) -> Iterator[str]:
    """Yield a line for each slow Redis command, grouped by the beginning of the command."""
    if server is None:
        return
    found: dict[str, list[float]] = {}
    for each in server.slowlog_get(1000):
        command = each["command"].decode(errors="replace").split()
        found.setdefault(" ".join(command[:2])[:30], []).append(each["duration"] / 1000)
    server.slowlog_reset()
    for command, times in found.items():
        yield f"    {len(times):5} × up to {max(times):6.1f} ms  in Redis: {command}"


def measure(name: str, disturbance: Callable[[Work], None], seconds: float) -> dict[str, Any]:
    """Print one line of the table, followed by details."""
    with system(name) as (watched, server):
        port = watched.broker.port
        create_topic(port, "probe", settings=SYSTEMS[name])
        probe(port, "probe", 0.3)
        with disturbed(disturbance, port, SYSTEMS[name]):
            watched.turns()
            list(slow_commands(server))
            found = probe(port, "probe", seconds)
            turns = watched.turns()
            slow = list(slow_commands(server))
    title = disturbance.__name__.replace("_", " ")
    worst = max(p99(found.produced), p99(found.fetched))
    print(
        f"{name:<7} {title:<20} produce p50 {median(found.produced):5.2f} p99 {p99(found.produced):6.2f}"
        f"  fetch p50 {median(found.fetched):5.2f} p99 {p99(found.fetched):6.2f} ms"
        f"  goal {GOALS_MS[name]:g}{'' if worst <= GOALS_MS[name] else ' MISSED'}"
    )
    for line in (f"    {histogram(found.produced + found.fetched)}", *turns.lines(), *slow):
        print(line if line.startswith(" ") else f"    {line}", flush=True)
    return {
        "system": name,
        "disturbance": title,
        "produced_ms": found.produced,
        "fetched_ms": found.fetched,
        "longest_turn_ms": turns.longest_ms,
        "long_turns": turns.places,
        "slow_commands": slow,
    }


def arguments() -> argparse.Namespace:
    names = [each.__name__ for each in DISTURBANCES]
    parser = argparse.ArgumentParser(prog="python -m bench.fairness", description=__doc__)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="WHAT", help=", ".join(names)
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="for how long each is probed (default 5)")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path, help="keep every latency")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    options = arguments()
    found = []
    for _ in range(options.rounds):
        for disturbance in DISTURBANCES:
            if disturbance.__name__ in options.only:
                found += [measure(name, disturbance, options.seconds) for name in options.systems]
    if options.json:
        options.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
