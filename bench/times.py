"""Latency of ListOffsets by time in a partition of millions of records; every response is checked."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Iterator

from attrs import frozen

from bench.latency import Latency, latency_of
from bench.rdkafka import WrongCount
from korvet.protocol.crc32c import crc32c
from korvet.protocol.record_batch import build_batch
from tests.support.wire import (
    Wire,
    frame_of,
    list_offsets_request,
    listed_offset,
    produce_all,
    produce_request,
    produced,
)

BATCH_RECORDS = 9_000
RECORDS_A_MS = 10
YEAR_2100_MS = 4_102_444_800_000

# Positions in a batch of its timestamps (base timestamp, max timestamp), and of the bytes under its checksum.
TIMES = struct.Struct(">qq")
TIMES_AT = 27
CHECKSUM = struct.Struct(">I")
CHECKSUM_AT = 17
CHECKED_FROM = 21


@frozen
class Filled:
    """The contents of a partition: batches of the same shape, with contiguous timestamps."""

    first_ms: int
    base_offsets: tuple[int, ...]
    offset_of_2100: int | None

    def moments(self, count: int, seed: int) -> Iterator[int]:
        """Yield random times to look up. With a record of 2100, every other time lies after it and has no record."""
        chance = random.Random(seed)
        last_ms = self.first_ms + len(self.base_offsets) * BATCH_RECORDS // RECORDS_A_MS - 1
        for index in range(count):
            beyond = self.offset_of_2100 is not None and index % 2
            yield chance.randint(self.first_ms, last_ms) + (YEAR_2100_MS if beyond else 0)

    def offset_at(self, moment: int) -> int:
        """Return the expected offset: of the first record that is not older, or -1 if there is none."""
        if self.offset_of_2100 is not None:
            return self.offset_of_2100 if moment <= YEAR_2100_MS else -1
        batch, record = divmod((moment - self.first_ms) * RECORDS_A_MS, BATCH_RECORDS)
        return self.base_offsets[batch] + record


def fill(port: int, topic: str, *, records: int, first_in_2100: bool = False) -> Filled:
    """Produce records of 100 bytes, ten per millisecond, the last of them with the current time."""
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
    """Look up random times, one after the other, and verify every response."""
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
    """Yield Produce requests with the same batch at increasing timestamps."""
    # Building a new batch for each request would be the bottleneck.
    records = [(i, i // RECORDS_A_MS, None, b"%0100d" % i, ()) for i in range(BATCH_RECORDS)]
    batch = build_batch(records)
    span_ms = BATCH_RECORDS // RECORDS_A_MS
    for index in range(count):
        start_ms = first_ms + index * span_ms
        TIMES.pack_into(batch, TIMES_AT, start_ms, start_ms + span_ms - 1)
        CHECKSUM.pack_into(batch, CHECKSUM_AT, crc32c(bytes(batch[CHECKED_FROM:])))
        yield frame_of(produce_request(topic, batch))
