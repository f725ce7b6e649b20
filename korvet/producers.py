"""Producer ids for idempotent producers, never given twice among brokers on one store.

They are taken from the store in blocks, by compare-and-set of a document that holds the first id nobody has
taken. What is left of a block when a broker ends is lost: there are 2^63 of them. Where the document is missing,
since the store is memory or was emptied, counting begins at random, so that a producer which outlived the store
does not meet its own id again in other hands.

What partitions remember of producers is storage's (`korvet.storage.producer_state`).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from attrs import define, field

from korvet.protocol.errors import CoordinatorNotAvailable
from korvet.storage.interface import DocumentConflict, Storage

BLOCK = 1000
# JavaScript clients keep ids in doubles: far below 2^53, and with room above for every block to come.
RANDOM_STARTS = 2**40
# Each conflict means that another broker got its block.
ATTEMPTS = 100


@define(eq=False)
class ProducerIds:
    """Gives out producer ids."""

    storage: Storage
    _ids: Iterator[int] = field(factory=lambda: iter(()))

    async def allocate(self) -> int:
        """An id nobody has. Raises what storage raises, and CoordinatorNotAvailable when it never succeeds."""
        while True:
            for producer_id in self._ids:
                return producer_id
            # Two tasks that come here together take a block each; one of the two is used up first, or lost.
            self._ids = iter(await self._take_block())

    async def _take_block(self) -> range:
        for _ in range(ATTEMPTS):
            document = await self.storage.load("producer-ids", "next")
            first = int(document.value) if document else secrets.randbelow(RANDOM_STARTS)
            version = document.version if document else 0
            after = b"%d" % (first + BLOCK)
            try:
                await self.storage.save("producer-ids", "next", after, expected_version=version)
            except DocumentConflict:
                continue
            return range(first, first + BLOCK)
        raise CoordinatorNotAvailable("other brokers took every block of producer ids; try again")
