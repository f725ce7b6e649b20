"""ListOffsets by time in a partition of millions of records, with every answer checked."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Iterator

from attrs import frozen

from bench.latency import Latency, latency_of
from bench.rdkafka import WrongCount
from bench.wire import (
    Wire,
    frame_of,
    list_offsets_request,
    listed_offset,
    produce_all,
    produce_request,
    produced,
)
from korvet.protocol.crc32c import crc32c
from korvet.protocol.record_batch import build_batch

BATCH_RECORDS = 9_000
RECORDS_A_MS = 10
YEAR_2100_MS = 4_102_444_800_000

# Where a batch keeps its times (base timestamp, max timestamp), and what its checksum covers.
TIMES = struct.Struct(">qq")
TIMES_AT = 27
CHECKSUM = struct.Struct(">I")
CHECKSUM_AT = 17
CHECKED_FROM = 21


@frozen
class Filled:
    """What a partition holds: batches of one shape, each beginning where the times of the last one ended."""

    first_ms: int
    base_offsets: tuple[int, ...]
    offset_of_2100: int | None

    def moments(self, count: int, seed: int) -> Iterator[int]:
        """Random times to ask for. With a record of 2100 every other one lies beyond it: there is none then."""
        chance = random.Random(seed)
        last_ms = self.first_ms + len(self.base_offsets) * BATCH_RECORDS // RECORDS_A_MS - 1
        for index in range(count):
            beyond = self.offset_of_2100 is not None and index % 2
            yield chance.randint(self.first_ms, last_ms) + (YEAR_2100_MS if beyond else 0)

    def offset_at(self, moment: int) -> int:
        """Kafka's answer: the first record that is not older; -1 without one."""
        if self.offset_of_2100 is not None:
            return self.offset_of_2100 if moment <= YEAR_2100_MS else -1
        batch, record = divmod((moment - self.first_ms) * RECORDS_A_MS, BATCH_RECORDS)
        return self.base_offsets[batch] + record


def fill(port: int, topic: str, *, records: int, first_in_2100: bool = False) -> Filled:
    """Produce records of 100 bytes, ten a millisecond, the last of them dated now."""
    count = -(-records // BATCH_RECORDS)
    first_ms = int(time.time() * 1000) - count * BATCH_RECORDS // RECORDS_A_MS
    with Wire(port) as wire:
        offset_of_2100 = None
        if first_in_2100:
            first = build_batch([(0, YEAR_2100_MS, None, b"x", ())])
            wire.send(frame_of(produce_request(topic, first)))
            offset_of_2100 = produced(wire.receive())
        base_offsets = tuple(produce_all(wire, _frames(topic, first_ms, count)))
    return Filled(first_ms, base_offsets, offset_of_2100)


def seek(port: int, topic: str, filled: Filled, *, count: int, seed: int) -> Latency:
    """Ask for random times, one after the other, and verify every answer."""
    times_s = []
    with Wire(port) as wire:
        for moment in filled.moments(count, seed):
            request = frame_of(list_offsets_request(topic, moment))
            started = time.perf_counter()
            wire.send(request)
            answer = wire.receive()
            times_s.append(time.perf_counter() - started)
            if (found := listed_offset(answer)) != (expected := filled.offset_at(moment)):
                raise WrongCount(f"the answer to {moment} is {expected}, not {found}")
    return latency_of(times_s)


def _frames(topic: str, first_ms: int, count: int) -> Iterator[bytes]:
    """Produce requests of the same batch, each moved on in time; building a batch would be the limit."""
    records = [(i, i // RECORDS_A_MS, None, b"%0100d" % i, ()) for i in range(BATCH_RECORDS)]
    batch = build_batch(records)
    span_ms = BATCH_RECORDS // RECORDS_A_MS
    for index in range(count):
        start_ms = first_ms + index * span_ms
        TIMES.pack_into(batch, TIMES_AT, start_ms, start_ms + span_ms - 1)
        CHECKSUM.pack_into(batch, CHECKSUM_AT, crc32c(bytes(batch[CHECKED_FROM:])))
        yield frame_of(produce_request(topic, batch))
