"""Leases: elect one of the brokers that share a store to run a singleton job.

A lease is a document in the store. The holder rewrites it every third of `LEASE_S`, by compare-and-set, so the version
of the document rises while the holder is alive. Brokers do not compare clocks. A broker that waits for the lease
watches the version. If the version has not risen for `LEASE_S` on the watcher's clock, the watcher takes the lease by
compare-and-set on that version. The holder uses its own clock as well, and counts from the start of its last successful
renewal. It stops after three quarters of `LEASE_S`, so it has stopped before another broker can take the lease.

The exception is a holder that was paused (a closed laptop, SIGSTOP, a virtual machine that moved). It may have sent a
command that arrives after another broker took the lease, and detects the loss only afterwards. No lease can prevent
that. So every step of a job under a lease is either fenced by the store itself or harmless when two brokers do it:

    retention           each step drops the records that are expired by the store's clock; repeating it drops no others
    compaction          each step names its run, and is rejected once another run has begun (`Storage.compact`)
    hanging             it changes nothing; both brokers log what they find

With the storage in memory there is one broker, which gets its leases immediately.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable

import trio
from attrs import define, field

from korvet.protocol.errors import KafkaError
from korvet.storage.interface import DocumentConflict, Documents

logger = logging.getLogger(__name__)

KIND = "lease"
LEASE_S = 30.0
FREE = b""
RELEASE_LIMIT_S = 1.0


@define(eq=False)
class Lease:
    """A lease that this broker holds: the value of its document, and the version that this broker wrote."""

    name: str
    token: bytes
    version: int
    renewed_s: float  # Trio time at which the last successful renewal began


@define(eq=False)
class Leases:
    """The leases of one broker."""

    storage: Documents
    lease_s: float = LEASE_S
    holder: str = field(factory=lambda: secrets.token_hex(8))

    async def while_held(
        self,
        name: str,
        work: Callable[[], Awaitable[None]],
    ) -> None:
        """Wait until this broker has the lease of that name, run `work`, and release the lease.

        Return when `work` does. If the lease is lost, cancel `work` and return. An exception of `work` is raised in an
        exception group.
        """
        lease = await self._acquire(name)
        logger.debug("lease %(lease)r is held", {"lease": name})
        try:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._keep, lease, scope)
                    await work()
                    nursery.cancel_scope.cancel()
            if scope.cancelled_caught:
                logger.warning("lease %(lease)r is lost; another broker may have it", {"lease": name})
        finally:
            with trio.move_on_after(RELEASE_LIMIT_S, shield=True):
                await self._release(lease)

    async def _acquire(self, name: str) -> Lease:
        token = f"{self.holder} {secrets.token_hex(8)}".encode()
        seen, since_s = -1, 0.0
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
                    seen, since_s = version, trio.current_time()
            except DocumentConflict:
                continue
            except KafkaError as error:
                fields = {"lease": name, "error": error.message}
                logger.debug("lease %(lease)r cannot be read or acquired: %(error)s", fields)
            await trio.sleep(self.lease_s / 3)

    async def _keep(self, lease: Lease, scope: trio.CancelScope) -> None:
        """Renew the lease while that succeeds. Cancel `scope` before another broker can take the lease."""
        while True:
            scope.deadline = lease.renewed_s + self.lease_s * 3 / 4
            await trio.sleep_until(lease.renewed_s + self.lease_s / 3)
            if not await self._renew(lease):
                scope.cancel()
                return

    async def _renew(self, lease: Lease) -> bool:
        """Renew the lease once. Return False if another broker has taken it."""
        # Retry while the store is unavailable; the deadline of the scope in `_keep` limits that.
        while True:
            began_s = trio.current_time()
            try:
                lease.version = await self.storage.save(
                    KIND, lease.name, lease.token, expected_version=lease.version
                )
            except DocumentConflict:
                # The conflict may be with an earlier renewal of this broker whose response was lost.
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
            return True  # unknown; the next attempt finds out
        if document is None or document.value != lease.token:
            return False
        lease.version = document.version
        return True

    async def _release(self, lease: Lease) -> None:
        """Mark the lease as free, so that another broker can take it without waiting."""
        # Do not delete the document: versions would start again, and the command of a paused holder could match one.
        try:
            await self.storage.save(KIND, lease.name, FREE, expected_version=lease.version)
        except (DocumentConflict, KafkaError) as error:
            fields = {"lease": lease.name, "error": error}
            logger.debug("lease %(lease)r was not released: %(error)s", fields)
