"""Producer ids for idempotent producers, never given twice among brokers on one store.

A broker takes them from the store in blocks, by compare-and-set of a document that holds the first id of no block.
A block begins at the present time (`producer_id_at`) or behind the last block, whichever is later, plus a random
number. If the store forgot the last blocks, as after a failover to a replica that lagged, time has passed, and later
blocks lie behind the forgotten ones; within the same 64 ms only the random number keeps them apart. A broker discards
what is left of a block after a second, so that the time in an id is right.

Partitions remember producers in `korvet.storage.producer_state`.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable, Iterator

from attrs import define, field

from korvet.protocol.errors import CoordinatorNotAvailable
from korvet.storage.interface import Document, DocumentConflict, Storage
from korvet.storage.producer_state import ID_LOW_BITS, producer_id_at

logger = logging.getLogger(__name__)

DIGITS = re.compile(rb"[0-9]{1,16}")
# Ids stay below 2^53 (see ID_LOW_BITS).
LARGEST_ID = 2**53 - 2**ID_LOW_BITS
BLOCK = 100
BLOCK_LIFE_MS = 1000
# Each conflict means that another broker got its block.
ATTEMPTS = 100


@define(eq=False)
class ProducerIds:
    """Gives out producer ids."""

    storage: Storage
    clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    damaged: int = 0  # documents that were no id
    _ids: Iterator[int] = field(factory=lambda: iter(()))
    _taken_ms: int = 0

    async def allocate(self) -> int:
        """An id nobody has. Raises what storage raises, and CoordinatorNotAvailable when it never succeeds."""
        while True:
            if 0 <= self.clock() - self._taken_ms < BLOCK_LIFE_MS:
                for producer_id in self._ids:
                    return producer_id
            # Two tasks that come here together take a block each; one of the two is used up first, or lost.
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
