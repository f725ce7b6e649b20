"""A run: brokers, producers, members of groups and faults for virtual hours, and then quiet and a final check."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import trio
from attrs import define, field, frozen

from korvet.broker.broker import MakeGroups
from korvet.groups.coordinator import GroupCoordinator
from korvet.maintenance.leases import Leases
from korvet.share.coordinator import SHARE
from korvet.share.document import read
from korvet.storage.interface import IsolationLevel, Storage, TopicPartition
from korvet.storage.shares import UNKNOWN, ShareLimits, SharePartitionKey
from korvet.testing.queue_history import Finished
from korvet.testing.records import records_from
from korvet.testing.simulation.brokers import MakeLeases, MakeLink, Makers, SimulatedBroker, WallClock
from korvet.testing.simulation.clients import TOPIC, GroupSettings, Member, Producer
from korvet.testing.simulation.consumers import Consumer
from korvet.testing.simulation.determinism import Scheduler, VirtualClock, chance_of, deterministic
from korvet.testing.simulation.faults import Faults
from korvet.testing.simulation.history import History, Violation, named
from korvet.testing.simulation.network import MemoryTransport, Network
from korvet.testing.simulation.store import SharedStore, StoreLink
from korvet.testing.simulation.transactional import (
    OUTPUT,
    PROTOCOLS,
    Mover,
    Reader,
    Transactions,
    TransactionSettings,
    Writer,
)
from korvet.testing.simulation.workers import QueueSettings, Worker
from korvet.testing.transaction_history import Log, Partition

GROUP, ASSIGNED, MIXED, INVOICING = "billing", "reports", "moving", "invoicing"
#: The kinds of members that a group has: their leader assigns partitions, or their broker does.
KINDS: Mapping[str, Sequence[type[Member]]] = {
    GROUP: (Member,),
    ASSIGNED: (Consumer,),
    MIXED: (Member, Consumer),
    INVOICING: (Member, Consumer),
}
QUEUE = "workers"
# The most that a broker allows: answers to slow brokers are lost.
DELIVERY_LIMIT = 10
LOOK_S = 10.0


def leases_of(storage: Storage, lease_s: float, holder: str) -> Leases:
    return Leases(storage, lease_s, holder)


@frozen
class Setup:
    """The size and the times of a simulation. Times are virtual seconds, and means if they are random."""

    hours: float = 10.0
    brokers: int = 3
    producers: int = 2
    members: int = 3  # of a group whose leader assigns partitions
    consumers: int = 3  # of a group whose broker assigns partitions (KIP-848)
    mixed: int = 2  # of a group that has members of both kinds
    workers: int = 3  # of a queue: members of a share group
    movers: int = 2  # of a group whose members commit offsets in transactions
    writers: int = 2  # of transactions
    partitions: int = 4
    between_produces_s: float = 600.0
    between_transactions_s: float = 300.0
    between_faults_s: float = 400.0
    #: Between two times that a member ends, with or without leaving, and another one begins.
    between_members_s: float = 1800.0
    heartbeat_s: float = 300.0
    session_s: float = 900.0
    rebalance_s: float = 600.0
    lock_s: float = 600.0
    transaction_timeout_s: float = 900.0
    lease_s: float = 300.0
    #: The time after which brokers declare another one dead.
    broker_session_s: float = 450.0
    #: The time in which the group has to be stable, and all records read, after the faults have ended.
    settle_s: float = 7200.0
    make_link: MakeLink = StoreLink
    make_groups: MakeGroups = GroupCoordinator
    make_leases: MakeLeases = leases_of


@frozen
class Result:
    """The outcome of a run without violations."""

    seed: int
    #: The same for each run of a seed with the same setup.
    digest: str
    events: int
    faults: int
    records: int  # acknowledged
    records_read: int
    records_finished: int  # by workers of the queue
    transactions: int  # committed
    generations: int


class SimulationFailed(AssertionError):  # noqa: N818  names the condition
    """A violation, or an exception in a run. The message has the seed and the last events."""

    def __init__(self, seed: int, reason: str, last_events: Sequence[str]) -> None:
        events = "\n".join(last_events)
        super().__init__(
            f"seed {seed}: {reason}\nSEED={seed} repeats it in a test that takes its seeds from seeds().\n"
            f"The last events (virtual seconds, actor, event):\n{events}"
        )
        self.seed = seed
        self.reason = reason


def simulate(seed: int, setup: Setup | None = None) -> Result:
    """Run one simulation. Raises SimulationFailed.

    The same seed and setup repeat the run exactly, on the same version of Python.
    """
    setup = setup or Setup()
    clock = VirtualClock()
    with deterministic(seed, clock) as scheduler:
        run = Simulation(seed, setup, scheduler, clock)
        try:
            return trio.run(run.run, clock=clock)
        except Exception as error:  # noqa: BLE001  raised with the seed
            cause = run.history.violation or leaf(error)
            reason = str(cause) if isinstance(cause, Violation) else repr(cause)
            raise SimulationFailed(seed, reason, run.history.last_events) from cause


def leaf(error: BaseException) -> BaseException:
    """Return the first exception in nested groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def seeds(count: int) -> list[int]:
    """Return the seeds 0, 1, … for a test's parameters, or only the one in the environment variable SEED."""
    chosen = os.environ.get("SEED")
    return [*range(count)] if chosen is None else [int(chosen)]


