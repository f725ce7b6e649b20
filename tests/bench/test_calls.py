from __future__ import annotations

import pytest

from bench.calls import measured

# Files and functions of one request of ten records in one partition. A change that makes a way longer raises its bound.
BOUNDS = {
    "memory": {"Produce": (25, 90), "Fetch": (22, 82), "OffsetCommit": (27, 94)},
    "batch": {"Produce": (40, 149), "Fetch": (39, 155), "OffsetCommit": (40, 152)},
    "record": {"Produce": (40, 154), "Fetch": (40, 166), "OffsetCommit": (40, 152)},
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
