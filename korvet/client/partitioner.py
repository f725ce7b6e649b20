"""The partitioner, as in Kafka's Java client.

The murmur2 hash of the key selects the partition, so that all clients that use it put the records of a key into the
same partition. Records without a key go to one partition until a batch is full, which makes few large batches.
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
    """Selects the partition of a topic for records without a key, starting with a random one."""

    _next: int = field(factory=lambda: random.randrange(2**16), init=False)  # noqa: S311  not a secret

    def sticky(self, count: int) -> int:
        """Return the current partition, of `count`, for records without a key."""
        return self._next % count

    def move_on(self) -> None:
        """Use the next partition for records without a key from now on."""
        self._next += 1


# Keys usually repeat.
@lru_cache(maxsize=4096)
def partition_of_key(key: bytes, count: int) -> int:
    """Return the partition, of `count`, for records with this key."""
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
