"""The speed of the simulation. `python -m bench.simulation`.

Simulates ten virtual hours for each of a hundred seeds, in two processes. A violation ends it.
"""

from __future__ import annotations

import argparse
from multiprocessing import get_context
from time import perf_counter, process_time

from korvet.testing.simulation import Setup, simulate


def took_s(seed: int) -> float:
    """Simulate a seed. Return its processor time in seconds."""
    began_s = process_time()
    simulate(seed)
    return process_time() - began_s


def main() -> None:
    """Print the virtual hours and the time that they took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    began_s = perf_counter()
    with get_context("spawn").Pool(given.processes) as pool:
        times_s = pool.map(took_s, range(given.seeds), chunksize=5)
    hours = given.seeds * Setup().hours
    print(
        f"{hours:,.0f} virtual hours in {perf_counter() - began_s:.0f} s with {given.processes} processes:"
        f" {sum(times_s):.0f} s of processor time"
    )


if __name__ == "__main__":
    main()
