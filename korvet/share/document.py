"""The JSON document in which the state of a share partition is stored.

    {"format": 1, "epoch": 0, "end": 120, "runs": [[100, 109, 2, "MEMBER"], [117, 119, 1, ""]]}

A run has its first and last offset, its deliveries, and the member that has acquired it ("" if it is available). The
ends of locks are not stored: a broker that loads the document gives each acquired record the full lock.
"""

from __future__ import annotations

import json
from itertools import pairwise

from korvet.share.partition import SharePartition
from korvet.storage.shares import HIGHEST_COUNT, UNKNOWN, Run, ShareLimits

FORMAT = 1


class UnreadableShare(Exception):  # noqa: N818  names the state of the document
    """The document is damaged, or was saved by a newer korvet."""


def written(partition: SharePartition) -> bytes:
    """Return the document of a share partition."""
    document = {
        "format": FORMAT,
        "epoch": partition.epoch,
        "end": partition.end,
        "runs": [run[:4] for run in partition.runs],
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def read(document: bytes, limits: ShareLimits) -> SharePartition:
    """Return the share partition of a document, without ends of locks. Raises UnreadableShare."""
    try:
        values = json.loads(document)
        if values["format"] > FORMAT:
            raise UnreadableShare(f"the document has format {values['format']}, not {FORMAT}")
        runs = [Run(*each) for each in values["runs"]]
        partition = SharePartition(end=values["end"], runs=runs, epoch=values["epoch"], limits=limits)
        _check(partition)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UnreadableShare(f"the document is damaged: {error!r:.200}") from None
    return partition


def _check(partition: SharePartition) -> None:
    """Raise ValueError if the runs contradict each other or the end."""
    runs = partition.runs
    if not UNKNOWN <= partition.end < 2**63 or partition.epoch < 0:
        raise ValueError("a number is out of range")
    if any(
        not 0 <= run.first <= run.last < partition.end or not 0 < run.deliveries <= HIGHEST_COUNT
        for run in runs
    ):
        raise ValueError("a run is out of range")
    if any(after.first <= before.last for before, after in pairwise(runs)):
        raise ValueError("runs overlap")
