"""Ranges to tasks: one for each partition, or more where `minPartitions` or `maxRecordsPerPartition` say so.

Tasks get about as many records each. Where offsets count records, that is arithmetic; elsewhere records are counted
first, as far as COUNTING_ROUNDS get, and what lies beyond is estimated.
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
from korvet.pipeline.reading import Range

ALL = 2**62
COUNTING_ROUNDS = 8  # of ROUND_BYTES each
# Into all partitions together, and into one at least.
PROBES = 1024
FEWEST_PROBES = 32
# Of records in all, for which offsets are kept: enough to cut anywhere.
SAMPLED = 200_000


@frozen(eq=False)
class Weight:
    """How many records a range has, and the offsets of some, evenly chosen."""

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
    """These ranges in as many parts as asked for. `counts` may know some of their records already."""
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
    """A range in so many parts, or as many as there are records, with as much of the sample in each."""
    number = len(sample)
    parts = max(min(parts, number), 1)
    cuts = [whole.start, *(int(sample[number * part // parts]) for part in range(1, parts)), whole.end]
    return [Range(whole.tp, first, last) for first, last in pairwise(cuts) if first < last]


def _parts(numbers: Mapping[TopicPartition, float], wanted: int) -> dict[TopicPartition, int]:
    """How many parts each partition gets, `wanted` in all where records are enough: another one goes, one by one,
    to where parts are largest.
    """
    parts = dict.fromkeys(numbers, 1)
    for _ in range(wanted - len(parts)):
        tp = max(parts, key=lambda tp: numbers[tp] / parts[tp])
        parts[tp] += 1
    return parts
