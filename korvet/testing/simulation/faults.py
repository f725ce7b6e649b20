"""Faults at random times: crashes, pauses, wrong clocks, and a store or clients that are slow or out of reach."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

import trio
from attrs import define, field

from korvet.testing.simulation.brokers import SimulatedBroker, WallClock
from korvet.testing.simulation.determinism import Scheduler
from korvet.testing.simulation.history import History
from korvet.testing.simulation.network import Network
from korvet.testing.simulation.store import StoreFaults

LONGEST_S = 1200.0
LONGEST_STEP_MS = 3_600_000
# Calls of the store and answers until a broker crashes amid them, at most.
PASSES = 100


@define(eq=False)
class Faults:
    """Injects faults into brokers and their ways to clients and to the store, until it is cancelled."""

    brokers: list[SimulatedBroker]
    network: Network
    store_clock: WallClock
    scheduler: Scheduler
    history: History
    chance: Random
    pause_s: float  # the mean time between two faults
    count: int = 0
    _kinds: tuple[Callable[[SimulatedBroker, float], Awaitable[None]], ...] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._kinds = (
            self.crash,
            self.crash_amid,
            self.restart,
            self.pause,
            self.cut_store,
            self.fail_store,
            self.slow_store,
            self.cut_clients,
            self.slow_clients,
            self.reset_clients,
            self.step_clock,
            self.step_store_clock,
        )

    async def run(self, broker_nursery: trio.Nursery) -> None:
        """Inject faults, several of them at a time, until cancelled. Then end all of them."""
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    await trio.sleep(self.chance.expovariate(1 / self.pause_s))
                    kind = self.chance.choice(self._kinds)
                    broker = self.chance.choice(self.brokers)
                    for_s = self.chance.random() ** 3 * LONGEST_S
                    self.count += 1
                    self.history.note("fault", f"{kind.__name__} {broker.name} for {for_s:.1f} s")
                    nursery.start_soon(self._inject, kind, broker, for_s, broker_nursery)
        finally:
            with trio.CancelScope(shield=True):
                await self._end_all(broker_nursery)

    async def _inject(
        self,
        kind: Callable[[SimulatedBroker, float], Awaitable[None]],
        broker: SimulatedBroker,
        for_s: float,
        nursery: trio.Nursery,
    ) -> None:
        await kind(broker, for_s)
        if not broker.is_up:
            broker.start(nursery)

    async def _end_all(self, nursery: trio.Nursery) -> None:
        for broker in self.brokers:
            self.network.delays_s.pop(broker.name, None)
            self.network.heal(broker.name)
            broker.inject(StoreFaults())
            broker.crash_amid(0)
            broker.clock.step(0)
            await self._resume(broker)
            if not broker.is_up:
                broker.start(nursery)
        self.store_clock.step(0)
        self.history.note("fault", "no more")

    # --- Kinds ------------------------------------------------------------------------------------------

    async def crash(self, broker: SimulatedBroker, for_s: float) -> None:
        """Lose the broker's memory, and start it again later."""
        await self._resume(broker)
        broker.crash()
        await trio.sleep(for_s)

    async def crash_amid(self, broker: SimulatedBroker, for_s: float) -> None:
        """Crash the broker amid what it does for a client: before or after one of its next calls to the store."""
        crashed = broker.crashed
        broker.crash_amid(self.chance.randint(1, PASSES))
        await crashed.wait()
        await trio.sleep(for_s)

    async def restart(self, broker: SimulatedBroker, for_s: float) -> None:  # noqa: ARG002  it starts soon
        """Stop the broker as an operator does, and start it again."""
        broker.stop()

    async def pause(self, broker: SimulatedBroker, for_s: float) -> None:
        """Run none of the broker's tasks for some time."""
        self.scheduler.pause(broker.name)
        self.history.paused(broker.name)
        await trio.sleep(for_s)
        await self._resume(broker)

    async def cut_store(self, broker: SimulatedBroker, for_s: float) -> None:
        """Let no call of the broker reach the store."""
        await self._with_store(broker, for_s, StoreFaults(is_cut=True))

    async def fail_store(self, broker: SimulatedBroker, for_s: float) -> None:
        """Let some calls fail, before or after their effect."""
        share = self.chance.random() / 2
        await self._with_store(broker, for_s, StoreFaults(fails_before=share / 2, fails_after=share))

    async def slow_store(self, broker: SimulatedBroker, for_s: float) -> None:
        """Delay each call by seconds."""
        await self._with_store(broker, for_s, StoreFaults(delay_s=self.chance.random() * 10))

    async def cut_clients(self, broker: SimulatedBroker, for_s: float) -> None:
        """Deliver nothing between the broker and its clients."""
        self.network.cut(broker.name)
        await trio.sleep(for_s)
        self.network.heal(broker.name)

    async def slow_clients(self, broker: SimulatedBroker, for_s: float) -> None:
        """Delay every segment between the broker and its clients by seconds."""
        self.network.delays_s[broker.name] = self.chance.random() * 10
        await trio.sleep(for_s)
        self.network.delays_s.pop(broker.name, None)

    async def reset_clients(self, broker: SimulatedBroker, for_s: float) -> None:  # noqa: ARG002  at once
        """Lose all connections of the broker."""
        self.network.reset(broker.name)

    async def step_clock(self, broker: SimulatedBroker, for_s: float) -> None:
        """Set the broker's wall clock wrong."""
        broker.clock.step(self.chance.randint(-LONGEST_STEP_MS, LONGEST_STEP_MS))
        await trio.sleep(for_s)

    async def step_store_clock(self, broker: SimulatedBroker, for_s: float) -> None:  # noqa: ARG002  all brokers'
        """Set the store's wall clock wrong."""
        self.store_clock.step(self.chance.randint(-LONGEST_STEP_MS, LONGEST_STEP_MS))
        await trio.sleep(for_s)

    async def _with_store(self, broker: SimulatedBroker, for_s: float, faults: StoreFaults) -> None:
        broker.inject(faults)
        await trio.sleep(for_s)
        broker.inject(StoreFaults())

    async def _resume(self, broker: SimulatedBroker) -> None:
        if self.scheduler.is_paused(broker.name):
            self.history.paused(broker.name)
            await self.scheduler.resume(broker.name)
            self.history.note("fault", f"{broker.name} runs again")