@define(eq=False)
class Simulation:
    """One run of `simulate`."""

    seed: int
    setup: Setup
    scheduler: Scheduler
    clock: VirtualClock
    history: History = field(factory=History)
    network: Network = field(init=False)
    store: SharedStore = field(init=False)
    store_clock: WallClock = field(factory=WallClock)
    brokers: list[SimulatedBroker] = field(factory=list)
    producers: list[Producer] = field(factory=list)
    members: dict[Member, trio.CancelScope] = field(factory=dict)
    workers: list[Worker] = field(factory=list)
    transactional: dict[Writer | Mover, trio.CancelScope] = field(factory=dict)
    readers: list[Reader] = field(factory=list)
    _joined: int = 0

    async def run(self) -> Result:
        """Run it. Raises Violation in an exception group."""
        setup = self.setup
        self.network = Network(chance_of(self.seed, "network"), self.clock, self._accept)
        self.store = SharedStore(clock=self.store_clock)
        for topic in (TOPIC, OUTPUT):
            await self.store.create_topic(topic, setup.partitions, {})
        makers = Makers(setup.make_link, setup.make_groups, setup.make_leases)
        self.brokers = [self._broker(number, makers) for number in range(setup.brokers)]
        faults = Faults(
            self.brokers,
            self.network,
            self.store_clock,
            self.scheduler,
            self.history,
            chance_of(self.seed, "faults"),
            setup.between_faults_s,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch)
            for broker in self.brokers:
                broker.start(nursery)
            try:
                await self._churn(faults, nursery)
                await self._settle()
                nursery.cancel_scope.cancel()
            finally:
                for broker in self.brokers:
                    broker.crash()  # its connections are shielded from cancellation
        await self._check()
        return self._result(faults.count)

    async def _check(self) -> None:
        """Check the logs, and the events of workers and of transactional clients. Raises Violation."""
        inputs = await self._logs(self._partitions)
        everything = await self._logs(self._outputs)
        for partition, log in (inputs | everything).items():
            self.history.check_log(TopicPartition(*partition), log)
        if self.workers:
            self.history.check_queue(TOPIC, self.setup.lock_s, DELIVERY_LIMIT)
        committed = await self._logs(self._outputs, IsolationLevel.READ_COMMITTED)
        self.history.check_transactions(committed, everything, inputs if self.setup.movers else {})

    async def _logs(
        self, tps: Sequence[TopicPartition], level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    ) -> dict[Partition, Log]:
        """Return the offsets and values of partitions."""
        return {
            tp: [
                (each.offset, (each.value or b"").decode())
                for each in await records_from(self.store, tp, isolation_level=level)
            ]
            for tp in tps
        }

    async def _churn(self, faults: Faults, nursery: trio.Nursery) -> None:
        """Let clients and faults do their work until the time is over."""
        await self._start_workers(nursery)
        for number in range(self.setup.producers):
            producer = Producer(
                **self._common(f"producer-{number}"),
                partitions=self.setup.partitions,
                between_s=self.setup.between_produces_s,
            )
            self.producers.append(producer)
            nursery.start_soon(producer.run)
        sizes = {GROUP: self.setup.members, ASSIGNED: self.setup.consumers, MIXED: self.setup.mixed}
        for group, size in sizes.items():
            for _ in range(size):
                self._start_member(nursery, group)
        self._start_transactional(nursery)
        with trio.move_on_after(self.setup.hours * 3600):
            async with trio.open_nursery() as churning:
                churning.start_soon(faults.run, nursery)
                if self.members:
                    churning.start_soon(self._replace_members, nursery)
                if self.transactional:
                    churning.start_soon(self._replace_transactional, nursery)

    async def _settle(self) -> None:
        """Wait until everything is read and the group is stable. Violation if that takes too long."""
        for producer in self.producers:
            producer.is_stopping = True
        for worker in self.workers:
            worker.is_stopping = True
        for client in self.transactional:
            client.transactions.is_stopping = True
        with trio.move_on_after(self.setup.settle_s):
            while (missing := await self._missing()) is not None:  # noqa: ASYNC110  no event comes
                await trio.sleep(LOOK_S)
            return
        self.history.fail(f"{self.setup.settle_s:.0f} s after the last fault {missing}")

    async def _missing(self) -> str | None:
        """Return what has to happen until the cluster is quiet, or None."""
        for producer in self.producers:
            if producer.unsent:
                return f"{producer.name} has {len(producer.unsent)} batches that were not acknowledged"
        for group in {member.settings.group: None for member in self._members}:
            if (missing := await self._missing_of(group)) is not None:
                return missing
        for tp in self._outputs:
            if (missing := await self._missing_in(tp)) is not None:
                return missing
        for tp in self._partitions:
            end = (await self.store.latest(tp)).high_watermark
            if self.workers and (start := await self._queue_start(tp)) != end:
                return f"the queue of {named([tp])} begins at {start} and ends at {end}"
        return None

    async def _missing_of(self, group: str) -> str | None:
        """Return what has to happen until a group is stable and has read everything, or None."""
        members = [member for member in self._members if member.settings.group == group]
        owned = sorted(tp for member in members for tp in member.positions)
        if owned != self._partitions:
            return f"the members of {group} own {named(owned)}"
        committed = await self.store.committed(group)
        for tp in self._partitions:
            end = (await self.store.latest(tp)).high_watermark
            at = committed[tp].offset if tp in committed else 0
            if at != end:
                return f"{group} has committed {at} for {named([tp])}, which ends at {end}"
        if pending := await self.store.unstable(group):
            return f"{group} has offsets of an open transaction for {named(pending)}"
        return None

    async def _missing_in(self, tp: TopicPartition) -> str | None:
        """Return what has to happen until an output partition has no open transaction and is read, or None."""
        bounds = await self.store.latest(tp)
        if bounds.last_stable_offset != bounds.high_watermark:
            return f"{named([tp])} has an open transaction from {bounds.last_stable_offset} on"
        for reader in self.readers:
            if reader.positions[tp] != bounds.high_watermark:
                return f"{reader.name} is at {named([tp])}@{reader.positions[tp]} of {bounds.high_watermark}"
        return None

    @property
    def _members(self) -> list[Member]:
        return [*self.members, *(each.member for each in self.transactional if isinstance(each, Mover))]

    @property
    def _outputs(self) -> list[TopicPartition]:
        return [TopicPartition(OUTPUT, number) for number in range(self.setup.partitions)]

    @property
    def _partitions(self) -> list[TopicPartition]:
        return [TopicPartition(TOPIC, number) for number in range(self.setup.partitions)]

    async def _queue_start(self, tp: TopicPartition) -> int:
        """Return the first offset of a partition that the workers have not finished."""
        topic = await self.store.topic(TOPIC)
        assert topic is not None
        document = await self.store.load(SHARE, str(SharePartitionKey(tp, topic.topic_id, QUEUE)))
        return UNKNOWN if document is None else read(document.value, ShareLimits()).start

    async def _watch(self) -> None:
        """End the run at a violation that was raised where nothing handles it."""
        await self.history.violated.wait()
        assert self.history.violation is not None
        raise self.history.violation

    # --- Brokers ----------------------------------------------------------------------------------------

    def _broker(self, number: int, makers: Makers) -> SimulatedBroker:
        return SimulatedBroker(
            f"broker-{number}",
            number,
            self.store,
            self.history,
            chance_of(self.seed, f"broker {number}"),
            makers,
            self.setup.lease_s,
            self.setup.broker_session_s,
            self._broker_settings,
        )

    @property
    def _broker_settings(self) -> Mapping[str, str]:
        """The settings whose times are as long as those of a group of members."""
        setup = self.setup
        times = {
            "share.{}record.lock.duration.ms": setup.lock_s,
            "share.{}session.timeout.ms": setup.session_s,
            "share.{}heartbeat.interval.ms": setup.heartbeat_s,
            "consumer.{}session.timeout.ms": setup.session_s,
            "consumer.{}heartbeat.interval.ms": setup.heartbeat_s,
        }
        found = {"group.share.delivery.count.limit": DELIVERY_LIMIT}
        for name, seconds in times.items():
            for form in ("", "max."):
                found[f"group.{name.format(form)}"] = int(seconds * 1000)
        return {name: str(value) for name, value in found.items()}

    def _accept(self, broker: str, transport: MemoryTransport, client: str) -> Callable[[], None]:
        (found,) = (each for each in self.brokers if each.name == broker)
        return found.accept(transport, client)

    # --- Workers ----------------------------------------------------------------------------------------

    async def _start_workers(self, nursery: trio.Nursery) -> None:
        """Let workers work on a queue, whose group begins with the first record."""
        settings = QueueSettings(QUEUE, self.setup.partitions, self.setup.heartbeat_s, self.setup.lock_s)
        for number in range(self.setup.workers):
            worker = Worker(**self._common(f"worker-{number}"), settings=settings)
            if not self.workers:
                await worker.create_group()
            self.workers.append(worker)
            nursery.start_soon(worker.run)

    # --- Members ----------------------------------------------------------------------------------------

    async def _replace_members(self, nursery: trio.Nursery) -> None:
        """End a member from time to time, politely or not, and start another one."""
        chance = chance_of(self.seed, "members")
        while True:
            await trio.sleep(chance.expovariate(1 / self.setup.between_members_s))
            member = chance.choice(list(self.members))
            if chance.random() < 0.5:
                member.is_leaving = True
            else:
                self.history.note(member.name, "is killed")
                self.members[member].cancel()
            del self.members[member]
            self._start_member(nursery, member.settings.group)

    def _start_member(self, nursery: trio.Nursery, group: str) -> None:
        """Start a member of a group, of one of its kinds."""
        self._joined += 1
        kind = chance_of(self.seed, f"kind {self._joined}").choice(KINDS[group])
        name = f"{kind.__name__.lower()}-{self._joined}"
        member = kind(**self._common(name), settings=self._group_settings(group))
        self.members[member] = scope = trio.CancelScope()
        nursery.start_soon(partial(within, scope, member.run))

    def _group_settings(self, group: str) -> GroupSettings:
        setup = self.setup
        return GroupSettings(group, setup.partitions, setup.session_s, setup.rebalance_s, setup.heartbeat_s)

    # --- Transactional clients --------------------------------------------------------------------------

    def _start_transactional(self, nursery: trio.Nursery) -> None:
        """Start writers and movers, and a reader of what they write."""
        setup = self.setup
        for number in range(setup.writers):
            self._start_client(nursery, f"writer-{number}", moves=False)
        for number in range(setup.movers):
            self._start_client(nursery, f"mover-{number}", moves=True)
        if self.transactional:
            reader = Reader(**self._common("reader"), partitions=setup.partitions, wait_s=setup.heartbeat_s)
            self.readers.append(reader)
            nursery.start_soon(reader.run)

    def _start_client(self, nursery: trio.Nursery, transactional_id: str, *, moves: bool) -> None:
        """Start a writer, or a mover of one of its kinds. An earlier one may have the transactional id."""
        self._joined += 1
        common = self._common(f"{transactional_id}-{self._joined}")
        chance = chance_of(self.seed, f"kind {self._joined}")
        settings = TransactionSettings(
            transactional_id,
            self.setup.partitions,
            chance.choice(list(PROTOCOLS)),
            self.setup.transaction_timeout_s,
        )
        transactions = Transactions(**common, settings=settings)
        client: Writer | Mover
        if moves:
            kind = chance.choice(KINDS[INVOICING])
            client = Mover(transactions, kind(**common, settings=self._group_settings(INVOICING)))
        else:
            client = Writer(transactions, self.setup.between_transactions_s)
        self.transactional[client] = scope = trio.CancelScope()
        nursery.start_soon(partial(within, scope, client.run))

    async def _replace_transactional(self, nursery: trio.Nursery) -> None:
        """Start another client with a transactional id from time to time, also while the earlier one still works."""
        chance = chance_of(self.seed, "transactional")
        while True:
            await trio.sleep(chance.expovariate(1 / self.setup.between_members_s))
            client = chance.choice(list(self.transactional))
            name = client.transactions.name
            if chance.random() < 0.5:
                self.history.note(name, "is replaced")
                client.leave()
            else:
                self.history.note(name, "is killed")
                self.transactional[client].cancel()
            del self.transactional[client]
            transactional_id = client.transactions.settings.transactional_id
            self._start_client(nursery, transactional_id, moves=isinstance(client, Mover))

    def _common(self, name: str) -> dict[str, Any]:
        """Return what all clients have."""
        return {
            "name": name,
            "network": self.network,
            "history": self.history,
            "chance": chance_of(self.seed, name),
            "brokers": tuple(broker.name for broker in self.brokers),
        }

    def _result(self, faults: int) -> Result:
        history = self.history
        history.note("end", f"{self.scheduler.chance.random()}")
        return Result(
            self.seed,
            history.digest,
            history.events,
            faults,
            sum(tp.topic == TOPIC for tp, _ in history.acknowledged.values()),
            history.records_read,
            len({each.value for each in history.queue if isinstance(each, Finished)}),
            history.committed_transactions,
            history.generation(GROUP),
        )


async def within(scope: trio.CancelScope, function: Callable[[], object]) -> None:
    """Run a function that may be cancelled."""
    with scope:
        await function()  # type: ignore[misc]
