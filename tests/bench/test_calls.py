from __future__ import annotations

import pytest

from bench.calls import measured

# Files and functions of one request of ten records in one partition. A change that makes a way longer raises its bound.
BOUNDS = {
    "memory": {"Produce": (23, 81), "Fetch": (21, 74), "OffsetCommit": (26, 86)},
    "batch": {"Produce": (39, 135), "Fetch": (38, 144), "OffsetCommit": (39, 138)},
    "record": {"Produce": (39, 143), "Fetch": (39, 155), "OffsetCommit": (39, 138)},
}
# Calls of the module that was entered by each helper of a request.
ASKED_FOR_LAYOUT = {"Produce": 4, "Fetch": 14, "OffsetCommit": 6}


@pytest.mark.servers
@pytest.mark.parametrize("system", BOUNDS)
def test_ways_of_small_requests_stay_short(system: str) -> None:
    ways = measured(system)

    assert BOUNDS[system].keys() == ways.keys()
    for name, (files, functions) in BOUNDS[system].items():
        way = ways[name]
        assert len(way.files) <= files, sorted(way.files)
        assert len(way.calls) <= functions, sorted(way.calls)
        assert way.files["storage/redis/partition.py"] <= ASKED_FOR_LAYOUT[name]
