"""The coordinator of transactions: it decides on requests, ends transactions, and aborts those that time out.

`States` decides and saves. Any process of any broker adds partitions and groups to a transaction and verifies them,
since the store orders all saves of a document. InitProducerId and EndTxn go to the broker that clients find with
FindCoordinator, and there to the process that owns the id (`korvet.coordination.routing`).

A process looks at an id when it has something to do for it:

- A process that has begun a transaction, or has found it as the owner of its id, aborts it after its timeout.
- A process that has prepared a transaction writes its markers (`Ending`), and then saves that it is complete. The
  answer to EndTxn does not wait for that.

If that process or its broker ends, the owner continues. It looks at all of its ids when it starts, when the membership
changes, and every SWEEP_S seconds or less often. It also continues a prepared transaction that a request has found. A
process that does not know whether it has prepared a transaction looks as the owner does. Before a process writes
markers of a transaction that it has not prepared, it raises the coordinator epoch, by which partitions refuse the
markers of the process before. Decisions of several processes cannot contradict each other, because markers of a
transaction follow from its document, and a document that is prepared does not change until it is complete.

`run` does this work, forever, under `korvet.concurrency.tasks.supervise`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from typing import ClassVar

import trio
from attrs import define, field

from korvet.cluster.membership import Membership
from korvet.concurrency.tasks import in_parallel
from korvet.concurrency.time_slices import TimeSlices
from korvet.config import Config
from korvet.coordination.deadlines import Deadlines
from korvet.coordination.routing import Processes, Routing, Verbs
from korvet.coordination.runtime import current_ms
from korvet.protocol.errors import (
    ConcurrentTransactions,
    CoordinatorNotAvailable,
    InvalidProducerIdMapping,
    InvalidTransactionTimeout,
    KafkaError,
    TransactionalIdNotFound,
)
from korvet.protocol.text import quoted
from korvet.storage.interface import Storage, TransactionNumber
from korvet.transactions.counts import Counts
from korvet.transactions.document import Partition, State, Transaction
from korvet.transactions.ending import Ending, Fenced
from korvet.transactions.machine import (
    COMPLETED,
    Add,
    Complete,
    Decision,
    End,
    Event,
    Init,
    TakeOver,
    TimeOut,
    Verify,
    missing,
)
from korvet.transactions.states import TRANSACTION, Saved, States, Unreadable

logger = logging.getLogger(__name__)

VERBS = Verbs(TRANSACTION)

# Ids that a sweep reads before other tasks run, and ids that are worked on concurrently.
SLICE = 500
AT_ONCE = 500
# Open transactions that are read for metrics.
OPEN_READ = 500
# The interval of sweeps while the membership does not change, and its minimum in durations of a sweep.
SWEEP_S = 60.0
SWEEP_PAUSES = 100
# After an error of the store, or a save whose outcome is unknown, look at the id after this time.
LOOK_AGAIN_MS = 5000
# Pauses between two looks at a transaction that another process ends.
FIRST_POLL_S, LONGEST_POLL_S = 0.002, 0.02

REMOVABLE = COMPLETED | {State.EMPTY}


@define(eq=False)
class TransactionCoordinator:
    """See the module. `clock` returns milliseconds since 1970, and `allocate` an unused producer id.

    `processes` are those of the broker, or None if it is one process.
    """

    _storage: Storage
    config: Config
    clock: Callable[[], int]
    membership: Membership = field(repr=False)
    allocate: Callable[[], Awaitable[int]] = field(repr=False)
    processes: Processes | None = field(default=None, repr=False, kw_only=True)
    routing: Routing = field(init=False, repr=False)
    states: States = field(init=False, repr=False)
    counts: Counts = field(factory=Counts, repr=False)
    _due: Deadlines[str] = field(factory=Deadlines)  # Trio time at which an id is to be looked at
    _earlier: trio.Event = field(factory=trio.Event)
    _looking: set[str] = field(factory=set)  # ids that `run` works on
    _missed: set[str] = field(factory=set)  # those of them that became due meanwhile
    _unsure: set[str] = field(
        factory=set
    )  # ids of which this process may have saved a state without an answer
    _endings: dict[str, Ending] = field(factory=dict)  # transactions that this process ends

    verbs: ClassVar[Verbs] = VERBS

    def __attrs_post_init__(self) -> None:
        self.routing = Routing(self.membership, self.processes, prefix=f"{TRANSACTION}:")
        self.states = States(
            self._storage,
            self.clock,
            self.allocate,
            self.config.transactional_id_expiration_ms,
            unsure=self._note_unsure,
        )

    @property
    def storage(self) -> Storage:
        """The storage of documents, records and offsets."""
        return self._storage

    @storage.setter
    def storage(self, storage: Storage) -> None:
        self._storage = self.states.storage = storage

    # --- Requests of producers --------------------------------------------------------------------------

    @VERBS.add()
    async def initialize(
        self, transactional_id: str, *, timeout_ms: int, expected: tuple[int, int] | None
    ) -> tuple[int, int]:
        """Return a producer id and epoch, which fence earlier producers with the id.

        `expected` has the id and epoch of a producer that continues (KIP-360). Raises InvalidTransactionTimeout,
        NotCoordinator, CoordinatorNotAvailable, ProducerFenced, and ConcurrentTransactions while a transaction ends: an
        open one is aborted.
        """
        longest = self.config.transaction_max_timeout_ms
        if not 0 < timeout_ms <= longest:
            raise InvalidTransactionTimeout(f"transaction timeouts are from 1 to {longest} ms here")
        self.routing.check(transactional_id)
        self._check_versions()
        decision = await self._decide(transactional_id, Init(timeout_ms=timeout_ms, expected=expected))
        return decision.producer_id, decision.producer_epoch

    def _check_versions(self) -> None:
        """Raise CoordinatorNotAvailable while a living broker would append records of transactions as plain ones."""
        for node_id, each in self.membership.living.items():
            if not each.knows_transactions:
                raise CoordinatorNotAvailable(f"broker {node_id} has a version that knows no transactions")

    async def add(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        *,
        partitions: Collection[Partition] = (),
        groups: Collection[str] = (),
        version: int,
    ) -> TransactionNumber:
        """Add partitions and groups to the transaction, and begin it if none is open. Return its number.

        Wait for the end of the previous transaction, at most `add.partitions.to.txn.retry.backoff.max.ms`. Kafka waits
        under version 2 only; clients of version 1 would ask again after 20 ms. Raises InvalidProducerIdMapping,
        ProducerFenced, ConcurrentTransactions, CoordinatorNotAvailable.
        """
        added, joined = frozenset(partitions), frozenset(groups)
        # Under version 1, an ended transaction and the next one have the same epoch: the cache cannot distinguish them.
        if version >= 2:
            number = self.states.number_of(transactional_id, (producer_id, producer_epoch), added, joined)
            if number is not None:
                return TransactionNumber(version, number)
        event = Add(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            partitions=added,
            groups=joined,
            version=version,
        )
        wait_ms = self.config.add_partitions_to_txn_retry_backoff_max_ms
        decision = await self._decide_after_end(transactional_id, event, wait_ms)
        self.counts.begun(transactional_id, decision.state)
        return TransactionNumber(version, decision.state.number)

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        *,
        partitions: Collection[Partition] = (),
        groups: Collection[str] = (),
    ) -> TransactionNumber:
        """Return the number of the ongoing transaction of a client of version 1, if all of this is in it.

        Raises TransactionAbortable if something is not, and the errors of `add`. The result may be that of a
        transaction that has just ended: then storage raises TransactionEnded, and the caller uses `reload`.
        """
        expected, joined = frozenset(partitions), frozenset(groups)
        number = self.states.number_of(transactional_id, (producer_id, producer_epoch), expected, joined)
        if number is None:
            event = Verify(
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                partitions=expected,
                groups=joined,
            )
            number = (await self._decide(transactional_id, event)).state.number
        return TransactionNumber(1, number)

    async def absent(
        self, transactional_id: str, partitions: Collection[Partition]
    ) -> Collection[Partition | str]:
        """Return those of the partitions that are not in the ongoing transaction.

        `verify` has raised TransactionAbortable for them. Raises CoordinatorNotAvailable.
        """
        saved = await self.states.read(transactional_id)
        wanted = frozenset(partitions)
        return wanted if saved is None else missing(saved.transaction, wanted)

    async def reload(self, transactional_id: str) -> None:
        """Let the next request read the document, after storage has raised TransactionEnded."""
        self.states.forget(transactional_id)

    @VERBS.add()
    async def end(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        *,
        is_commit: bool,
        version: int,
        can_abort: bool,
    ) -> tuple[int, int]:
        """Commit or abort the transaction. Return the producer id and epoch of the next one.

        Return once the decision is saved, before the markers are written. `can_abort` is true if the client understands
        TRANSACTION_ABORTABLE. Raises InvalidTxnState, InvalidProducerIdMapping, ProducerFenced, NotCoordinator,
        CoordinatorNotAvailable, and ConcurrentTransactions while the previous transaction ends.
        """
        self.routing.check(transactional_id)
        event = End(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            is_commit=is_commit,
            version=version,
            can_abort=can_abort,
        )
        decision = await self._decide(transactional_id, event)
        return decision.producer_id, decision.producer_epoch

    # --- Requests of tools ------------------------------------------------------------------------------

    async def describe(self, transactional_id: str) -> Transaction:
        """Return the state of an id. Raises TransactionalIdNotFound, NotCoordinator, CoordinatorNotAvailable."""
        self.routing.check(transactional_id)
        saved = await self.states.read(transactional_id)
        if saved is None:
            raise TransactionalIdNotFound
        return saved.transaction

    async def listed(self, is_wanted: Callable[[str], bool]) -> list[tuple[str, Transaction]]:
        """Return the wanted ones of the ids that this broker coordinates, sorted, with their states.

        Unreadable documents are logged and left out.
        """
        found: list[tuple[str, Transaction]] = []
        own = []
        time_slices = TimeSlices()
        for each in sorted(await self.storage.documents(TRANSACTION)):
            if self.routing.coordinates(each) and is_wanted(each):
                own.append(each)
            await time_slices.next()
        for start in range(0, len(own), SLICE):
            part = own[start : start + SLICE]
            states = await in_parallel(self._read_or_none, part)
            found += [
                (name, saved.transaction)
                for name, saved in zip(part, states, strict=True)
                if saved is not None
            ]
        return found

    async def _read_or_none(self, transactional_id: str) -> Saved | None:
        try:
            return await self.states.read(transactional_id)
        except Unreadable:
            return None

    # --- Metrics ----------------------------------------------------------------------------------------

    @property
    def ending(self) -> int:
        """The number of transactions whose markers this process writes."""
        return len(self._endings)

    @property
    def waiting_markers(self) -> int:
        """The number of markers, and of groups to be settled, that are left of these transactions."""
        return sum(len(each.partitions) + len(each.groups) for each in self._endings.values())

    async def open_since(self) -> list[int]:
        """Return the starts of the open transactions that this process has begun, in milliseconds since 1970.

        Another process may have ended them. At most OPEN_READ documents are read to find out, the oldest ones first.
        """
        oldest = list(self.counts.open)[:OPEN_READ]
        for name, saved in zip(oldest, await in_parallel(self._read_or_none, oldest), strict=True):
            self.counts.seen(name, None if saved is None else saved.transaction)
        return [started_ms for _, started_ms in self.counts.open.values()]

    # --- Deciding ---------------------------------------------------------------------------------------

    async def _decide(self, transactional_id: str, event: Event) -> Decision:
        """Return the saved decision on an event, and schedule what follows from it. Raises the error that it has."""
        try:
            decision = await self.states.decide(transactional_id, event)
        except ConcurrentTransactions:
            self._continue(transactional_id)
            raise
        self._unsure.discard(transactional_id)
        self._follow(transactional_id, decision)
        if decision.error is not None:
            raise decision.error
        return decision

    async def _decide_after_end(self, transactional_id: str, event: Event, wait_ms: int) -> Decision:
        """Decide as `_decide` does, and again while a transaction ends, until `wait_ms` have passed."""
        give_up_s = trio.current_time() + wait_ms / 1000
        pause_s = FIRST_POLL_S
        while True:
            try:
                return await self._decide(transactional_id, event)
            except ConcurrentTransactions:
                if trio.current_time() >= give_up_s:
                    raise
            if (ending := self._endings.get(transactional_id)) is not None:
                with trio.move_on_at(give_up_s):
                    await ending.done.wait()
            else:
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_POLL_S)

    def _follow(self, transactional_id: str, decision: Decision) -> None:
        """Schedule what this process has to do for an id, and cancel what earlier states have required."""
        transaction = decision.state
        self.counts.seen(transactional_id, transaction)
        if transaction.is_prepared:
            self._follow_prepared(transactional_id, decision)
            return
        self._end_ending(transactional_id)
        if transaction.state is State.ONGOING:
            self._arm(transactional_id, transaction)
        else:
            self._due.clear(transactional_id)

    def _follow_prepared(self, transactional_id: str, decision: Decision) -> None:
        """End a transaction that this process has prepared, or take it over if the process that did may have gone."""
        ending = self._endings.get(transactional_id)
        if decision.is_saved:
            self._end_ending(transactional_id)
            self._endings[transactional_id] = Ending(transactional_id, decision.state)
            self._look_in(transactional_id, 0)
        elif ending is None or ending.transaction.number != decision.state.number:
            self._end_ending(transactional_id)
            if self.routing.runs_here(transactional_id):
                self._look_again(transactional_id)

    def _arm(self, transactional_id: str, transaction: Transaction) -> None:
        """Schedule the timeout of an open transaction."""
        self._look_in(transactional_id, transaction.ends_ms - self.clock())

    def _continue(self, transactional_id: str) -> None:
        """End a prepared transaction that a request has found, if this process owns it."""
        if transactional_id in self._endings or not self.routing.runs_here(transactional_id):
            return
        known = self.states.known(transactional_id)
        if known is not None and known.is_prepared:
            self._look_in(transactional_id, 0)

    # --- Work -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """End transactions, abort those that time out, and continue what other processes have left, forever."""
        self._looking.clear()
        self._missed.clear()
        for transactional_id in self._endings:
            self._look_in(transactional_id, 0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._sweep)
            await self._work(nursery)

    async def _work(self, nursery: trio.Nursery) -> None:
        free = trio.Semaphore(AT_ONCE)
        while True:
            while (transactional_id := self._due.pop(current_ms())) is not None:
                if transactional_id in self._looking:
                    self._missed.add(transactional_id)
                    continue
                self._looking.add(transactional_id)
                await free.acquire()
                nursery.start_soon(self._look_and_release, transactional_id, free)
            with trio.move_on_at(self._due.next_ms / 1000):
                await self._earlier.wait()
            self._earlier = trio.Event()

    async def _look_and_release(self, transactional_id: str, free: trio.Semaphore) -> None:
        try:
            await self._look_or_log(transactional_id)
        finally:
            free.release()
            self._looking.discard(transactional_id)
            if transactional_id in self._missed:
                self._missed.discard(transactional_id)
                self._look_in(transactional_id, 0)

    def _note_unsure(self, transactional_id: str) -> None:
        self._unsure.add(transactional_id)
        self._look_again(transactional_id)

    def _look_again(self, transactional_id: str) -> None:
        self._look_in(transactional_id, LOOK_AGAIN_MS)

    def _look_in(self, transactional_id: str, left_ms: float) -> None:
        """Schedule a look at the id in that time, instead of the one that is scheduled."""
        self._due.set(transactional_id, current_ms() + max(left_ms, 0))
        self._earlier.set()

    async def _look_or_log(self, transactional_id: str) -> None:
        try:
            await self._look(transactional_id)
        except Unreadable:
            return  # and was logged: the next sweep or request looks again
        except KafkaError as error:
            fields = {"_id": quoted(transactional_id), "error": error.message}
            logger.warning("transactional id %(_id)s: its transaction has to wait: %(error)s", fields)
            self._look_again(transactional_id)
        except BaseException:
            self._look_again(transactional_id)  # when `run` is started again
            raise

    async def _look(self, transactional_id: str) -> None:
        """Do what the state of an id requires of this process now."""
        ending = self._endings.get(transactional_id)
        if ending is not None:
            await self._end_round(transactional_id, ending)
            return
        saved = await self.states.read(transactional_id)
        self.counts.seen(transactional_id, None if saved is None else saved.transaction)
        if saved is not None and saved.transaction.state is State.ONGOING:
            await self._time_out(transactional_id)
        elif saved is not None and saved.transaction.is_prepared:
            await self._take_over(transactional_id)
        else:
            self._unsure.discard(transactional_id)

    async def _take_over(self, transactional_id: str) -> None:
        """End a prepared transaction, as its owner, or because this process may have prepared it itself."""
        if transactional_id not in self._unsure:
            if not self.routing.runs_here(transactional_id):
                return
            self.routing.check(transactional_id)
        await self._decide(transactional_id, TakeOver())

    async def _time_out(self, transactional_id: str) -> None:
        decision = await self._decide(transactional_id, TimeOut())
        if decision.is_saved:
            self.counts.timeouts += 1
            fields = {
                "_id": quoted(transactional_id),
                "transactional_id": transactional_id,
                "timeout_ms": decision.state.timeout_ms,
            }
            logger.info(
                "transactional id %(_id)s: its transaction is aborted, it was open for %(timeout_ms)d ms",
                fields,
            )

    # --- Ending -----------------------------------------------------------------------------------------

    def _end_ending(self, transactional_id: str) -> None:
        if (ending := self._endings.pop(transactional_id, None)) is not None:
            ending.done.set()

    async def _end_round(self, transactional_id: str, ending: Ending) -> None:
        """Write markers that are left, and save that the transaction is complete, or schedule the next round."""
        try:
            is_done = await ending.run_round(self.storage)
        except Fenced:
            self._end_ending(transactional_id)
            self._look_again(transactional_id)
            return
        if not is_done:
            self._look_in(transactional_id, ending.pause_ms)
            return
        try:
            decision = await self._decide(transactional_id, Complete(ending.transaction.number))
        except InvalidProducerIdMapping:  # the store has lost the document
            self._end_ending(transactional_id)
            return
        if decision.is_saved:
            self.counts.ended(ending.result, trio.current_time() - ending.began_s)

    # --- Sweeps -----------------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        """Look at all ids that this process owns, and again after each change of the membership."""
        while True:
            changed, began_s = self.routing.changed, trio.current_time()
            try:
                await self._sweep_once()
            except KafkaError as error:
                logger.warning("the transactional ids cannot be read: %(error)s", {"error": error.message})
                pause_s = LOOK_AGAIN_MS / 1000
            else:
                pause_s = max(SWEEP_S, SWEEP_PAUSES * (trio.current_time() - began_s))
            with trio.move_on_after(pause_s):
                await changed.wait()

    async def _sweep_once(self) -> None:
        ids = await self.storage.documents(TRANSACTION)
        own = [each for each in ids if self.routing.runs_here(each)]
        for start in range(0, len(own), SLICE):
            await in_parallel(self._visit, own[start : start + SLICE])
            await trio.lowlevel.checkpoint()

    async def _visit(self, transactional_id: str) -> None:
        """Schedule a look at an id that needs one, and delete one that has expired."""
        try:
            saved = await self.states.read(transactional_id)
            if saved is not None:
                await self._schedule(transactional_id, saved)
        except Unreadable:
            return
        except KafkaError:
            self._look_again(transactional_id)

    async def _schedule(self, transactional_id: str, saved: Saved) -> None:
        transaction = saved.transaction
        if transaction.state is State.ONGOING:
            self._arm(transactional_id, transaction)
        elif transaction.is_prepared and transactional_id not in self._endings:
            self._look_in(transactional_id, 0)
        elif transaction.state in REMOVABLE and self._has_expired(transaction):
            await self.states.delete(transactional_id, saved)

    def _has_expired(self, transaction: Transaction) -> bool:
        return self.clock() - transaction.updated_ms >= self.config.transactional_id_expiration_ms
