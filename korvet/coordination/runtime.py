"""Run state machines that have a key: hold them in memory, save them in the store, and call them in time.

A machine (`Machine`) is pure and takes the time as an argument. It is loaded from its document on the first request and
stays in memory from then on. Changes are saved by compare-and-set before any answer is sent. One save of a machine is
in flight at a time, and the next one has all changes that arrived in the meantime; each request waits for the save that
has its change. If a save fails, the runtime drops the machine from memory, answers waiting requests with a retriable
error, and loads the stored machine on the next request. This one mechanism covers an unavailable store, another broker
that ran the machine, and a broker that was killed.

`Routing` says whether this process runs a key. When that changes, the runtime drops the machines that it has lost,
answers their waiting requests with NOT_COORDINATOR, and loads those that it has gained. A broker that loads a machine
saves its document once and begins an epoch (`Documents.fence`), so that the store rejects what the previous coordinator
has sent and the network, or a pause of that broker, has delayed: its documents by their versions, its other writes by
their epoch. A broker whose session has ended, which others may have declared dead, runs no machine until it has renewed
its registration, and then loads its machines again (`Membership.tenure`).

A machine may permit writes to the store by others than itself (`Held.writing`), which do not wait for each other. A
save that forbids them waits until those in flight have ended.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from heapq import heappop, heappush
from typing import Any, Generic, Protocol, TypeVar

import trio
from attrs import define, field, frozen

from korvet.concurrency.tasks import in_parallel
from korvet.coordination.deadlines import NEVER
from korvet.coordination.routing import Routing
from korvet.protocol.errors import CoordinatorNotAvailable, ErrorCode, KafkaError, NotCoordinator
from korvet.protocol.text import quoted
from korvet.storage.interface import DocumentConflict, Storage
from korvet.storage.parts import Parted

logger = logging.getLogger(__name__)

# After a machine could not be saved, load it again after this time unless a request loads it before.
LOOK_AGAIN_MS = 5000

# A context manager that bounds a wait, as `Broker.parked` does. The argument is the maximum in seconds.
Parked = Callable[[float], AbstractContextManager[object]]


class Machine(Protocol):
    """The state of one key. Its methods change it, and append the answers that this causes to `answers`."""

    @property
    def answers(self) -> list[tuple[object, Any]]:
        """Tickets of requests with their answers, to be sent after the next save. The runtime removes them."""

    @property
    def is_unsaved(self) -> bool:
        """True if the machine has changed since `written`."""

    @property
    def is_used(self) -> bool:
        """True if the machine has to stay in memory although it has no document."""

    @property
    def ends_writes(self) -> bool:
        """True if the next save forbids writes that the last one has permitted."""

    @property
    def wake_ms(self) -> float:
        """The earliest time at which `tick` may have something to do."""

    def tick(self, now_ms: float) -> None:
        """Handle all timeouts that have passed."""

    def resume(self, now_ms: float) -> None:
        """Start the timeouts of a machine that was loaded."""

    def written(self) -> bytes | Parted:
        """Return the machine's document, or its head and changed parts, which are about to be saved."""

    def give_up(self, error_code: ErrorCode) -> None:
        """Answer all waiting requests with the error, also those that `answers` has another answer for."""


M = TypeVar("M", bound=Machine)


@frozen
class Machines(Generic[M]):
    """The machines of one kind of documents.

    `read` gets a document and its parts. It raises the KafkaError that answers requests for the key.

    `fatal` are the errors that end a client for good. A coordinator that was replaced must not answer them from memory,
    so the runtime looks before whether another broker has saved the machine.
    """

    kind: str
    new: Callable[[str], M]
    read: Callable[[str, bytes, Mapping[str, bytes]], M]
    fatal: tuple[type[KafkaError], ...] = ()


@define(eq=False)
class Ticket:
    """The ticket of a request that waits for its answer in a machine."""

    answer: Any = None
    _answered: trio.Event = field(factory=trio.Event)

    def set(self, answer: object) -> None:
        """Store the answer and wake the waiting request."""
        self.answer = answer
        self._answered.set()

    async def wait(self, parked: Parked) -> Any:
        """Return the answer, or None if `parked` ended the wait."""
        # No limit is needed here: one of the machine's own timeouts ends every wait in it.
        if self.answer is None:
            with parked(math.inf):
                await self._answered.wait()
        return self.answer


