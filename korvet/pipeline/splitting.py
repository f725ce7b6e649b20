"""Ranges to tasks: one for each partition, or more where `minPartitions` or `maxRecordsPerPartition` say so.

Tasks get about as many records each. Where offsets count records, that is arithmetic; elsewhere the records are
counted first.
"""

from __future__ import annotations

from collections.abc import Mapping

from korvet.client.model import TopicPartition
from korvet.pipeline.counting import Counts, evenly, is_dense
from korvet.pipeline.fetching import Fetcher
from korvet.pipeline.options import ReadOptions
from korvet.pipeline.reading import Range

ALL = 2**62


async def split(fetcher: Fetcher, options: ReadOptions, ranges: list[Range], counts: Counts) -> list[Range]:
    """These ranges in as many parts as asked for. `counts` may know some of their records already."""
    wanted, largest = options.min_partitions or 0, options.max_records_per_partition
    if not ranges or (wanted <= len(ranges) and largest is None):
        return ranges
    counts.begin({each.tp: each.start for each in ranges}, {each.tp: each.end for each in ranges})
    await counts.at_least(fetcher, {each.tp: ALL for each in ranges})
    numbers = {tp: count.number for tp, count in counts.counts.items()}
    parts = _parts(numbers, wanted)
    found = []
    for each in ranges:
        count = parts[each.tp]
        if largest is not None:
            count = max(count, -(-numbers[each.tp] // largest))
        offsets = range(each.start, each.end) if is_dense(each.end) else counts.counts[each.tp].offsets()
        found += [Range(each.tp, first, last) for first, last in evenly(offsets, each.start, each.end, count)]
    return found


def _parts(numbers: Mapping[TopicPartition, int], wanted: int) -> dict[TopicPartition, int]:
    """How many parts each partition gets, `wanted` in all where records are enough: another one goes, one by one,
    to where parts are largest.
    """
    parts = dict.fromkeys(numbers, 1)
    for _ in range(wanted - len(parts)):
        tp = max(parts, key=lambda tp: numbers[tp] / parts[tp])
        parts[tp] += 1
    return parts
