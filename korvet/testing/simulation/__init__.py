"""Deterministic simulation: real brokers, clients and faults on virtual time, every run repeatable by its seed.

    result = simulate(seed=7)                       # ten virtual hours
    simulate(seed=7, setup=Setup(hours=1000))

`simulating` has the run, `history` the guarantees that are checked, `faults` what happens to brokers. `determinism`
makes any Trio program repeatable.
"""

from __future__ import annotations

from korvet.testing.simulation.simulating import Result, Setup, SimulationFailed, seeds, simulate

__all__ = ["Result", "Setup", "SimulationFailed", "seeds", "simulate"]
