from __future__ import annotations

import numpy as np
import pytest

from korvet.client.model import TopicPartition
from korvet.pipeline.counting import Counts
from korvet.pipeline.fetching import Fetched, Fetcher
from korvet.pipeline.options import read_options
from korvet.pipeline.splitting import split
from korvet.pipeline.topic_reading import Range
from korvet.protocol.record_batch import RecordBatch, build_batch

TP = TopicPartition("a", 0)
NOON = 1_700_000_000_000
BYTES = 1000  # of each record


class SparseLog(Fetcher):
    """A log with a record at each of these offsets, which brings them in Fetches of the size that is asked for."""

    def __init__(self, offsets: list[int]) -> None:
        self.offsets = np.array(sorted(set(offsets)), np.int64)
        self.batches = [
            RecordBatch(build_batch([(0, 0, None, b"", ())], base_offset=offset))
            for offset in self.offsets.tolist()
        ]
        self.fetches = 0

    async def fetch_all(  # type: ignore[override]  # a fake knows one partition
        self,
        offsets: dict[TopicPartition, int],
        *,
        max_bytes: int,
        partition_bytes: int,
        max_wait_ms: int = 0,
    ) -> dict[TopicPartition, Fetched]:
        self.fetches += 1
        offset = offsets[TP]
        first = int(np.searchsorted(self.offsets, offset))
        found = self.batches[first : first + max(min(max_bytes, partition_bytes) // BYTES, 1)]
        end = int(self.offsets[-1]) + 1
        return {TP: Fetched(offset, found, found[-1].last_offset + 1 if found else offset, end, 0)}


def offset_at(second: float) -> int:
    return (NOON + round(second * 1000)) << 10


SHAPES = {
    "one a second": [offset_at(second) for second in range(20_000)],
    "all in one minute of a day": [
        *(offset_at(3600 * hour) for hour in range(24)),
        *(offset_at(40_000 + n / 300) for n in range(18_000)),
    ],
    "a thousand in the same millisecond, now and then": [
        offset_at(600 * n) + m for n in range(30) for m in range(700)
    ],
    "more and more": [offset_at(3 * n**0.5 * 100) for n in range(20_000)],
}


@pytest.mark.parametrize("counting_rounds", [0, 1, 1000], ids=["estimated", "counted in part", "counted"])
@pytest.mark.parametrize("shape", SHAPES)
async def test_parts_have_equal_record_counts_within_a_factor_of_two(
    shape: str, counting_rounds: int
) -> None:
    log = SparseLog(SHAPES[shape])
    options = read_options(
        {"kafka.bootstrap.servers": "h:1", "subscribe": "a", "minPartitions": "8"}, streaming=False
    )
    whole = Range(TP, int(log.offsets[0]), int(log.offsets[-1]) + 1)
    parts = await split(log, options, [whole], Counts(), counting_rounds=counting_rounds)
    sizes = [int(((log.offsets >= part.start) & (log.offsets < part.end)).sum()) for part in parts]

    assert 8 == len(parts)
    assert [whole.start, *(part.end for part in parts)] == [*(part.start for part in parts), whole.end]
    assert max(sizes) <= 2 * min(sizes)
    assert log.fetches <= 1100
