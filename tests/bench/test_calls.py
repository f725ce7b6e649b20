from __future__ import annotations

import pytest

from bench.calls import measured

# Files and functions of one request of ten records in one partition. A change that makes a way longer raises its bound.
BOUNDS = {
    "memory": {"Produce": (23, 85), "Fetch": (21, 78), "OffsetCommit": (26, 90)},
    "batch": {"Produce": (39, 140), "Fetch": (38, 148), "OffsetCommit": (39, 145)},
    "record": {"Produce": (39, 145), "Fetch": (39, 159), "OffsetCommit": (39, 145)},
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
