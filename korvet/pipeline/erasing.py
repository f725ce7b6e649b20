"""Find records of erased keys that are still in the broker's logs: erasing changes only tables."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from attrs import frozen

from korvet.client import EARLIEST, LATEST, Client, TopicPartition
from korvet.client.isolation import READ_UNCOMMITTED
from korvet.pipeline.fetching import Fetcher
from korvet.pipeline.record_columns import decode
from korvet.protocol.errors import UnsupportedVersion

EARLIEST_LOCAL = -4
FETCH_BYTES = 8 * 1024 * 1024


@frozen
class HotRecords:
    """Records of some keys in a partition's log: their number, and the first and last offset."""

    tp: TopicPartition
    count: int
    first: int
    last: int


async def hot_records(client: Client, topic: str, keys: pa.Array) -> list[HotRecords]:
    """Return the records of these keys in a topic's logs, without those that are only in a lake. Reads whole logs.

    Raises KafkaError.
    """
    described = await client.topic(topic)
    tps = [TopicPartition(topic, partition.partition) for partition in described.partitions]
    try:
        starts = await client.list_offsets(dict.fromkeys(tps, EARLIEST_LOCAL))
    except UnsupportedVersion:
        starts = await client.list_offsets(dict.fromkeys(tps, EARLIEST))
    ends = await client.list_offsets(dict.fromkeys(tps, LATEST))
    fetcher = Fetcher(client, READ_UNCOMMITTED)
    found = [await _in_log(fetcher, tp, starts[tp].offset, ends[tp].offset, keys) for tp in tps]
    return [each for each in found if each.count]


async def _in_log(fetcher: Fetcher, tp: TopicPartition, start: int, end: int, keys: pa.Array) -> HotRecords:
    count, first, last = 0, -1, -1
    position = max(0, start)
    while position < end:
        fetched = await fetcher.fetch(tp, position, max_bytes=FETCH_BYTES, max_wait_ms=0)
        if fetched.next_offset == position:
            break
        for columns in decode(fetched.batches, start=position, end=end):
            offsets = columns.offsets[pc.is_in(columns.keys, value_set=keys).to_numpy(zero_copy_only=False)]
            if len(offsets):
                first = int(offsets[0]) if first < 0 else first
                last = int(offsets[-1])
                count += len(offsets)
        position = fetched.next_offset
    return HotRecords(tp, count, first, last)
