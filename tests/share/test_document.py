from __future__ import annotations

import json
from typing import Any

import pytest

from korvet.share.document import UnreadableShare, read, written
from korvet.share.partition import SharePartition
from korvet.storage.shares import Run, ShareLimits

LIMITS = ShareLimits(lock_ms=100)
VALID = {"format": 1, "epoch": 0, "end": 10, "runs": [[1, 2, 1, "a"], [4, 4, 2, ""]]}


def test_a_document_restores_everything_but_the_ends_of_locks() -> None:
    partition = SharePartition(end=10, runs=[Run(1, 2, 1, "ä", 77.0), Run(4, 4, 2)], epoch=3)

    restored = read(written(partition), LIMITS)

    assert (10, 3, LIMITS) == (restored.end, restored.epoch, restored.limits)
    assert [Run(1, 2, 1, "ä"), Run(4, 4, 2)] == restored.runs
    restored.resume(1000)
    assert 1100 == restored.wake_ms


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 2},
        {"end": -2},
        {"end": 4},
        {"end": "x"},
        {"epoch": -1},
        {"runs": None},
        {"runs": [[2, 1, 1, ""]]},
        {"runs": [[1, 3, 1, ""], [3, 4, 1, ""]]},
        {"runs": [[1, 1, 0, ""]]},
        {"runs": [[1, 1, 40_000, ""]]},
        {"runs": [[1]]},
    ],
)
def test_damaged_documents_are_refused(changes: dict[str, Any]) -> None:
    assert read(json.dumps(VALID).encode(), LIMITS).in_flight == 3

    with pytest.raises(UnreadableShare):
        read(json.dumps(VALID | changes).encode(), LIMITS)
    with pytest.raises(UnreadableShare):
        read(b"[", LIMITS)
