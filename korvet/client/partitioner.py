"""Which partition a record goes to, as in Kafka's Java client.

A key decides by its murmur2 hash, so every client that does so puts a key's records into the same partition.
Records without a key stick to one partition until a batch for it is full: few large batches, not many small ones.
"""

from __future__ import annotations

import random
from functools import lru_cache

from attrs import define, field

UINT32 = 0xFFFFFFFF
SEED = 0x9747B28C
MULTIPLIER = 0x5BD1E995


@define
class Partitioner:
    """Remembers which partition of a topic keyless records go to; starts anywhere."""

    _next: int = field(factory=lambda: random.randrange(2**16), init=False)  # noqa: S311  not a secret

    def sticky(self, count: int) -> int:
        """The partition, of `count`, that keyless records stick to."""
        return self._next % count

    def move_on(self) -> None:
        """Let keyless records go to the next partition from now on."""
        self._next += 1


# Keys repeat, mostly.
@lru_cache(maxsize=4096)
def partition_of_key(key: bytes, count: int) -> int:
    """The partition, of `count`, that records with this key go to."""
    return (murmur2(key) & 0x7FFFFFFF) % count


def murmur2(data: bytes) -> int:
    """Return the 32-bit hash Kafka computes, unsigned."""
    h = SEED ^ len(data)
    whole = len(data) & ~3
    for start in range(0, whole, 4):
        k = int.from_bytes(data[start : start + 4], "little") * MULTIPLIER & UINT32
        k = (k ^ k >> 24) * MULTIPLIER & UINT32
        h = h * MULTIPLIER & UINT32 ^ k
    if whole < len(data):
        h = (h ^ int.from_bytes(data[whole:], "little")) * MULTIPLIER & UINT32
    h = (h ^ h >> 13) * MULTIPLIER & UINT32
    return h ^ h >> 15
