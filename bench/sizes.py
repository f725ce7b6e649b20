"""Capacity: `python -m bench.sizes` prints how many records a gigabyte of Redis holds, per layout and record size.

It compares `used_memory` of a private server before and after, which includes streams, index and state. It does not
include copy-on-write memory during a rewrite of the append-only file; leave room for it.
"""

from __future__ import annotations

import os
import time

import redis

from bench.processes import broker, temporary_folder
from korvet.protocol.record_batch import build_batch
from tests.support.wire import Wire, create_topic, frame_of, produce_request, produced

VALUE_BYTES = (100, 1000)
LAYOUTS = ("record", "batch")
BATCH_BYTES = 100_000
TOTAL_BYTES = 50_000_000
GIGABYTE = 1 << 30
NOW_MS = time.time_ns() // 1_000_000


def used_memory(client: redis.Redis) -> int:
    return int(client.info("memory")["used_memory"])


def bytes_a_record(layout: str, value_bytes: int) -> float:
    """Fill a partition with random bytes, in batches of 100 kB. Return the bytes of memory per record."""
    count, in_batch = TOTAL_BYTES // value_bytes, BATCH_BYTES // value_bytes
    with (
        temporary_folder() as folder,
        broker(f"embedded:{folder / 'data'}") as at,
        redis.Redis(unix_socket_path=str(folder / "data" / "redis.sock")) as client,
        Wire(at.port) as wire,
    ):
        create_topic(at.port, "t", settings={"storage.layout": layout})
        before = used_memory(client)
        for _ in range(count // in_batch):
            wire.send(frame_of(produce_request("t", random_batch(in_batch, value_bytes))))
            produced(wire.receive())
        return (used_memory(client) - before) / count


def random_batch(count: int, value_bytes: int) -> bytearray:
    values = os.urandom(value_bytes * count)
    return build_batch(
        [
            (number, NOW_MS, None, values[number * value_bytes : (number + 1) * value_bytes], ())
            for number in range(count)
        ]
    )


def main() -> None:
    """Print the table."""
    print("| layout | value | bytes in memory for each | records in a GB | of it values |")
    print("|---|---|---|---|---|")
    for layout in LAYOUTS:
        for value_bytes in VALUE_BYTES:
            each = bytes_a_record(layout, value_bytes)
            print(
                f"| {layout} | {value_bytes} B | {each:.0f} | {GIGABYTE / each / 1e6:.2f} million"
                f" | {value_bytes / each:.0%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