@define(eq=False)
class Held(Generic[M]):
    """A machine in memory, and the state of its saved document."""

    key: str
    machine: M
    tenure: int  # the one of this broker in which the machine was loaded
    lock: trio.Lock = field(factory=trio.Lock)
    is_alone: bool = False  # one request has the machine for itself
    is_loaded: bool = False
    version: int = 0  # of the document; 0 if there is none
    epoch: int = 0  # of this broker as the key's coordinator
    armed_ms: float = NEVER  # time for which `run` has scheduled the machine
    is_deleted: bool = False
    lost: type[KafkaError] | None = None  # why the machine was dropped
    begun: int = 0  # saves that have begun
    saved: int = 0  # saves that have succeeded
    is_saving: bool = False
    writes: int = 0  # in flight to the store, permitted by the machine
    _unsent: list[tuple[int, object, Any]] = field(factory=list)  # the save that has each answer's change
    _has_saved: trio.Event = field(factory=trio.Event)
    _quiet: trio.Event | None = None  # set when no write is in flight; None if no task waits for that

    @property
    def exists(self) -> bool:
        """True if clients can see the machine: it was saved, or is used."""
        return self.version > 0 or self.machine.is_used

    @property
    def is_saved(self) -> bool:
        """True if the store has all changes."""
        return self.saved == self.begun and not self.machine.is_unsaved

    def is_at_rest(self, now_ms: float) -> bool:
        """Return True if the machine is loaded and saved, no request holds it and no timeout has passed."""
        return self.is_loaded and not self.lock.locked() and self.is_saved and now_ms < self.machine.wake_ms

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Count a write to the store while the block runs. The machine, as it was saved, permits it."""
        self.begin_write()
        try:
            yield
        finally:
            self.end_write()

    def begin_write(self) -> None:
        """Count a write, as `writing` does, until `end_write`."""
        self.writes += 1

    def end_write(self) -> None:
        """Note that a write has ended."""
        self.writes -= 1
        if not self.writes and self._quiet is not None:
            self._quiet.set()
            self._quiet = None

    async def without_writes(self) -> None:
        """Wait until no write is in flight. The caller prevents new ones."""
        while self.writes:
            self._quiet = self._quiet or trio.Event()
            await self._quiet.wait()

    # --- For the runtime --------------------------------------------------------------------------------

    def settle(self, now_ms: float) -> int:
        """Handle timeouts, and keep the answers back. Return the number of the save that has all changes so far."""
        machine = self.machine
        machine.tick(now_ms)
        number = self.begun + machine.is_unsaved
        if machine.answers:
            self._unsent += [(number, ticket, answer) for ticket, answer in machine.answers]
            machine.answers.clear()
        return number

    def send(self) -> None:
        """Send the answers whose changes are saved."""
        if not self._unsent:
            return
        unsent, self._unsent = self._unsent, []
        for each in unsent:
            number, ticket, answer = each
            if number <= self.saved:
                notify(ticket, answer)
            else:
                self._unsent.append(each)

    def give_up(self, error: type[KafkaError]) -> None:
        """Answer all waiting requests with the error."""
        machine = self.machine
        machine.answers[:0] = [(ticket, answer) for _, ticket, answer in self._unsent]
        self._unsent.clear()
        machine.give_up(error.error_code)
        for ticket, answer in machine.answers:
            notify(ticket, answer)
        machine.answers.clear()
        self.lost = self.lost or error

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Let other requests wait for a save while the block runs."""
        self.is_saving = True
        try:
            yield
        finally:
            self.is_saving = False
            self._has_saved.set()
            self._has_saved = trio.Event()

    async def wait_saved(self) -> None:
        """Wait until the save of another request has ended."""
        await self._has_saved.wait()


