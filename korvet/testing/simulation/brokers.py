"""Simulated brokers: real brokers and connections, on the shared store and the network in memory.

A broker registers itself in the cluster, coordinates its groups, and has one job under a lease. It has no
sockets, signals, retention, compaction, and no sweep of idle connections.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from random import Random

import trio
from attrs import define, field

from korvet.broker.broker import Broker, MakeGroups, open_broker, registration_of
from korvet.broker.counters import Counters
from korvet.broker.limits import ByteBudget
from korvet.cluster.membership import Membership
from korvet.cluster.registered import new_incarnation, registered
from korvet.config import Config, load_config
from korvet.handlers import APIS
from korvet.maintenance.leases import Leases
from korvet.protocol.errors import KafkaError
from korvet.server.connection import ServedConnection, Shared
from korvet.server.receiving import RequestMemory
from korvet.storage.interface import Storage
from korvet.testing.simulation.determinism import start_owned
from korvet.testing.simulation.history import History
from korvet.testing.simulation.network import MemoryTransport
from korvet.testing.simulation.store import SharedStore, StoreFaults, StoreLink

LEASE = "job"
PORT = 9092
START_S = 2.0
AGAIN_S = 5.0
DRAIN_S = 10.0
# The wall clock of every broker and of the store, when the simulation begins.
EPOCH_MS = 1_750_000_000_000
REQUEST_BYTES = 64 << 20

MakeLink = Callable[[SharedStore, StoreFaults, Random], StoreLink]
MakeLeases = Callable[[Storage, float, str], Leases]


class InternalErrors(Counters):
    """Reports connections that ended because of an error in korvet."""

    def __init__(self, history: History, broker: str) -> None:
        self._history, self._broker = history, broker

    def aborted(self, reason: str) -> None:
        if reason == "internal":
            error = sys.exc_info()[1]  # the connection is about to log it
            self._history.violate(f"{self._broker} closed a connection after {error!r}", error)


@define
class WallClock:
    """A clock that faults may step, in milliseconds since 1970."""

    _ahead_ms: int = 0

    def step(self, ahead_ms: int) -> None:
        """Set the clock so far ahead of the right time, or behind it."""
        self._ahead_ms = ahead_ms

    def __call__(self) -> int:
        return EPOCH_MS + self._ahead_ms + int(trio.current_time() * 1000)


@define
class Makers:
    """The parts of a broker that a test may replace, for example to prove that the simulation finds errors in them."""

    link: MakeLink
    groups: MakeGroups
    leases: MakeLeases


@define(eq=False)
class SimulatedBroker:
    """A broker that crashes and starts again. Its state is in the store, apart from what is lost."""

    name: str
    node_id: int
    store: SharedStore
    history: History
    chance: Random
    makers: Makers
    lease_s: float
    session_s: float
    settings: Mapping[str, str]
    config: Config = field(init=False)
    clock: WallClock = field(factory=WallClock)
    faults: StoreFaults = field(factory=StoreFaults)
    lives: int = 0
    crashed: trio.Event = field(factory=trio.Event)  # set at the next crash
    _life: trio.CancelScope | None = None
    _nursery: trio.Nursery | None = None  # of the connections, while the broker serves
    _shared: Shared | None = None
    _link: StoreLink | None = None
    _stopping: trio.Event = field(factory=trio.Event)
    _connections: dict[ServedConnection, None] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.config = load_config(
            flags={"node.id": str(self.node_id), "offset.mapping": "dense", **self.settings}, environ={}
        )

    @property
    def is_up(self) -> bool:
        return self._life is not None

    def start(self, nursery: trio.Nursery) -> None:
        """Start a life of the broker."""
        self.lives += 1
        self._life = trio.CancelScope()
        self.history.note(self.name, "starts")
        start_owned(nursery, self.name, partial(self._live, self._life))

    def crash(self) -> None:
        """End the life of the broker at this moment. Nothing more of it is stored or sent."""
        if self._life is None:
            return
        self.history.note(self.name, "crashes")
        if self._link is not None:
            self._link.faults = StoreFaults(fails_before=1, fails_after=1)
        for connection in self._connections:
            connection.end()
        self._life.cancel()
        self.crashed.set()
        self.crashed = trio.Event()
        self._life = self._nursery = self._shared = self._link = None
        self._connections = {}

    def crash_amid(self, passes: int) -> None:
        """Crash at that one of the next calls to the store and answers, before it is passed on; at none if it is 0."""
        if self._link is not None:
            self._link.after_passes, self._link.passes_left = self.crash, passes

    def stop(self) -> None:
        """Let the broker leave the cluster and answer what it has received. It starts again after AGAIN_S."""
        self._stopping.set()

    def inject(self, faults: StoreFaults) -> None:
        """Change the faults of the way to the store."""
        self.faults = faults
        if self._link is not None:
            self._link.faults = faults

    def accept(self, transport: MemoryTransport, client: str) -> Callable[[], None]:
        """Serve a connection. Return what to call when the client has closed it. Raises ConnectionRefusedError."""
        if self._nursery is None or self._shared is None:
            raise ConnectionRefusedError(f"{self.name} is down")
        connection = ServedConnection(
            transport, f"{client}:0", "PLAINTEXT", self._shared, self._connections.pop
        )
        self._connections[connection] = None
        start_owned(self._nursery, self.name, connection.serve)

        def closed() -> None:
            # As the server does when it finds out that a client has disconnected.
            if (scope := connection.parked) is not None:
                scope.cancel()

        return closed

    async def _live(self, life: trio.CancelScope) -> None:
        with life:
            await trio.sleep(self.chance.random() * START_S)
            await again(self._serve)

    async def _serve(self) -> None:
        self._link = self.makers.link(self.store, self.faults, self.chance)
        own = registration_of(
            self.config,
            {"PLAINTEXT": (self.name, PORT)},
            self.clock(),
            incarnation=new_incarnation(),
        )
        async with registered(
            self._link, own, node_id=self.node_id, session_s=self.session_s, registers=True
        ) as membership:
            broker = await open_broker(
                self._link,
                self.config,
                membership=membership,
                counters=InternalErrors(self.history, self.name),
                clock=self.clock,
                make_groups=self.makers.groups,
            )
            await self._serve_until_stopped(broker, membership)

    async def _serve_until_stopped(self, broker: Broker, membership: Membership) -> None:
        assert self._link is not None, "it is opened before"
        leases = self.makers.leases(self._link, self.lease_s, self.name)
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(again, broker.groups.run)
                nursery.start_soon(again, broker.transactions.run)
                nursery.start_soon(again, broker.share.run)
                nursery.start_soon(self._compete, leases)
                nursery.start_soon(self._watch, membership)
                self._shared = Shared(broker, APIS, RequestMemory(ByteBudget(REQUEST_BYTES)))
                self._nursery = connections
                self._stopping = trio.Event()
                await self._stopping.wait()
                await membership.leave()
                nursery.cancel_scope.cancel()
            self._nursery = None
            broker.drain()
            for connection in self._connections:
                connection.drain(trio.current_time() + DRAIN_S)

    async def _watch(self, membership: Membership) -> None:
        await membership.ended.wait()
        self.history.fail(f"{self.name} gives up, as if another broker had its node id")

    async def _compete(self, leases: Leases) -> None:
        """Compete for the lease, and work under it for some time."""
        while True:
            await leases.while_held(LEASE, self._work)

    async def _work(self) -> None:
        self.history.begin_lease(self.name, LEASE)
        try:
            await trio.sleep(self.chance.expovariate(1 / (10 * self.lease_s)))
        finally:
            self.history.end_lease(self.name, LEASE)


async def again(task: Callable[[], Awaitable[None]]) -> None:
    """Run a task, and once more after each error of the store, as `supervise` does. Other errors end the run."""
    while True:
        try:
            await task()
        except* KafkaError:
            pass
        await trio.sleep(AGAIN_S)
