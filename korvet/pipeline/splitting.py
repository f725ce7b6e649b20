"""Split ranges into tasks: one per partition, or more according to `minPartitions` and `maxRecordsPerPartition`.

Tasks get about the same number of records. With dense offsets this is arithmetic. Otherwise records are counted as far
as COUNTING_ROUNDS allow, and the rest is estimated.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from attrs import frozen

from korvet.client.model import TopicPartition
from korvet.lake.varints import Int64s
from korvet.pipeline.counting import Count, Counts, is_dense
from korvet.pipeline.estimating import estimate
from korvet.pipeline.fetching import Fetcher
from korvet.pipeline.options import ReadOptions
from korvet.pipeline.topic_reading import Range

ALL = 2**62
COUNTING_ROUNDS = 8  # of ROUND_BYTES each
# Probes of all partitions together, and at least of each one.
PROBES = 1024
FEWEST_PROBES = 32
# Records whose offsets are kept, in all: enough to cut at any point.
SAMPLED = 200_000


@frozen(eq=False)
class Weight:
    """The number of records in a range, and the offsets of an evenly chosen sample."""

    number: float
    sample: Int64s | range


async def split(
    fetcher: Fetcher,
    options: ReadOptions,
    ranges: list[Range],
    counts: Counts,
    *,
    counting_rounds: int = COUNTING_ROUNDS,
) -> list[Range]:
    """Split ranges into the requested number of parts. `counts` may have counted some of their records already."""
    wanted, largest = options.min_partitions or 0, options.max_records_per_partition
    if not ranges or (wanted <= len(ranges) and largest is None):
        return ranges
    counts.begin({each.tp: each.start for each in ranges}, {each.tp: each.end for each in ranges})
    await counts.at_least(fetcher, {each.tp: ALL for each in ranges}, rounds=counting_rounds)
    parts = max(wanted, len(ranges))
    probes = max(PROBES // len(ranges), FEWEST_PROBES)
    weights = {tp: await _weigh(fetcher, tp, count, parts, probes) for tp, count in counts.counts.items()}
    dealt = _parts({tp: weight.number for tp, weight in weights.items()}, wanted)
    found = []
    for each in ranges:
        weight, number = weights[each.tp], dealt[each.tp]
        if largest is not None:
            number = max(number, -int(-weight.number // largest))
        found += _cut(each, weight.sample, number)
    return found


async def _weigh(fetcher: Fetcher, tp: TopicPartition, count: Count, parts: int, probes: int) -> Weight:
    if is_dense(count.end):
        return Weight(count.number, range(count.start, count.end))
    known = count.offsets()
    if count.is_complete:
        return Weight(len(known), known)
    stretches = await estimate(fetcher, tp, count.position, count.end, parts=parts, probes=probes)
    number = len(known) + sum(stretch.number for stretch in stretches)
    every = max(number / SAMPLED, 1.0)
    sample = [known[:: round(every)], *(stretch.sample(every) for stretch in stretches)]
    return Weight(number, np.concatenate(sample))


def _cut(whole: Range, sample: Int64s | range, parts: int) -> list[Range]:
    """Cut a range into at most `parts` parts with equal shares of the sample."""
    number = len(sample)
    parts = max(min(parts, number), 1)
    cuts = [whole.start, *(int(sample[number * part // parts]) for part in range(1, parts)), whole.end]
    return [Range(whole.tp, first, last) for first, last in pairwise(cuts) if first < last]


def _parts(numbers: Mapping[TopicPartition, float], wanted: int) -> dict[TopicPartition, int]:
    """Return the number of parts of each partition, `wanted` in all. Each further part goes to the partition whose
    parts are largest.
    """
    parts = dict.fromkeys(numbers, 1)
    for _ in range(wanted - len(parts)):
        tp = max(parts, key=lambda tp: numbers[tp] / parts[tp])
        parts[tp] += 1
    return parts
