"""Producer ids for idempotent producers, unique among all brokers on one store.

A broker allocates ids from the store in blocks, by compare-and-set of a document that holds the end of the last block.
A block begins at the current time (`producer_id_at`) or at the end of the last block, whichever is later, plus a random
number. If the store lost the last blocks, for example by a failover to a replica that lagged, time has passed, so that
later blocks begin after the lost ones. Within the same 64 ms, only the random number makes them distinct. A broker
discards the rest of a block after a second, so that the time in an id is right.

The state of producers in partitions is in `korvet.storage.producer_state`.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable, Iterator

from attrs import define, field

from korvet.protocol.errors import CoordinatorNotAvailable
from korvet.storage.interface import Document, DocumentConflict, Documents
from korvet.storage.producer_state import ID_LOW_BITS, producer_id_at

logger = logging.getLogger(__name__)

DIGITS = re.compile(rb"[0-9]{1,16}")
# Ids stay below 2^53 (see ID_LOW_BITS).
LARGEST_ID = 2**53 - 2**ID_LOW_BITS
BLOCK = 100
BLOCK_LIFE_MS = 1000
# Limit of successive conflicts. Each one means that another broker allocated a block.
ATTEMPTS = 100


@define(eq=False)
class ProducerIds:
    """The allocator of producer ids."""

    storage: Documents
    clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    damaged: int = 0  # number of documents read that did not hold an id
    _ids: Iterator[int] = field(factory=lambda: iter(()))
    _taken_ms: int = 0

    async def allocate(self) -> int:
        """Return an unused id. Raises the errors of storage, and CoordinatorNotAvailable after too many conflicts."""
        while True:
            if 0 <= self.clock() - self._taken_ms < BLOCK_LIFE_MS:
                for producer_id in self._ids:
                    return producer_id
            # Two tasks that arrive here concurrently allocate a block each. The second block replaces the first one,
            # whose remaining ids are lost.
            self._ids = iter(await self._take_block())

    async def _take_block(self) -> range:
        for _ in range(ATTEMPTS):
            document = await self.storage.load("producer-ids", "next")
            self._taken_ms = self.clock()
            earliest = producer_id_at(self._taken_ms)
            earliest = max(earliest, self._next_in(document)) if document else earliest
            first = earliest + secrets.randbelow(2**ID_LOW_BITS - BLOCK)
            version = document.version if document else 0
            after = b"%d" % (first + BLOCK)
            try:
                await self.storage.save("producer-ids", "next", after, expected_version=version)
            except DocumentConflict:
                continue
            return range(first, first + BLOCK)
        raise CoordinatorNotAvailable("other brokers took every block of producer ids; try again")

    def _next_in(self, document: Document) -> int:
        """Return the id that a document holds; 0 if another client of the store wrote something else."""
        if DIGITS.fullmatch(document.value) and (found := int(document.value)) <= LARGEST_ID:
            return found
        self.damaged += 1
        if self.damaged == 1:
            logger.error("the document of producer ids holds no id, and is replaced")
        return 0
