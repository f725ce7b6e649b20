"""Histograms of durations with fixed buckets, cheap enough to observe every request."""

from __future__ import annotations

from bisect import bisect_left

# Upper bounds of the buckets, in seconds. Small requests take some 50 microseconds.
SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0
)  # fmt: skip


def new_histogram() -> list[float]:
    """Return a histogram: a count for each bucket, one for larger values, and the sum."""
    return [0] * (len(SECONDS) + 1) + [0.0]


def observe(histogram: list[float], seconds: float, count: int = 1) -> None:
    """Add `count` equal observations to a histogram."""
    histogram[bisect_left(SECONDS, seconds)] += count
    histogram[-1] += seconds * count
