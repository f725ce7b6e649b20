"""Which process of a broker owns a key, such as a group's id: a hash of the key selects it.

The owner of a key does not change while the broker runs. If that process ends, the parent starts it again and it loads
its groups from the storage; until then requests get COORDINATOR_NOT_AVAILABLE, which clients retry. If two processes
ever coordinated the same group, the compare-and-set of its document would let only one of them succeed, as between
brokers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any
from zlib import crc32

from attrs import frozen

from korvet.concurrency.rpc import Link, LinkBroken, Parked, Question
from korvet.protocol.errors import CoordinatorNotAvailable


def owner_of(key: str, processes: int) -> int:
    """Return the index, from 0, of the process that owns a key."""
    return crc32(key.encode()) % processes


@frozen
class LinkedProcesses:
    """The processes of a broker. `index` is the index of this one; `links` has the RPC to each of the others."""

    index: int
    links: Mapping[int, Link]

    @property
    def others(self) -> Collection[int]:
        """The indexes of the other processes."""
        return self.links

    def owner(self, key: str) -> int:
        """Return the index of the process that owns a key."""
        return owner_of(key, len(self.links) + 1)

    async def ask(self, index: int, question: Question, parked: Parked | None = None) -> Any:
        """Return another process's answer. Raises CoordinatorNotAvailable if it does not run."""
        try:
            return await self.links[index].ask(question, parked)
        except LinkBroken as broken:
            raise CoordinatorNotAvailable(str(broken)) from None
