"""Estimate the number and distribution of records in a long part of a log by probes, if counting would take too long.

A probe is a small Fetch. The records in its response are known, and the offsets up to the next probe are taken to be as
dense as these. The first probes divide the offsets equally; the next ones go to where the most records are estimated,
which finds bursts.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from attrs import frozen

from korvet.client.model import TopicPartition
from korvet.lake.varints import Int64s
from korvet.pipeline.fetching import Fetcher
from korvet.pipeline.record_columns import decode_offsets

PROBE_BYTES = 64 * 1024
FIRST_PROBES = 16
# A part with less than 1/FINE_ENOUGH of a task's records needs no further probes.
FINE_ENOUGH = 8


@frozen(eq=False)
class Stretch:
    """Offsets in [start, end): known below `known_end`, estimated from there on."""

    start: int
    known: Int64s
    known_end: int
    end: int
    density: float  # records per offset

    @property
    def guessed(self) -> float:
        return self.density * (self.end - self.known_end)

    @property
    def number(self) -> float:
        return len(self.known) + self.guessed

    def up_to(self, end: int) -> Stretch:
        return Stretch(self.start, self.known, self.known_end, end, self.density)

    def sample(self, every: float) -> Int64s:
        """Return the offset of one record in `every`."""
        guessed = np.linspace(self.known_end, self.end, round(self.guessed / every), endpoint=False)
        return np.concatenate([self.known[:: max(round(every), 1)], guessed.astype(np.int64)])


async def estimate(
    fetcher: Fetcher, tp: TopicPartition, start: int, end: int, *, parts: int, probes: int
) -> list[Stretch]:
    """Return stretches of [start, end), in order, fine enough to be cut into `parts` equal parts."""
    bounds = np.linspace(start, end, min(FIRST_PROBES, probes) + 1).astype(np.int64).tolist()
    found = [await _probe(fetcher, tp, first, last) for first, last in pairwise(bounds) if first < last]
    for _ in range(probes - len(found)):
        largest = max(found, key=lambda stretch: stretch.guessed)
        if largest.guessed * parts * FINE_ENOUGH <= sum(stretch.number for stretch in found):
            break
        middle = (largest.known_end + largest.end) // 2
        if middle in (largest.known_end, largest.end):
            break
        at = found.index(largest)
        found[at : at + 1] = [largest.up_to(middle), await _probe(fetcher, tp, middle, largest.end)]
    return found


async def _probe(fetcher: Fetcher, tp: TopicPartition, start: int, end: int) -> Stretch:
    answers = await fetcher.fetch_all({tp: start}, max_bytes=PROBE_BYTES, partition_bytes=PROBE_BYTES)
    fetched = answers[tp]
    offsets = decode_offsets(fetched.batches, start=start, end=end)
    if fetched.next_offset >= end or fetched.next_offset == start:
        return Stretch(start, offsets, end, end, 0.0)
    if not len(offsets):
        # Control batches or aborted ones: the density of what follows is unknown.
        return Stretch(start, offsets, fetched.next_offset, end, 0.0)
    # A burst that has just begun will go on, so use the density of the last records.
    last = offsets[len(offsets) // 2 :]
    return Stretch(start, offsets, fetched.next_offset, end, len(last) / (fetched.next_offset - int(last[0])))
