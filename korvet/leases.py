"""Leases: of several brokers on one store, one does what one is enough for.

A lease is a document in the store. Whoever holds it writes it anew every third of `LEASE_S`, by compare-and-set, so its
version rises for as long as the holder is well. Nobody compares clocks: whoever wants the lease watches the version,
and takes it over, by compare-and-set on that very version, when it has not risen for `LEASE_S` by the watcher's own
clock. The holder goes by its own, too, and counts from before the renewal that succeeded last; it stops when three
quarters of the time are over, so it has stopped before anybody can have taken over.

Unless it was paused. A process that stood still (a laptop's lid, SIGSTOP, a virtual machine that moved) may have sent
a command that arrives when the lease is long another's, and finds out only afterwards. No lease can prevent that, so
what is done under one has to bear it: every step is fenced by the store itself, or does no harm when two do it.

    retention           each step drops what retention gives up by the store's clock; twice is as once
    compaction          each step names its run, and is refused once another run has begun (`Storage.compact`)
    expired positions   each group's document is saved by compare-and-set; positions that expired are expired for both

In memory there is one broker, which gets its lease at once.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable

import trio
from attrs import define, field

from korvet.protocol.errors import KafkaError
from korvet.storage.interface import DocumentConflict, Storage

logger = logging.getLogger(__name__)

KIND = "lease"
LEASE_S = 30.0
FREE = b""
RELEASE_LIMIT_S = 1.0


@define(eq=False)
class Lease:
    """One that is held: what stands in its document, and which version of that is ours."""

    name: str
    token: bytes
    version: int
    renewed_s: float  # on Trio's clock: when the renewal began that succeeded last


@define(eq=False)
class Leases:
    """The leases of one broker."""

    storage: Storage
    lease_s: float = LEASE_S
    holder: str = field(factory=lambda: secrets.token_hex(8))

    async def while_held(
        self,
        name: str,
        work: Callable[[], Awaitable[None]],
        found_rival: Callable[[], None] = lambda: None,
    ) -> None:
        """Wait until the lease of that name is ours, run `work`, and give the lease back.

        Calls `found_rival` once if another broker renews the lease while this one waits.

        Returns when `work` does, and when the lease is lost: `work` is then cancelled. What `work` raises arrives in an
        exception group.
        """
        lease = await self._acquire(name, found_rival)
        logger.debug("lease %r is held", name)
        try:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._keep, lease, scope)
                    await work()
                    nursery.cancel_scope.cancel()
            if scope.cancelled_caught:
                logger.warning("lease %r is lost; another broker may have it", name)
        finally:
            with trio.move_on_after(RELEASE_LIMIT_S, shield=True):
                await self._release(lease)

    async def _acquire(self, name: str, found_rival: Callable[[], None]) -> Lease:
        token = f"{self.holder} {secrets.token_hex(8)}".encode()
        seen, since_s = -1, 0.0
        has_rival = False
        while True:
            now_s = trio.current_time()
            try:
                document = await self.storage.load(KIND, name)
                version = 0 if document is None else document.version
                is_free = document is None or document.value == FREE
                if is_free or (version == seen and now_s - since_s >= self.lease_s):
                    new = await self.storage.save(KIND, name, token, expected_version=version)
                    return Lease(name, token, new, now_s)
                if version != seen:
                    if seen >= 0 and not has_rival:
                        has_rival = True
                        found_rival()
                    seen, since_s = version, trio.current_time()
            except DocumentConflict:
                continue
            except KafkaError as error:
                logger.debug("lease %r cannot be asked for: %s", name, error.message)
            await trio.sleep(self.lease_s / 3)

    async def _keep(self, lease: Lease, scope: trio.CancelScope) -> None:
        """Renew it for as long as that succeeds; end `scope` before anybody else can have it."""
        while True:
            scope.deadline = lease.renewed_s + self.lease_s * 3 / 4
            await trio.sleep_until(lease.renewed_s + self.lease_s / 3)
            if not await self._renew(lease):
                scope.cancel()
                return

    async def _renew(self, lease: Lease) -> bool:
        """Whether it is still ours. Tries for as long as the store is away: the deadline ends that."""
        while True:
            began_s = trio.current_time()
            try:
                lease.version = await self.storage.save(
                    KIND, lease.name, lease.token, expected_version=lease.version
                )
            except DocumentConflict:
                # By ourselves, perhaps: a renewal may have arrived although its answer did not.
                if not await self._is_ours(lease):
                    return False
            except KafkaError:
                await trio.sleep(self.lease_s / 30)
            else:
                lease.renewed_s = began_s
                return True

    async def _is_ours(self, lease: Lease) -> bool:
        try:
            document = await self.storage.load(KIND, lease.name)
        except KafkaError:
            return True  # nobody knows; the next attempt will tell
        if document is None or document.value != lease.token:
            return False
        lease.version = document.version
        return True

    async def _release(self, lease: Lease) -> None:
        """Let others have it at once. The document stays: its versions must never come again."""
        try:
            await self.storage.save(KIND, lease.name, FREE, expected_version=lease.version)
        except (DocumentConflict, KafkaError) as error:
            logger.debug("lease %r was not given back: %s", lease.name, error)
