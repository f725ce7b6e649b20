"""Fetch archived records, 1,000 at a time, from a topic whose records are only in a table.

The table is written like the archive's workers write it, without Spark. The broker then trims its own copy.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import numpy as np
import pyarrow as pa
from attrs import frozen

from bench.latency import Latency, latency_of
from bench.processes import DidNotStart, broker
from bench.rdkafka import WrongCount
from korvet.lake.file_writing import RangeWriter
from korvet.lake.location import Location
from korvet.lake.schema import HEADERS, archive_table
from korvet.lake.table import LakeTable
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from korvet.protocol.record_batch import build_batch, parse_batches
from tests.support.wire import (
    Wire,
    await_topic,
    create_topic,
    fetch_request,
    fetched,
    frame_of,
    list_offsets_request,
    listed_offset,
    produce_request,
    produced,
)

TOPIC = "archived"
RECORD_BYTES = 100
RECORDS = 200_000
AT_ONCE = 1_000
BATCH_RECORDS = 1_000
# A record takes 9 bytes in addition to its value; the broker's estimate is up to 11.
MAX_BYTES = AT_ONCE * (RECORD_BYTES + 12)
EARLIEST_LOCAL = -4
TRIM_LIMIT_S = 60.0


@frozen
class Archived:
    """A broker with a topic whose first `records` are archived, and trimmed."""

    port: int
    records: int

    def fetches(self, count: int) -> Latency:
        """Fetch the archived records twice, 1,000 at a time, at most `count` times; return the second latencies."""
        offsets = range(0, self.records - AT_ONCE + 1, AT_ONCE)[:count]
        with Wire(self.port) as wire:
            for offset in offsets:
                self._fetch(wire, offset)
            return latency_of([self._fetch(wire, offset) for offset in offsets])

    def _fetch(self, wire: Wire, offset: int) -> float:
        """Return the seconds until the response arrives. Raises WrongCount if it has too few records."""
        request = frame_of(fetch_request(TOPIC, offset, max_wait_ms=500, max_bytes=MAX_BYTES))
        started = time.perf_counter()
        wire.send(request)
        answer = wire.receive()
        took_s = time.perf_counter() - started
        batches = parse_batches(fetched(answer))
        records = sum(batch.record_count for batch in batches)
        if not batches or batches[0].base_offset != offset or records < AT_ONCE:
            raise WrongCount(f"{records} records from offset {offset} on, instead of {AT_ONCE}")
        return took_s


@contextmanager
def archived(folder: Path) -> Iterator[Archived]:
    """Run a broker on memory that has archived everything in `folder` except one last record."""
    settings = (f"lake.url={folder}", "log.retention.check.interval.ms=1000")
    with broker("memory://", *settings) as at:
        create_topic(at.port, TOPIC, settings={"remote.storage.enable": "true", "local.retention.ms": "1"})
        await_topic(at.port, TOPIC, partitions=1)
        began_ms = int(time.time() * 1000)
        _fill(at.port, began_ms)
        _archive(folder, _topic_id(at.port), began_ms)
        yield Archived(at.port, _trimmed(at.port))


def _fill(port: int, began_ms: int) -> None:
    values = [b"%0100d" % number for number in range(BATCH_RECORDS)]
    request = frame_of(
        produce_request(
            TOPIC, build_batch([(i, began_ms, None, value, ()) for i, value in enumerate(values)])
        )
    )
    with Wire(port) as wire:
        for _ in range(RECORDS // BATCH_RECORDS):
            wire.send(request)
            produced(wire.receive())


def _archive(folder: Path, topic_id: UUID, began_ms: int) -> None:
    """Write files and commit them, as the archive does."""
    values = [b"%0100d" % number for number in range(BATCH_RECORDS)] * (RECORDS // BATCH_RECORDS)
    rows = archive_table(
        TOPIC,
        0,
        np.arange(RECORDS, dtype=np.int64),
        np.full(RECORDS, began_ms, np.int64),
        np.zeros(RECORDS, np.int32),
        pa.nulls(RECORDS, pa.binary()),
        pa.array(values, pa.binary()),
        pa.nulls(RECORDS, HEADERS),
    )
    table = LakeTable.open_or_create(Location.parse(str(folder)), TOPIC, topic_id)
    table.commit([RangeWriter(table.location, 0, 0).write(rows, 0, RECORDS)])


def _topic_id(port: int) -> UUID:
    with Wire(port) as wire:
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)], allow_auto_topic_creation=False)
        topic_id: UUID = wire.call(asked).topics[0].topic_id
        return topic_id


def _trimmed(port: int) -> int:
    """Wait until the broker has trimmed the archived records, and return how many it trimmed."""
    request = frame_of(list_offsets_request(TOPIC, EARLIEST_LOCAL))
    deadline = time.monotonic() + TRIM_LIMIT_S
    with Wire(port) as wire:
        while time.monotonic() < deadline:
            wire.send(request)
            if (start := listed_offset(wire.receive())) >= RECORDS - BATCH_RECORDS:
                return start
            time.sleep(0.05)  # the retention worker runs once per second and sends no notification
    raise DidNotStart(f"nothing was trimmed behind the archive within {TRIM_LIMIT_S:.0f} s")
