"""Membership by registrations: a document for each broker, which it renews while it lives.

A broker rewrites its document every third of `broker.session.timeout.ms`, by compare-and-set, so that the version
rises. Brokers do not compare clocks (as in `korvet.maintenance.leases`). Another broker declares it dead once the
version has not risen for the whole session on that broker's clock: it marks the document as left, by compare-and-set on
the version that it has seen. The owner counts on its own clock, from the start of its last successful renewal, and
stops to act as a coordinator after three quarters of the session.

So the store decides between a renewal and a declaration of death, and all brokers read the same result. A broker that
was paused and returns either renews in time, or finds its document marked, gives up what it held, and registers again.
A command that a paused broker had sent may arrive later. The documents of groups and the epochs of their coordinators
reject it (`korvet.coordination.runtime`).

A document is marked instead of deleted: versions would begin again, and a late command could match one. The mark also
keeps the id of a broker for its restart: an id is assigned to the broker that had it with the same addresses, otherwise
the lowest one without a living broker.

The processes of one broker have one incarnation, and each of them renews the document; one of them registers it.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

import trio
from attrs import define, evolve, field, frozen

from korvet.cluster.membership import Membership, NodeIdTaken
from korvet.cluster.registration import FIRST_ID, Registration, UnreadableRegistration, read, written
from korvet.concurrency.background import background_nursery
from korvet.concurrency.tasks import in_parallel, supervise
from korvet.protocol.errors import KafkaError
from korvet.storage.interface import DocumentConflict, Documents

logger = logging.getLogger(__name__)

KIND = "broker"
LEAVE_LIMIT_S = 1.0
HAND_OVER_S = 0.25  # time in which the others read that this broker has left, while it still serves clients
SIBLING_POLL_S = 0.02


def new_incarnation() -> str:
    """Return a name for a run of a broker."""
    return secrets.token_hex(8)


@frozen
class BrokerProcess:
    """A process of a broker. All have the same incarnation, and one of them registers the broker."""

    incarnation: str = field(factory=new_incarnation)
    registers: bool = True


@frozen
class Stored:
    """A document of a registration: its version, and the registration, or None if it cannot be read."""

    version: int
    registration: Registration | None

    @property
    def living(self) -> Registration | None:
        """The registration, unless the broker has left."""
        found = self.registration
        return found if found is not None and found.is_living else None


@define(eq=False)
class RegisteredMembership(Membership):
    """Created by `registered`."""

    storage: Documents = field(kw_only=True)
    session_s: float = field(kw_only=True)
    _version: int = field(default=0, init=False)  # of this broker's document
    _renewed_s: float = field(default=0.0, init=False)  # Trio time at which the last successful renewal began
    # The last version of each other broker's document, and the Trio time at which it was first read.
    _seen: dict[int, tuple[int, float]] = field(factory=dict, init=False)
    _damaged: set[int] = field(factory=set, init=False)  # ids whose unreadable documents were logged
    _running: trio.CancelScope = field(factory=trio.CancelScope, init=False)

    # --- Registration -----------------------------------------------------------------------------------

    async def register(self, node_id: int | None) -> None:
        """Register this broker under the given id, or assign one. Raises NodeIdTaken and KafkaError."""
        while True:
            stored = await self._read_all()
            chosen = node_id if node_id is not None else self._free_id(stored)
            self.own = evolve(self.own, node_id=chosen)
            found = stored.get(chosen, Stored(0, None))
            if node_id is not None and (rival := self._rival(found)) is not None:
                found = await self._wait_for_end(found, rival)
            if found.living is not None and self._is_own(found.living):
                self.own = found.living  # this process has ended, and was started again
            try:
                await self._claim(found.version)
            except DocumentConflict:
                continue
            await self._announce()
            await self._observe()
            return

    async def join_sibling(self) -> None:
        """Wait until another process of this broker has registered it. Raises KafkaError."""
        while True:
            began_s = trio.current_time()
            for node_id, stored in (await self._read_all()).items():
                if stored.living is not None and self._is_own(stored.living):
                    self.own = stored.living
                    self._version = stored.version
                    # Not yet renewed by this process: its session begins with its first renewal.
                    self._session_ends_s = began_s
                    await self._renew()
                    await self._observe()
                    logger.debug("joined the registration of broker %(broker)d", {"broker": node_id})
                    return
            await trio.sleep(SIBLING_POLL_S)

    def _free_id(self, stored: Mapping[int, Stored]) -> int:
        """Return the id that a broker with these addresses had last, otherwise the lowest one that is free."""
        for node_id in sorted(stored):
            found = stored[node_id].registration
            if found is not None and found.addresses == self.own.addresses:
                return node_id
        node_id = FIRST_ID
        while node_id in stored and stored[node_id].living is not None:
            node_id += 1
        return node_id

    def _rival(self, stored: Stored) -> Registration | None:
        """Return the living broker of a document, unless its addresses show that it was a run of this broker."""
        found = stored.living
        is_other = found is not None and not self._is_own(found) and found.addresses != self.own.addresses
        return found if is_other else None

    def _is_own(self, found: Registration) -> bool:
        return found.incarnation == self.own.incarnation

    async def _wait_for_end(self, stored: Stored, rival: Registration) -> Stored:
        """Return the document once it was not renewed for a session. Raises NodeIdTaken if it is renewed."""
        began_s = trio.current_time()
        logger.info(
            "node.id %(broker)d is registered by the broker at %(address)s; waiting for up to %(seconds)g s"
            " whether it lives",
            {"broker": rival.node_id, "address": rival.address, "seconds": self.session_s},
        )
        while trio.current_time() < began_s + self.session_s:
            await trio.sleep(self.session_s / 30)
            now = await self._load(rival.node_id)
            if now.version == stored.version:
                continue
            if (living := self._rival(now)) is None:
                return now
            raise NodeIdTaken(
                f"node.id {living.node_id} is that of the broker at {living.address}, which runs since"
                f" {living.started}; accepted: another node.id, or none, so that one is assigned"
            )
        return stored

    async def _claim(self, version: int) -> None:
        """Write this broker's registration over the document of that version. Raises DocumentConflict."""
        began_s = trio.current_time()
        value = written(self.own)
        self._version = await self._save(self.node_id, value, version)
        self._renewed(began_s)

    # --- Renewal ----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Renew the registration and read those of the others, until this broker leaves or is replaced."""
        with self._running, self.storage.watch_documents(KIND) as changes:
            while self._is_member:
                pause_s = self.session_s / 3
                try:
                    if trio.current_time() >= self._renewed_s + pause_s:
                        await self._renew()
                    if not await self._observe():
                        await self._renew()
                        continue
                except KafkaError as error:
                    fields = {"error": error.message}
                    logger.debug("the registrations cannot be renewed and read: %(error)s", fields)
                    await self._confirm()
                    await trio.sleep(self.session_s / 30)
                    continue
                with trio.move_on_at(self._renewed_s + pause_s):
                    await changes.wait()

    @property
    def _is_member(self) -> bool:
        """True until this broker leaves or is replaced."""
        return self.replaced_by is None and not self._running.cancel_called

    async def _renew(self) -> None:
        """Renew the registration. If it is gone, register again and announce it; if it was taken, give up."""
        was_gone = False
        while self._is_member:
            try:
                await self._claim(self._version)
            except DocumentConflict:
                stored = await self._load(self.node_id)
                was_gone |= stored.living is None
                self._resolve(stored)
            else:
                break
        if was_gone:
            await self._announce()

    async def _confirm(self) -> None:
        """Extend the session a little if the store still has this registration, though it refuses to renew it.

        A full store refuses to declare this broker dead as well, so that its groups continue.
        """
        began_s = trio.current_time()
        with suppress(KafkaError):
            found = (await self._load(self.node_id)).living
            if self.is_in_session and found is not None and self._is_own(found):
                self._session_ends_s = max(self._session_ends_s, began_s + self.session_s / 4)

    def _resolve(self, stored: Stored) -> None:
        """Handle a conflict with the document that is stored now."""
        found = stored.living
        if found is not None and not self._is_own(found):
            self.replaced_by = found
            self._session_ends_s = 0
            self.ended.set()
            self._notify()
            return
        if found is None:
            logger.warning(
                "the registration of this broker is gone: another broker has declared it dead, or the store was emptied"
            )
            self._session_ends_s = 0
        self._version = stored.version

    def _renewed(self, began_s: float) -> None:
        """Begin or extend the session."""
        was_in_session = self.is_in_session
        if began_s - self._renewed_s > self.session_s * 3 / 4:
            # If the store was away or full, the others could not renew theirs either.
            self._seen.clear()
        self._renewed_s = began_s
        self._session_ends_s = began_s + self.session_s * 3 / 4
        if not was_in_session:
            self.tenure += 1
            self._notify()

    # --- Others -----------------------------------------------------------------------------------------

    async def _observe(self) -> bool:
        """Read all registrations, and declare brokers dead that have not renewed theirs for a session.

        Return False if this broker's own registration is gone.
        """
        living = {}
        stored = await self._read_all()
        for node_id, each in stored.items():
            found = each.living
            if found is None:
                continue
            if node_id != self.node_id and await self._is_dead(node_id, each.version, found):
                continue
            living[node_id] = found
        for node_id in self._seen.keys() - living.keys():
            del self._seen[node_id]
        known = {
            node_id: each.registration for node_id, each in stored.items() if each.registration is not None
        }
        if living and (living != self.living or known.keys() != self.known.keys()):
            self._log_changes(living)
            self._use(living, known)
        own = living.get(self.node_id)
        return own is not None and self._is_own(own)

    async def _is_dead(self, node_id: int, version: int, found: Registration) -> bool:
        """Return True if this broker could declare another one dead."""
        now_s = trio.current_time()
        seen, since_s = self._seen.get(node_id, (-1, 0.0))
        if version != seen:
            self._seen[node_id] = version, now_s
            return False
        if now_s - since_s < self.session_s:
            return False
        try:
            await self._save(node_id, written(evolve(found, is_living=False)), version)
        except DocumentConflict:
            return False  # the next look finds out
        logger.warning(
            "broker %(broker)d at %(address)s has not renewed its registration for %(seconds)g s:"
            " it is declared dead",
            {"broker": node_id, "address": found.address, "seconds": self.session_s},
        )
        await self._announce()
        return True

    def _log_changes(self, living: Mapping[int, Registration]) -> None:
        for node_id in sorted({*living, *self.living} - {self.node_id}):
            before, now = self.living.get(node_id), living.get(node_id)
            if before is None and now is not None:
                fields = {"broker": node_id, "address": now.address}
                logger.info("broker %(broker)d at %(address)s has joined the cluster", fields)
            elif before is not None and now is None:
                fields = {"broker": node_id, "address": before.address}
                logger.info("broker %(broker)d at %(address)s has left the cluster", fields)

    # --- The end ----------------------------------------------------------------------------------------

    async def leave(self) -> None:
        if self._running.cancel_called:
            return
        self._running.cancel()
        with trio.move_on_after(LEAVE_LIMIT_S, shield=True), suppress(KafkaError):
            while self.replaced_by is None:
                try:
                    await self._save(self.node_id, written(evolve(self.own, is_living=False)), self._version)
                except DocumentConflict:
                    now = await self._load(self.node_id)
                    if now.living is None or not self._is_own(now.living):
                        break  # another process of this broker was first
                    self._version = now.version
                else:
                    break
            await self._announce()
        self._session_ends_s = math.inf  # a broker without others coordinates its groups until it ends
        if self.others:
            self._use({each.node_id: each for each in self.others}, self.known)
            # Clients whose connections close ask another broker at once, which has to know by then.
            await trio.sleep(HAND_OVER_S)

    # --- Documents --------------------------------------------------------------------------------------

    async def _read_all(self) -> dict[int, Stored]:
        keys = [int(key) for key in await self.storage.documents(KIND) if key.isdecimal() and key.isascii()]
        found = await in_parallel(self._load, keys)
        return {key: each for key, each in zip(keys, found, strict=True) if each.version}

    async def _load(self, node_id: int) -> Stored:
        document = await self.storage.load(KIND, str(node_id))
        if document is None:
            return Stored(0, None)
        try:
            found = read(node_id, document.value)
        except UnreadableRegistration as error:
            if node_id not in self._damaged:
                self._damaged.add(node_id)
                fields = {"error": error, "broker": node_id}
                logger.error("%(error)s; it is ignored", fields)  # noqa: TRY400  the traceback adds nothing
            return Stored(document.version, None)
        return Stored(document.version, found)

    async def _save(self, node_id: int, value: bytes, version: int) -> int:
        return await self.storage.save(KIND, str(node_id), value, expected_version=version)

    async def _announce(self) -> None:
        with suppress(KafkaError):  # without the announcement, the other brokers notice it later
            await self.storage.announce(KIND)


@asynccontextmanager
async def registered(
    storage: Documents,
    own: Registration,
    *,
    node_id: int | None,
    session_s: float,
    registers: bool,
) -> AsyncIterator[RegisteredMembership]:
    """Register this broker for the block, under the given id or an assigned one.

    `registers` is False in all but one of the processes of a broker. Raises NodeIdTaken. The registration of a broker
    with one process ends with the block.
    """
    membership = RegisteredMembership(own, storage=storage, session_s=session_s)
    while True:
        try:
            await (membership.register(node_id) if registers else membership.join_sibling())
            break
        except KafkaError as error:
            logger.warning("the broker cannot register itself yet: %(error)s", {"error": error.message})
            await trio.sleep(session_s / 30)
    async with background_nursery() as nursery:
        await nursery.start(supervise, "registration", membership.run)
        try:
            yield membership
        finally:
            if own.processes == 1:
                await membership.leave()