@define(eq=False)
class Runtime(Generic[M]):
    """See the module."""

    machines: Machines[M]
    storage: Storage
    routing: Routing
    held: dict[str, Held[M]] = field(factory=dict)
    _due: list[tuple[float, str]] = field(
        factory=list
    )  # a heap of (ms, key); `run` skips an entry whose time is no longer the machine's armed_ms
    _earlier: trio.Event = field(factory=trio.Event)
    _dropped: set[str] = field(factory=set)  # keys to be loaded again within LOOK_AGAIN_MS

    # --- Holding a machine ------------------------------------------------------------------------------

    def at_rest(self, key: str, now_ms: float) -> Held[M] | None:
        """Return the machine if a call needs neither `hold` nor a save, provided that it leaves nothing to save."""
        held = self.held.get(key)
        if held is not None and held.is_at_rest(now_ms) and self._is_current(held):
            return held
        return None

    @asynccontextmanager
    async def hold(self, key: str) -> AsyncIterator[Held[M]]:
        """Hold the machine for the block, which has no checkpoint. Then save its changes and send the answers.

        Raises NotCoordinator if another broker coordinates the key, CoordinatorNotAvailable if this broker's session
        has ended, and the errors of `Machines.read` and of the storage.
        """
        held = await self._acquire(key)
        try:
            try:
                yield held
            finally:
                try:
                    number = held.settle(current_ms())
                finally:
                    held.lock.release()
                await self._finish(held, number)
        except self.machines.fatal:
            await self._confirm(held)
            raise
        finally:
            self._release(held)

    @asynccontextmanager
    async def hold_alone(self, key: str) -> AsyncIterator[Held[M]]:
        """Hold the machine as `hold` does, for a block with checkpoints.

        All earlier changes are saved when it begins, and no other request or write begins before it ends.
        """
        held = await self._acquire(key)
        held.is_alone = True
        try:
            try:
                await self._finish(held, held.settle(current_ms()))
                yield held
            finally:
                if not held.is_deleted:
                    await self._finish(held, held.settle(current_ms()))
        finally:
            held.is_alone = False
            held.lock.release()
            self._release(held)

    async def delete(self, held: Held[M]) -> None:
        """Delete the document of a machine that the caller holds alone, and remove the machine from memory."""
        if held.version:
            await self._write(held, None)
        del self.held[held.key]
        held.is_deleted = True

    async def _acquire(self, key: str) -> Held[M]:
        """Return the loaded machine. The caller holds its lock."""
        while True:
            self.routing.check(key)
            held = self.held.get(key)
            if held is None:
                held = self.held[key] = Held(key, self.machines.new(key), self.routing.tenure)
            await held.lock.acquire()
            try:
                if self.held.get(key) is held and not self._is_current(held):
                    self.drop(held)
                if self.held.get(key) is not held:  # dropped or deleted
                    held.lock.release()
                    continue
                if not held.is_loaded:
                    await self._load(held)
            except BaseException:
                held.lock.release()
                self._release(held)
                raise
            return held

    def _release(self, held: Held[M]) -> None:
        """Remove a machine that does not exist from memory."""
        # Requests with made-up keys must not fill the memory.
        if held.is_loaded and (held.exists or held.writes or not held.is_saved):
            return
        if self.held.get(held.key) is held:
            del self.held[held.key]

    async def _load(self, held: Held[M]) -> None:
        kind, key = self.machines.kind, held.key
        stored = await self.storage.load_parts(kind, key)
        if stored is not None:
            document, parts = stored
            held.machine = self.machines.read(key, document.value, parts)
            held.version = document.version
            await self._write(held, Parted(document.value, {}) if parts else document.value)
            held.epoch = await self.storage.fence(kind, key)
            held.machine.resume(current_ms())
        held.is_loaded = True

    async def _confirm(self, held: Held[M]) -> None:
        """Raise NotCoordinator, and drop the machine, if another broker has saved it since."""
        kind, key = self.machines.kind, held.key
        known, found = -1, 0
        while known != held.version or held.is_saving:
            while held.is_saving:
                await held.wait_saved()
            known = held.version
            document = await self.storage.load(kind, key)
            found = 0 if document is None else document.version
        if found != known:
            self.drop(held, NotCoordinator)
            raise NotCoordinator(f"{kind} {quoted(key)} was saved by another broker")

    def _is_current(self, held: Held[M]) -> bool:
        """Return True if this broker has been in session since it loaded the machine."""
        return self.routing.is_in_tenure(held.tenure)

    # --- Saving -----------------------------------------------------------------------------------------

    async def _finish(self, held: Held[M], number: int) -> None:
        """Wait for the save with that number, then send the answers. Drop the machine if it cannot be saved."""
        try:
            while held.saved < number and held.lost is None:
                if held.is_saving:
                    await held.wait_saved()
                else:
                    await self._save(held)
        except BaseException:
            self.drop(held)
            raise
        if held.lost is None and not self._is_current(held):
            self.drop(held, NotCoordinator)
        if held.lost is not None:
            raise held.lost
        held.send()
        self._arm(held)

    async def _save(self, held: Held[M]) -> None:
        with held.saving():
            while held.machine.ends_writes and held.writes:
                await held.without_writes()
            held.begun += 1
            await self._write(held, held.machine.written())
            held.saved = held.begun

    async def _write(self, held: Held[M], document: bytes | Parted | None) -> None:
        kind, key, version = self.machines.kind, held.key, held.version
        try:
            if isinstance(document, Parted):
                head, changes = document.head, document.changes
                version = await self.storage.save_parts(kind, key, head, changes, expected_version=version)
            else:
                version = await self.storage.save(kind, key, document, expected_version=version)
            held.version = version
        except DocumentConflict:
            fields = {"_kind": kind, "_key": quoted(key), kind: key}
            logger.warning("%(_kind)s %(_key)s was saved by another broker; it is loaded again", fields)
            self.drop(held, NotCoordinator)
            raise NotCoordinator(f"{kind} {quoted(key)} was coordinated by another broker") from None

    def drop(self, held: Held[M], error: type[KafkaError] = CoordinatorNotAvailable) -> None:
        """Remove a machine from memory and answer its waiting requests with the error."""
        held.give_up(error)
        if self.held.get(held.key) is held:
            del self.held[held.key]
            self._check_again(held.key)

    # --- Membership -------------------------------------------------------------------------------------

    async def own_keys(self) -> list[str]:
        """Return the keys that this process runs, sorted; possibly also some that do not exist."""
        found = {*await self.storage.documents(self.machines.kind), *self.held}
        return [key for key in sorted(found) if self.routing.runs_here(key)]

    async def run(self) -> None:
        """Load all saved machines, again after each change of the membership, and handle their timeouts, forever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_membership)
            await self._handle_timeouts()

    async def _follow_membership(self) -> None:
        while True:
            changed = self.routing.changed
            for key, held in list(self.held.items()):
                if not (self._is_current(held) and self.routing.coordinates(key)):
                    self.drop(held, NotCoordinator)
            try:
                await in_parallel(self._load_if_possible, await self.own_keys())
            except KafkaError:
                fields = {"_kind": self.machines.kind}
                logger.warning(
                    "the store cannot be read; %(_kind)ss are loaded when they are requested", fields
                )
            await changed.wait()

    async def _load_if_possible(self, key: str) -> None:
        try:
            async with self.hold(key):
                pass
        except (CoordinatorNotAvailable, NotCoordinator):
            pass

    # --- Time -------------------------------------------------------------------------------------------

    async def _handle_timeouts(self) -> None:
        while True:
            with trio.move_on_at(self._due[0][0] / 1000 if self._due else math.inf):
                await self._earlier.wait()
            self._earlier = trio.Event()
            due: list[str] = []
            while self._due and self._due[0][0] <= current_ms():
                armed_ms, key = heappop(self._due)
                held = self.held.get(key)
                if held is None or held.armed_ms == armed_ms:
                    due.append(key)
            await in_parallel(self._check, due)

    def _arm(self, held: Held[M]) -> None:
        """Schedule the machine for its next timeout."""
        if held.machine.wake_ms < held.armed_ms:
            held.armed_ms = held.machine.wake_ms
            self._push(held.armed_ms, held.key)

    def _push(self, due_ms: float, key: str) -> None:
        heappush(self._due, (due_ms, key))
        if self._due[0][0] >= due_ms:
            self._earlier.set()

    def _check_again(self, key: str) -> None:
        """Schedule a dropped machine to be loaded again: its timeouts may pass."""
        if key not in self._dropped:
            self._dropped.add(key)
            self._push(current_ms() + LOOK_AGAIN_MS, key)

    async def _check(self, key: str) -> None:
        """Handle the timeouts of a machine that have passed."""
        self._dropped.discard(key)
        held = self.held.get(key)
        if not self.routing.coordinates(key):  # the coordinator handles them
            if held is not None:
                self.drop(held, NotCoordinator)
            return
        if held is not None:
            held.armed_ms = NEVER
        try:
            async with self.hold(key):
                pass  # `settle` at the end of the block calls `tick`
        except NotCoordinator:
            pass  # since the membership has changed
        except KafkaError as error:
            if not self.routing.is_in_session:
                return  # it is loaded again when the session begins again
            kind = self.machines.kind
            fields = {"_kind": kind, "_key": quoted(key), kind: key, "error": error.message}
            logger.warning("%(_kind)s %(_key)s: its timeouts could not be handled: %(error)s", fields)
            self._check_again(key)


def current_ms() -> int:
    """Return Trio's time in whole milliseconds."""
    # Round up: after a sleep the result must not be below the deadline that the sleep has just reached.
    return math.ceil(trio.current_time() * 1000 - 1e-6)


def notify(ticket: object, answer: object) -> None:
    """Send an answer, if a request waits for it."""
    if isinstance(ticket, Ticket):
        ticket.set(answer)
